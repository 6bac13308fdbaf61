// Computes the joint norm of all gradients, and writes numbers of the host to the control block.
#include <algorithm>

#include "cuda/fold.cuh"
#include "cuda/gradients.cuh"
#include "families/update.h"

namespace pb::cuda {
namespace {

struct NormRun {
  Gradient gradient;
  int64_t size;
  bool packs;
};
constexpr int kFewNorms = 32, kManyNorms = 512;

template <int kMax> struct NormJob {
  double *control, *partial;
  uint32_t before = 0;         // the number of partial sums that earlier launches of the job have written
  unsigned* ticket = nullptr;  // set for the last launch only, whose last block adds up all partial sums
  int64_t chunk;
  double most;
  Chunks<kMax> chunks;
  NormRun runs[kMax];
};
static_assert(sizeof(NormJob<kManyNorms>) <= kMaxArguments);

struct Add {
  static __device__ double combine(double a, double b) { return a + b; }
};

// Returns this thread's part of the sum of squares, in double precision as on the CPU.
template <class A> __device__ double sum_of_squares(const NormRun& run, int64_t begin, int64_t end) {
  double sum = 0;
  if (run.packs) {
#pragma unroll 4
    for (int64_t i = begin + 4 * threadIdx.x; i < end; i += 4 * kThreads) {
      A x[4];
      load_pack(run.gradient.dtype, run.gradient.data, i, end, x);
#pragma unroll
      for (int k = 0; k < 4; ++k) sum += double(x[k]) * double(x[k]);
    }
  } else {
#pragma unroll 4
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      const double x = double(run.gradient.at<A>(i));
      sum += x * x;
    }
  }
  return sum;
}

// Each block sums the squares of one chunk, and the last block to arrive adds up all these sums. The order of the additions depends
// only on the sizes of the tensors.
template <int kMax> __global__ void __launch_bounds__(kThreads) norm_kernel(const __grid_constant__ NormJob<kMax> job) {
  double sum = 0;
  if (blockIdx.x < job.chunks.first[job.chunks.entries]) {
    const int t = job.chunks.find(blockIdx.x);
    const NormRun& run = job.runs[t];
    const int64_t begin = (blockIdx.x - job.chunks.first[t]) * job.chunk;
    const int64_t end = begin + job.chunk < run.size ? begin + job.chunk : run.size;
    sum = run.gradient.dtype == DType::f64 ? sum_of_squares<double>(run, begin, end) : sum_of_squares<float>(run, begin, end);
  }
  sum = fold_block<Add>(sum);
  if (threadIdx.x == 0) job.partial[job.before + blockIdx.x] = sum;
  if (!job.ticket || !last_to_arrive(job.ticket, gridDim.x)) return;
  sum = 0;
#pragma unroll 4
  for (uint32_t k = threadIdx.x; k < job.before + gridDim.x; k += kThreads) sum += __ldcg(job.partial + k);
  sum = fold_block<Add>(sum);
  if (threadIdx.x == 0) clip_to_norm(job.control, m::sqrt(sum), job.most);
}

// Returns the number of elements per block. Blocks of very large gradients take more, so that the last block has at most about
// kBlocks sums to add.
int64_t chunk_for(int64_t elements) {
  constexpr int64_t kElements = 32 * kThreads, kBlocks = 4096;
  return kElements * std::max<int64_t>(1, (elements + kElements * kBlocks - 1) / (kElements * kBlocks));
}

// The work of a launch. chunk: elements per block.
struct Extent {
  int64_t chunk, chunks = 0;
  int entries = 0;

  explicit Extent(const Launch& launch) {
    int64_t elements = 0;
    for (int t = 0; t < launch.inputs; ++t)
      if (launch.in(t).data) elements += launch.in(t).size(), ++entries;
    chunk = chunk_for(elements);
    for (int t = 0; t < launch.inputs; ++t)
      if (launch.in(t).data) chunks += (launch.in(t).size() + chunk - 1) / chunk;
  }
};

template <int kMax> void clip_norm(const Launch& launch, int64_t chunk, int64_t chunks) {
  Scratch scratch;
  Copies copies;
  NormJob<kMax> job;
  job.control = launch.out().as<double>();
  job.partial = scratch.take<double>(std::max<int64_t>(1, chunks));
  job.chunk = chunk;
  job.most = launch.reals[0];
  const auto go = [&] {
    const uint32_t blocks = std::max(1u, job.chunks.count());
    start(norm_kernel<kMax>, dim3(blocks), kThreads, 0, job);
    job.before += blocks;
    job.chunks.entries = 0;
  };
  for (int t = 0; t < launch.inputs; ++t) {
    const View& g = launch.in(t);
    if (!g.data) continue;
    if (job.chunks.entries == kMax) go();
    NormRun& run = job.runs[job.chunks.add((g.size() + chunk - 1) / chunk)];
    run.gradient = Gradient(g, copies);
    run.size = g.size();
    run.packs = run.gradient.packs();
  }
  job.ticket = tickets();
  go();
}

struct Numbers {
  double* at;
  int count;
  double values[kMaxReals];
};
__global__ void write_kernel(const __grid_constant__ Numbers numbers) {
  if (int(threadIdx.x) < numbers.count) numbers.at[threadIdx.x] = numbers.values[threadIdx.x];
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void clip_norm(const Launch& launch) {
  const cuda::Extent extent(launch);
  if (extent.entries > cuda::kFewNorms) cuda::clip_norm<cuda::kManyNorms>(launch, extent.chunk, extent.chunks);
  else cuda::clip_norm<cuda::kFewNorms>(launch, extent.chunk, extent.chunks);
}

// Packs are squared whole, including the padding of the last one. In each block all threads reduce their sums by halves, which
// takes eight additions per thread. The last block first adds up the sums of all blocks, then reduces again, and adds 1e-6.
void executed_clip_norm(const Launch& launch, Counts& work) {
  static_assert(cuda::kThreads == 256);
  constexpr int64_t kFold = 8 * int64_t{cuda::kThreads};
  const int64_t blocks = std::max<int64_t>(1, cuda::Extent(launch).chunks);
  int64_t squares = 0;
  for (int t = 0; t < launch.inputs; ++t) {
    const View& g = launch.in(t);
    if (g.data) squares += cuda::Gradient::packs_of(g) ? (g.size() + 3) / 4 * 4 : g.size();
  }
  work.adds = squares + blocks * (kFold + 1) + kFold + 1, work.multiplies = squares;
}

void write_control(const Launch& launch) {
  cuda::Numbers numbers{launch.out().as<double>() + launch.ints[0], int(launch.ints[1]), {}};
  std::copy_n(launch.reals, kMaxReals, numbers.values);
  cuda::start(cuda::write_kernel, dim3(1), dim3(cuda::kWarp), 0, numbers);
}

}  // namespace pb::kernels
