// Matrices in the layouts that BLAS reads, and the products of this backend.
#pragma once
#include "cpu/scratch.h"
#include "launch/shape.h"
#include "math/counts.h"

namespace pb::cpu {

// A matrix in a layout that BLAS reads. Its rows, or its columns if it is transposed, are contiguous and `ld` elements apart.
struct Matrix {
  const char* data;
  int64_t ld;
  bool transposed;

  Matrix flipped() const { return {data, ld, !transposed}; }
};

// Sets `out` to the last two axes of v as a matrix. Returns false if BLAS cannot describe their strides.
bool as_matrix(const View& v, Matrix& out);

// Returns v itself if its dtype is `wide` and BLAS can read the matrices of its last two axes, otherwise a copy in scratch memory
// for which both are true.
View readable(const View& v, DType wide, Scratch& scratch);

constexpr int64_t kSharedProduct = 2500000;  // multiply-adds from which on threads share a product: 20 us

// Computes out (m, n) = a (m, k) @ b (k, n), and adds the content of out if `add`. out is contiguous. `dtype` is that of out, a and
// b: float32 or float64. Unless BLAS is faster and kernels::everywhere() is false, the order is that of families/order.h.
void product(DType dtype, int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, char* out, bool add = false);

// True if the product is so small that a plain loop is fastest.
inline bool is_tiny_product(int64_t m, int64_t n, int64_t k) { return m * n <= 16 && k <= 4; }

// Returns the work of product(), and of adding a bias if `bias`.
Counts product_work(DType dtype, int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, bool bias = false,
                    bool add = false);

// Returns the layout of readable(rounded(v)): a view with its shape, strides and dtype, whose data is not meant to be read.
View laid_out(const View& v, DType wide);

// Returns v with its elements rounded to the precision of this thread's products (see kernels::Precision): v itself, or a copy in
// scratch memory.
View rounded(const View& v, Scratch& scratch);

}  // namespace pb::cpu
