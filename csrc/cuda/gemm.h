// Products of matrices, for the families that need them. Host code that chooses among kernels by shape and dtype alone.
#pragma once
#include "families/matmul.h"
#include "launch/door.h"
#include "launch/shape.h"

namespace pb::cuda {

// A factor and its strides in bytes: `outer` from row to row of a (column to column of b), `depth` along the contraction.
struct Factor {
  const char* data = nullptr;
  int64_t outer = 0, depth = 0;
};

// result = activation(a @ b + bias), or result += a @ b, for every element of a batch.
struct Product {
  DType dtype;      // of the factors and the result
  int64_t m, n, k;  // a is (m, k), b is (k, n)
  Factor a, b;
  View batch[2];  // strides from one a, and one b, to the next: collapsed axes of a common shape; data and dtype are not used
  char* out;      // (batch…, m, n), contiguous; null if only the sums are needed, and then n is 0
  const char* bias = nullptr;
  int64_t bias_step = 0;
  int activation = 0;
  bool adds = false;  // true to add to the contents of out, which are float32 or float64; requires no bias and no activation
  // If `pulled` is not 0, a holds cotangents of an activation with outputs y, and the activation's pullback is applied to them
  // first. Requires no batch.
  Factor y{};
  int pulled = 0;
  char* sums = nullptr;  // receives the sum of every row of a; null if not needed; requires no batch

  Product(DType dtype_, int64_t m_, int64_t n_, int64_t k_, char* out_) : dtype(dtype_), m(m_), n(n_), k(k_), out(out_) {
    batch[0] = batch[1] = flat_view(nullptr, dtype, 0);
    batch[0].ndim = batch[1].ndim = 0;
  }
};

// Computes one or two products, in a single launch if pullback's own kernels compute both.
void multiply(const Product* products, int count);
// Returns the work that multiply() would do. Products left to cuBLASLt count by the formula. Only the alignment of pointers
// matters, and whether they are null: nothing is read.
Counts work_of(const Product* products, int count);

// True if a product of this dtype and this many multiply-adds may go through tensor cores, on this device and in this mode. Factors of
// float32 are rounded to `precision`.
bool by_tensor_cores(DType dtype, kernels::Precision precision, int64_t work);
// True if a product is left to cuBLASLt, which can neither apply pullbacks nor compute sums: if the library is there and faster, and
// not in the mode "everywhere".
bool is_large(DType dtype, kernels::Precision precision, int64_t m, int64_t n, int64_t k, int64_t batches = 1);

// True if a float32 product with a pullback or sums is so large that pull_back_columns() in a separate launch, before the
// product, saves time: the product then uses the largest tiles, and copies its factors straight to shared memory.
bool is_worth_a_launch(int64_t m, int64_t n, int64_t k);

// Computes gz, the pullback of g (rows, n) through an activation with output y, and the column sums of gz. Both are contiguous and
// have g's dtype; pass null for the one that is not needed.
void pull_back_columns(const View& g, const View& y, int activation, char* gz, char* sums);
Counts work_of_columns(int64_t rows, int64_t n, int activation, bool sums);
// x = activation(x + bias) for `rows` rows of n elements. bias may be null.
void finish_rows(DType dtype, char* x, int64_t rows, int64_t n, const char* bias, int64_t bias_step, int activation);

}  // namespace pb::cuda
