// Reads and writes the table of sets outside of an update.
#include <algorithm>

#include "cuda/launch.cuh"
#include "cuda/operand.cuh"
#include "families/update.h"

namespace pb::cuda {
namespace {

// One thread for each set.
__global__ void begin_kernel(const Setting* sets, Setting* copies, int64_t count) {
  const int64_t s = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (s >= count) return;
  for (int k = 0; k < kSetSize; ++k) copies[s * kSetSize + k] = sets[s * kSetSize + k];
  begin_step(copies + s * kSetSize, sets + count * kSetSize);
}

struct Numbers {
  Setting* at;  // the first of the settings to change, in the first of the sets
  int64_t step, sets;
  int count;
  Setting values[kMaxReals];
};
__global__ void write_kernel(const __grid_constant__ Numbers numbers) {
  for (int64_t k = threadIdx.x / kMaxReals; k < numbers.sets; k += kThreads / kMaxReals)
    if (int(threadIdx.x % kMaxReals) < numbers.count)
      numbers.at[k * numbers.step * kSetSize + threadIdx.x % kMaxReals] = numbers.values[threadIdx.x % kMaxReals];
}

__global__ void scale_kernel(ScalerNumber* scaler, Setting growth, Setting backoff, Setting interval) {
  next_scale(scaler, growth, backoff, interval);
}

// One thread for each row after the sets. `stride`: the bytes from the metric of one member to that of the next.
__global__ void observe_kernel(const Setting* sets, Setting* rows, int64_t count, DType dtype, const char* metric,
                               int64_t stride) {
  const int64_t r = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (r >= count || !kernels::watches(rows + r * kSetSize, sets)) return;
  Setting row[kSetSize];
  for (int k = 0; k < kSetSize; ++k) row[k] = rows[r * kSetSize + k];
  metric += int64_t(row[kMember]) * stride;
  observe_metric(row, dtype == DType::f64 ? Setting(load_as<double>(dtype, metric)) : Setting(load_as<float>(dtype, metric)));
  for (int k = 0; k < kSetSize; ++k) rows[r * kSetSize + k] = row[k];
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void begin_steps(const Launch& launch) {
  const int64_t count = launch.ints[0];
  const Setting* const sets = launch.in().as<const Setting>();
  cuda::start(cuda::begin_kernel, cuda::blocks_for(count, cuda::kWarp), cuda::kWarp, 0, sets, launch.out().as<Setting>(),
              count);
}

void write_settings(const Launch& launch) {
  const int64_t* const at = launch.ints;
  cuda::Numbers numbers{launch.out().as<Setting>() + at[0] * kSetSize + at[3], at[1], at[2], int(at[4]), {}};
  std::copy_n(launch.reals, kMaxReals, numbers.values);
  cuda::start(cuda::write_kernel, dim3(1), cuda::kThreads, 0, numbers);
}

void update_scale(const Launch& launch) {
  cuda::start(cuda::scale_kernel, dim3(1), dim3(1), 0, launch.out().as<ScalerNumber>(), launch.reals[0], launch.reals[1],
              launch.reals[2]);
}

void observe(const Launch& launch) {
  const View &table = launch.out(), &metric = launch.in();
  const int64_t count = table.shape[0] - launch.ints[0], stride = metric.size() > 1 ? metric.stride[0] : 0;
  if (count == 0) return;
  cuda::start(cuda::observe_kernel, cuda::blocks_for(count, cuda::kWarp), cuda::kWarp, 0, table.as<const Setting>(),
              table.as<Setting>() + launch.ints[0] * kSetSize, count, metric.dtype, static_cast<const char*>(metric.data),
              stride);
}

}  // namespace pb::kernels
