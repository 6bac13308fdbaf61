// Matrices as BLAS reads them, for the products of this backend.
#pragma once
#include "cpu/scratch.h"
#include "launch/shape.h"
#include "math/counts.h"

namespace pb::cpu {

// A matrix as BLAS reads it: rows `ld` elements apart, or columns where it is transposed.
struct Matrix {
  const char* data;
  int64_t ld;
  bool transposed;

  Matrix flipped() const { return {data, ld, !transposed}; }
};

// The last two axes of v as a matrix. False where BLAS has no words for their strides.
bool as_matrix(const View& v, Matrix& out);

// v itself where its dtype is `wide` and BLAS can read the matrices of its last two axes, else a copy in scratch memory
// for which that holds.
View readable(const View& v, DType wide, Scratch& scratch);

// Whether a plain loop beats all else: such products have bits of their own.
inline bool is_tiny_product(int64_t m, int64_t n, int64_t k) { return m * n <= 16 && k <= 4; }

// out (m, n) = a (m, k) @ b (k, n), plus what out holds if `add`; out is contiguous, of dtype float32 or float64 as are a and b.
void product(DType dtype, int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, char* out, bool add = false);

// The work of that, without `add`; and that of adding a bias to the result on the way, where there is one.
Counts product_work(DType dtype, int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, bool bias = false);

// v as readable(rounded(v)) would lie in memory, but for where.
View laid_out(const View& v, DType wide);

// v with its elements rounded as products of this thread are to be (see kernels::Precision): v itself, or a copy in scratch
// memory.
View rounded(const View& v, Scratch& scratch);

}  // namespace pb::cpu
