// The costs of products, and the precision they are computed in.
#include "families/matmul.h"

#include <algorithm>
#include <atomic>

#include "families/activation_functors.h"
#include "families/executed.h"
#include "math/counting.h"

namespace pb::kernels {
namespace {

// Returns the entry of an op. It measures the work of each activation, forward or backward.
template <class Run> Linear measured(const Kernel& kernel, Run run) {
  Linear op{kernel, {}};
  for (int activation = 1; activation < kActivations; ++activation)
    op.counts[activation] = counts_of([&] { visit_activation(activation, run); });
  return op;
}

std::atomic<bool> is_everywhere{false};

void add_product(int64_t multiply_adds, Cost& cost) { cost.fmas += multiply_adds, cost.matmul_flops += 2 * multiply_adds; }

}  // namespace

Precision precision() { return Precision(door.attribution.precision); }
void set_precision(Precision precision) { door.attribution.precision = uint8_t(precision); }

bool everywhere() { return is_everywhere.load(std::memory_order_relaxed); }
void set_everywhere(bool on) { is_everywhere.store(on, std::memory_order_relaxed); }

const Linear& linear_forward() {
  static const Linear op = measured({"linear", linear, linear_cost, executed_linear},
                                    [](auto forward, auto) { (void)forward(CountingScalar(0.5)); });
  return op;
}

const Linear& linear_backward() {
  static const Linear op =
      measured({"linear_pullback", linear_pullback, linear_pullback_cost, executed_linear_pullback},
               [](auto, auto pullback) { (void)pullback(CountingScalar(0.25), CountingScalar(0.5), CountingScalar(0.5)); });
  return op;
}

void matmul_cost(const Launch& launch, Cost& cost) {
  const View& a = launch.in(0);
  add_product(launch.out().size() * a.shape[a.ndim - 1], cost);
}

void linear_cost(const Launch& launch, Cost& cost) {
  const auto& op = *static_cast<const Linear*>(launch.table);
  const int64_t elements = launch.out().size(), k = launch.in(1).shape[1];
  add_product(elements * k, cost);
  cost.add(op.counts[launch.ints[0]], elements);
  if (launch.inputs == 3) cost.adds += elements;
}

void linear_pullback_cost(const Launch& launch, Cost& cost) {
  const auto& op = *static_cast<const Linear*>(launch.table);
  const View &g = launch.in(0), &x = launch.in(1), &w = launch.in(2), &gx = launch.out(0), &gw = launch.out(1),
             &gb = launch.out(2);
  if (gx.size() + gw.size() + gb.size() == 0) return;  // no gradient is needed, or all are empty: nothing is computed
  const int64_t elements = g.size(), activation = launch.ints[0];
  add_product(elements * w.shape[1] * ((gx.size() != 0) + (gw.size() != 0)), cost);
  cost.add(op.counts[activation], elements);
  if (gb.size()) cost.adds += std::max<int64_t>(0, elements - gb.size());
  cost.bytes_read = g.distinct_bytes();
  if (activation) cost.bytes_read += launch.in(3).distinct_bytes();
  if (gw.size()) cost.bytes_read += x.distinct_bytes();
  if (gx.size()) cost.bytes_read += w.distinct_bytes();
  for (int k = 0; k < launch.outputs; ++k) cost.bytes_written += launch.out(k).bytes();
}

}  // namespace pb::kernels
