// What products cost, and the precision they are done in.
#include "kernels/matmul.h"

#include "kernels/activations.h"
#include "math/counting.h"

namespace pb::kernels {
namespace {

// The row of the table, with the figures of forward or backward measured.
template <class Run> Linear measured(const Kernel& kernel, Run run) {
  Linear op{kernel, {}, {}};
  for (int activation = 1; activation < kActivations; ++activation) {
    Counting::reset();
    visit_activation(activation, run);
    op.flops[activation] = int(Counting::flops), op.special[activation] = int(Counting::special);
  }
  return op;
}

}  // namespace

Precision precision() { return Precision(door.charge.precision); }
void set_precision(Precision precision) { door.charge.precision = uint8_t(precision); }

const Linear& linear_forward() {
  static const Linear op = measured({"linear", linear, linear_cost}, [](auto forward, auto) { (void)forward(Counting(0.5)); });
  return op;
}

const Linear& linear_backward() {
  static const Linear op = measured({"linear_pullback", linear_pullback, linear_pullback_cost},
                                    [](auto, auto pullback) { (void)pullback(Counting(0.25), Counting(0.5), Counting(0.5)); });
  return op;
}

void matmul_cost(const Launch& launch, Cost& cost) {
  const View& a = launch.in(0);
  cost.flops = cost.matmul_flops = 2 * launch.out().size() * a.shape[a.ndim - 1];
}

void linear_cost(const Launch& launch, Cost& cost) {
  const auto& op = *static_cast<const Linear*>(launch.table);
  const int64_t elements = launch.out().size(), k = launch.in(1).shape[1], activation = launch.ints[0];
  cost.matmul_flops = 2 * elements * k;
  cost.flops = cost.matmul_flops + elements * (op.flops[activation] + (launch.inputs == 3));
  cost.special_ops = elements * op.special[activation];
}

void linear_pullback_cost(const Launch& launch, Cost& cost) {
  const auto& op = *static_cast<const Linear*>(launch.table);
  const int64_t elements = launch.in(0).size(), k = launch.in(2).shape[1], activation = launch.ints[0];
  const int products = (launch.out(0).data != nullptr) + (launch.out(1).data != nullptr);
  cost.matmul_flops = 2 * elements * k * products;
  cost.flops = cost.matmul_flops + elements * (op.flops[activation] + (launch.out(2).data != nullptr));
  cost.special_ops = elements * op.special[activation];
  cost.bytes_read = launch.in(0).distinct_bytes();
  if (activation) cost.bytes_read += launch.in(3).distinct_bytes();
  if (launch.out(1).data) cost.bytes_read += launch.in(1).distinct_bytes();
  if (launch.out(0).data) cost.bytes_read += launch.in(2).distinct_bytes();
  for (int k2 = 0; k2 < launch.outputs; ++k2) cost.bytes_written += launch.out(k2).bytes();
}

}  // namespace pb::kernels
