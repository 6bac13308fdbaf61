// Products: of matrices, batched and broadcast; of a linear layer with its bias and activation, and their gradients.
#pragma once
#include "cpu/scratch.h"
#include "launch/door.h"

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
View readable(View v, DType wide, Scratch& scratch);

// out (m, n) = a (m, k) @ b (k, n); out is contiguous, of dtype float32 or float64 as are a and b.
void product(DType dtype, int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, char* out);

// out: (batch…, m, n), contiguous. in: a (batch…, m, k), b (batch…, k, n); batch axes broadcast.
void matmul(const Launch& launch);
void matmul_cost(const Launch& launch, Cost& cost);

constexpr int kActivations = 4;  // none, relu, tanh, sigmoid

// What the linear family keeps: FLOPs and special ops of one element of each activation, or of its pullback.
struct Linear {
  Kernel kernel;
  int flops[kActivations], special[kActivations];
};

// out: y (…, n), contiguous. in: x (…, k), w (n, k), and b (n) where there is a third. ints: the activation.
void linear(const Launch& launch);
void linear_cost(const Launch& launch, Cost& cost);

// out: gx, gw, gb, contiguous; data is null and the size 0 where it is not needed. in: g, x, w, y; y may be anything
// where the activation is none. ints: the activation.
void linear_pullback(const Launch& launch);
void linear_pullback_cost(const Launch& launch, Cost& cost);

}  // namespace pb::cpu
