// Products: of matrices, batched and broadcast; of a linear layer with its bias and activation, and their gradients.
#pragma once
#include "launch/door.h"

namespace pb::kernels {

// What products of float32 are rounded to before they are multiplied; sums and results stay float32. tf32 is float32 where the
// hardware has nothing of the kind. Other dtypes are multiplied as they are.
enum class Precision : uint8_t { exact, tf32, bf16, f16 };
constexpr int kPrecisions = 4;

// Of the calling thread.
Precision precision();
void set_precision(Precision precision);

// Of a launch of matmul or linear_pullback: whether the product is added to what output k holds, of float32 or float64. Bits of
// the second of its ints; only in plans, which are counted launch by launch as they were recorded (see fusions.h).
inline bool adds_to(const Launch& launch, int k) { return launch.ints[1] >> k & 1; }

// out: (batch…, m, n), contiguous. in: a (batch…, m, k), b (batch…, k, n); batch axes broadcast.
void matmul(const Launch& launch);
void matmul_cost(const Launch& launch, Cost& cost);

constexpr int kActivations = 4;  // see activations.h
constexpr const char* kActivationNames[kActivations] = {"none", "relu", "tanh", "sigmoid"};

// What the linear family keeps: the work of one element of each activation, or of its pullback.
struct Linear {
  Kernel kernel;
  Counts counts[kActivations];
};
const Linear& linear_forward();
const Linear& linear_backward();

// out: y (…, n), contiguous. in: x (…, k), w (n, k), and b (n) where there is a third. ints: the activation.
void linear(const Launch& launch);
void linear_cost(const Launch& launch, Cost& cost);

// out: gx, gw, gb, contiguous; data is null and the size 0 where it is not needed. in: g, x, w, y; y may be anything
// where the activation is none. ints: the activation.
void linear_pullback(const Launch& launch);
void linear_pullback_cost(const Launch& launch, Cost& cost);

}  // namespace pb::kernels
