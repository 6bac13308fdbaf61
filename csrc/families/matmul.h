// Products of matrices, batched and broadcast, and linear layers with bias and activation, with their pullbacks.
#pragma once
#include "families/activations.h"
#include "launch/door.h"

namespace pb::kernels {

// The format to which float32 factors are rounded before they are multiplied. Sums and results stay float32. On hardware
// without tf32, tf32 is float32. Other dtypes are multiplied as they are.
enum class Precision : uint8_t { exact, tf32, bf16, f16 };
constexpr int kPrecisions = 4;

// The precision of the calling thread.
Precision precision();
void set_precision(Precision precision);

// True if results must have the same bits on every machine ("everywhere"). Products then follow the order of families/order.h on
// every device, and no library computes them. Otherwise ("machine") a library may compute large ones. It holds for all threads.
bool everywhere();
void set_everywhere(bool on);

// True if a launch of matmul or linear_pullback adds its product to the content of output k, of float32 or float64. ints[1] holds
// one such bit per output. Only plans use it (see fusions.h), and they count the launches that were recorded.
inline bool adds_to(const Launch& launch, int k) { return launch.ints[1] >> k & 1; }

// out: (batch…, m, n), contiguous. in: a (batch…, m, k), b (batch…, k, n); batch axes broadcast.
void matmul(const Launch& launch);
void matmul_cost(const Launch& launch, Cost& cost);

// The forward or the backward pass of a linear layer, with the work per element of each activation or of its pullback.
struct Linear {
  Kernel kernel;
  Counts counts[kActivations];
};
const Linear& linear_forward();
const Linear& linear_backward();

// out: y (…, n), contiguous. in: x (…, k), w (n, k), and b (n) if there is a third input. ints: the activation.
void linear(const Launch& launch);
void linear_cost(const Launch& launch, Cost& cost);

// out: gx, gw, gb, contiguous; data is null and the size 0 if a gradient is not needed. in: g, x, w, y; y may be anything if the
// activation is none. ints: the activation.
void linear_pullback(const Launch& launch);
void linear_pullback_cost(const Launch& launch, Cost& cost);

}  // namespace pb::kernels
