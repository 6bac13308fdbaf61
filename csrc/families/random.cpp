// The kernels of random numbers.
#include "families/random.h"

#include "families/executed.h"
#include "families/sort.h"
#include "launch/signature.h"

namespace pb::kernels {
namespace {

constexpr int kDrawWork = 8;

const Kernel of_uniform{"uniform", uniform, random_cost<2, 4, 0>}, of_normal{"normal", normal, random_cost<3, 7, 4>},
    of_truncated_normal{"truncated_normal", truncated_normal, random_cost<6, 8, 2, 2>},
    of_bernoulli{"bernoulli", bernoulli, random_cost<0, 2, 0>}, of_randint{"randint", randint, random_cost<0, 0, 0>},
    of_keys{"random_keys", random_keys, random_cost<0, 0, 0>}, of_permutation{"permutation", permutation, random_cost<0, 0, 0>},
    of_state{"random_state", random_state, random_cost<0, 0, 0>},
    of_dropout{"dropout", dropout, dropout_cost, executed_dropout};

const char* refuses_range(const Launch& launch) {
  const DType dtype = launch.out().dtype;
  if (is_float(dtype) || dtype == DType::b8) return "a dtype that is not an integer's";
  return launch.ints[0] < launch.ints[1] ? nullptr : "an empty range";
}
const char* refuses_count(const Launch& launch) {
  return launch.out().shape[0] < kMaxRow ? nullptr : "a count of more than 2^32";
}

const KernelRows table{
    {&of_uniform, "(u64 state[2], shape, dtype, real low, real high) -> y[...]", kDrawWork},
    {&of_normal, "(u64 state[2], shape, dtype, real mean, real std) -> y[...]", kDrawWork},
    {&of_truncated_normal, "(u64 state[2], shape, dtype, real mean, real std, real low, real high) -> y[...]", kDrawWork},
    {&of_bernoulli, "(u64 state[2], shape, real p) -> bool y[...]", kDrawWork},
    {&of_randint, "(u64 state[2], shape, any dtype, int low, int high) -> y[...]", kDrawWork, refuses_range},
    {&of_keys, "(u64 state[2], length n) -> u64 keys[n]", 2 * kDrawWork, refuses_count},
    {&of_permutation, "(u64 state[2], length n) -> i64 order[n]", 2 * kDrawWork, refuses_count},
    {&of_state, "(u64 state[2], int offset) -> u64 later[2]", 0},
    {&of_dropout, "(x[...], u64 state[2], real p) -> y[...]", kDrawWork},  // also the pullback: the same state drops the same
};

}  // namespace
}  // namespace pb::kernels
