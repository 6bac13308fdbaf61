// The kernel of an update: one launch updates all tensors of one compute type, and begins the step.
#pragma once
#include <algorithm>
#include <new>
#include <vector>

#include "cuda/fold.cuh"
#include "cuda/gradients.cuh"
#include "families/update.h"

namespace pb::cuda {

using kernels::kMaxSlots;

// One tensor of a launch.
struct Run {
  char *weights, *delta;  // delta is null if it is not needed
  char* slots[kMaxSlots];
  Gradient gradient;
  int64_t size;
  bool packs;  // true if all of these can be read four elements at a time
};

// The arguments of a launch, passed by value.
template <int kMax> struct UpdateJob {
  Setting* control;
  // Counts the blocks that have begun. The last block to begin writes the control block; if null, no block writes it.
  unsigned* ticket = nullptr;
  bool preview;
  Setting hyper[kMaxReals];
  Chunks<kMax> chunks;
  Run runs[kMax];
};
constexpr int kFewRuns = 24, kManyRuns = 264;  // tensors per launch; a launch with fewer bytes of arguments starts sooner
static_assert(sizeof(UpdateJob<kManyRuns>) <= kMaxArguments);

// A share is the elements that one thread updates at a time. A block takes one chunk of kThreads shares after another.
template <class A> constexpr int kShare = 32 / sizeof(A);
template <class A> constexpr int64_t kChunk = int64_t{kShare<A>} * kThreads;

// The elements of one share: packs of four neighbours, or single elements that are kThreads apart.
struct Share {
  int64_t first, end;
  bool packs;
  template <class A> __device__ Share(A, const Run& run, uint32_t chunk)
      : first(chunk * kChunk<A> + threadIdx.x * (run.packs ? 4 : 1)), end(run.size), packs(run.packs) {}
};

template <class A> __device__ inline void load_share(const Share& share, DType dtype, const char* data, A (&x)[kShare<A>]) {
  if (share.packs) {
#pragma unroll
    for (int k = 0; k < kShare<A>; k += 4) {
      A four[4];
      load_pack(dtype, data, share.first + k * kThreads, share.end, four);
#pragma unroll
      for (int j = 0; j < 4; ++j) x[k + j] = four[j];
    }
  } else {
#pragma unroll
    for (int k = 0; k < kShare<A>; ++k) {
      const int64_t i = share.first + k * kThreads;
      x[k] = i < share.end ? load_as<A>(dtype, data + i * size_of<A>(dtype)) : A(0);
    }
  }
}
template <class A> __device__ inline void load_share(const Share& share, const Gradient& gradient, A (&x)[kShare<A>]) {
  if (gradient.flat) return load_share(share, gradient.dtype, gradient.data, x);
#pragma unroll
  for (int k = 0; k < kShare<A>; ++k) {
    const int64_t i = share.first + k * kThreads;
    x[k] = i < share.end ? gradient.at<A>(i) : A(0);
  }
}
template <class A> __device__ inline void store_share(const Share& share, DType dtype, char* data, const A (&x)[kShare<A>]) {
  if (share.packs) {
#pragma unroll
    for (int k = 0; k < kShare<A>; k += 4) {
      A four[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) four[j] = x[k + j];
      store_pack(dtype, data, share.first + k * kThreads, share.end, four);
    }
  } else {
#pragma unroll
    for (int k = 0; k < kShare<A>; ++k) {
      const int64_t i = share.first + k * kThreads;
      if (i < share.end) store_as<A>(dtype, data + i * size_of<A>(dtype), x[k]);
    }
  }
}

// Rounds a delta to the dtype of its weight before it is added, so that before + delta = after holds bit for bit.
template <class A> __device__ inline A rounded(DType dtype, A x) {
  if constexpr (std::is_same_v<A, float>)
    if (dtype != DType::f32) return dtype == DType::f16 ? float(float16(x)) : float(bfloat16(x));
  return x;
}

// One warp of every block computes the step's settings (rates, bias corrections) while the other warps load. Bound by memory: Adam
// moves 28 bytes per float weight and executes about 80 instructions.
template <class U, class A, int kMax>
__global__ void __launch_bounds__(kThreads) update_kernel(const __grid_constant__ UpdateJob<kMax> job) {
  using Element = typename U::template Element<A>;
  constexpr DType kSlotType = std::is_same_v<A, float> ? DType::f32 : DType::f64;
  __shared__ Setting control[kControlSize];
  __shared__ __align__(16) unsigned char element[sizeof(Element)];
  A p[kShare<A>], g[kShare<A>], slots[U::kSlots + 1][kShare<A>];
  const uint32_t chunks = job.chunks.first[job.chunks.entries];
  uint32_t chunk = blockIdx.x;
  int t = 0;
  const auto load = [&] {
    t = job.chunks.find(chunk);
    const Run& run = job.runs[t];
    const Share share(A(0), run, chunk - job.chunks.first[t]);
    load_share(share, run.gradient.dtype, run.weights, p);
    load_share(share, run.gradient, g);
#pragma unroll
    for (int k = 0; k < U::kSlots; ++k) load_share(share, kSlotType, run.slots[k], slots[k]);
  };
  bool last = false;
  if (threadIdx.x < kControlSize) {
    control[threadIdx.x] = job.control[threadIdx.x];
    __syncwarp((1u << kControlSize) - 1);
    if (threadIdx.x == 0) {
      if (job.ticket) {
        __threadfence();  // the control block has been read before this block counts as begun
        last = atomicAdd(job.ticket, 1u) + 1 == gridDim.x;
      }
      U::advance(control, job.hyper);
      new (element) Element(control, job.hyper);
    }
  }
  if (chunk < chunks) load();
  __syncthreads();
  const Element f = *reinterpret_cast<const Element*>(element);

  while (chunk < chunks) {
    const Run& run = job.runs[t];
    const DType dtype = run.gradient.dtype;
    const Share share(A(0), run, chunk - job.chunks.first[t]);
#pragma unroll
    for (int k = 0; k < kShare<A>; ++k) {
      A column[U::kSlots + 1];
#pragma unroll
      for (int j = 0; j < U::kSlots; ++j) column[j] = slots[j][k];
      g[k] = rounded(dtype, kernels::change_of<U>(f, p[k], g[k], column));
      p[k] = p[k] + g[k];
#pragma unroll
      for (int j = 0; j < U::kSlots; ++j) slots[j][k] = column[j];
    }
    if (!job.preview) {
      store_share(share, dtype, run.weights, p);
#pragma unroll
      for (int k = 0; k < U::kSlots; ++k) store_share(share, kSlotType, run.slots[k], slots[k]);
    }
    if (run.delta) store_share(share, dtype, run.delta, g);
    chunk += gridDim.x;
    if (chunk < chunks) load();
  }
  if (last) {
    for (int k = 0; k < kControlSize; ++k) job.control[k] = control[k];
    *job.ticket = 0;
  }
}

inline bool aligned(const void* p, int64_t bytes) { return reinterpret_cast<uintptr_t>(p) % uintptr_t(bytes) == 0; }

template <int kMax> void add_run(UpdateJob<kMax>& job, const Launch& launch, int t, int64_t chunk, Copies& copies) {
  const int slots = static_cast<const kernels::Update*>(launch.table)->slots, entries = int(launch.ints[0]);
  const View& weights = launch.out(t);
  const int64_t size = item_size(weights.dtype), wide = compute_size(compute_type(weights.dtype));
  Run& run = job.runs[job.chunks.add((weights.size() + chunk - 1) / chunk)];
  run.weights = weights.data;
  run.delta = launch.out(entries * (1 + slots) + t).data;
  run.size = weights.size();
  run.gradient = Gradient(launch.in(t), copies);
  run.packs = run.gradient.packs() && aligned(run.weights, 4 * size) && aligned(run.delta, 4 * size);
  for (int k = 0; k < slots; ++k) {
    run.slots[k] = launch.out(entries * (1 + k) + t).data;
    run.packs = run.packs && aligned(run.slots[k], 4 * wide);
  }
}

// Updates the tensors whose compute type is A, up to kMax of them per kernel launch. The last launch ends the step if `ends`.
template <class U, class A, int kMax> void update_all(const Launch& launch, bool ends, Copies& copies) {
  UpdateJob<kMax> job;
  job.control = launch.out(launch.outputs - 1).as<Setting>();
  job.preview = launch.ints[1] != 0;
  std::copy_n(launch.reals, kMaxReals, job.hyper);
  const auto go = [&] {
    const int64_t fill = 4 * int64_t{multiprocessors()};  // the number of blocks that run at the same time
    start(update_kernel<U, A, kMax>, dim3(unsigned(std::max<int64_t>(1, std::min<int64_t>(job.chunks.count(), fill)))),
          kThreads, 0, job);
    job.chunks.entries = 0;
  };
  for (int t = 0; t < launch.ints[0]; ++t) {
    if (!launch.in(t).data || compute_type(launch.in(t).dtype) != compute_of<A>) continue;
    if (job.chunks.entries == kMax) go();
    add_run(job, launch, t, kChunk<A>, copies);
  }
  if (ends && !job.preview) job.ticket = tickets();
  go();
}

// Updates the `count` tensors of one compute type.
using UpdateTensors = void (*)(const Launch& launch, int count, bool ends, Copies& copies);
template <class U, class A> void update_tensors(const Launch& launch, int count, bool ends, Copies& copies) {
  if constexpr (std::is_same_v<A, float>)
    if (count <= kFewRuns) return update_all<U, A, kFewRuns>(launch, ends, copies);
  update_all<U, A, kManyRuns>(launch, ends, copies);
}

// Returns update_tensors of each row of math/update.def, in their order.
using UpdateRows = std::vector<UpdateTensors>;
template <class A> UpdateRows update_rows() {
  UpdateRows rows;
  kernels::each_update([&](auto rule, const char*) { rows.push_back(update_tensors<typename decltype(rule)::type, A>); });
  return rows;
}
extern template UpdateRows update_rows<float>();  // in sources that CMake generates: all kernels together take long to compile
extern template UpdateRows update_rows<double>();

// Returns the number of elements that threads compute for a tensor. They complete the last chunk with values that are not used.
template <class A> int64_t whole_chunks(int64_t size) { return (size + kChunk<A> - 1) / kChunk<A> * kChunk<A>; }

}  // namespace pb::cuda
