// Products of matrices for the families that need them: host code that chooses among kernels, by shape and dtype alone.
#pragma once
#include "cuda/launch.cuh"
#include "launch/shape.h"

namespace pb::cuda {

// A factor, in bytes: from a row of a (a column of b) to the next, and along the contraction.
struct Factor {
  const char* data = nullptr;
  int64_t outer = 0, depth = 0;
};

// result = activation(a @ b + bias), one for every element of a batch, or result += a @ b.
struct Product {
  DType dtype;      // of factors and result
  int64_t m, n, k;  // a is (m, k), b is (k, n)
  Factor a, b;
  View batch[2];  // steps from one a, and b, to the next: axes of one shape, collapsed; data and dtype mean nothing
  char* out;      // (batch…, m, n), contiguous; null where only the sums are asked for, and n is 0
  const char* bias = nullptr;
  int64_t bias_step = 0;
  int activation = 0;
  bool adds = false;     // to what out holds, of float32 or float64; neither bias nor activation then
  Factor y{};            // a's elements are cotangents of an activation whose results these are, and are pulled back first;
  int pulled = 0;        // no batch then
  char* sums = nullptr;  // the sum of every row of a, if asked for; no batch then

  Product(DType dtype_, int64_t m_, int64_t n_, int64_t k_, char* out_) : dtype(dtype_), m(m_), n(n_), k(k_), out(out_) {
    batch[0] = batch[1] = flat_view(nullptr, dtype, 0);
    batch[0].ndim = batch[1].ndim = 0;
  }
};

// Computes one or two products, in one launch where both are for our own kernels.
void multiply(const Product* products, int count);
// The work of that; a library is taken to do what the formula says. Pointers are only asked whether they are null.
Counts work_of(const Product* products, int count);

// Whether products of this dtype go through tensor cores, on this device and in this thread's precision.
bool by_tensor_cores(DType dtype);
// Whether a product is large enough for a library, which has neither pullbacks in it nor sums.
bool is_large(int64_t m, int64_t n, int64_t k, int64_t batches = 1);

// gz = the pullback of g (rows, n) through an activation with results y, contiguous (null: not asked for), and the sum of each
// column of it, of g's dtype (null likewise).
void pull_columns(const View& g, const View& y, int activation, char* gz, char* sums);
Counts work_of_columns(DType dtype, int64_t rows, int64_t n, int activation, bool sums);
// x = activation(x + bias) for rows of n; bias may be null.
void finish_rows(DType dtype, char* x, int64_t rows, int64_t n, const char* bias, int64_t bias_step, int activation);

}  // namespace pb::cuda
