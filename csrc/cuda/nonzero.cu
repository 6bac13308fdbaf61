// The positions of the nonzero elements, in order. The nonzero elements of each piece are counted first. A piece's positions are
// then written after those of all earlier pieces.
#include "cuda/index.cuh"
#include "cuda/fold.cuh"

namespace pb::cuda {
namespace {

constexpr int kEach = 16;  // elements per thread
constexpr int64_t kPiece = int64_t(kThreads) * kEach;
constexpr int kWarps = int(kThreads / kWarp);
constexpr int kCounters = kEach * kWarps;  // counters per piece: one for each run of 32 elements
constexpr unsigned kScanThreads = 1024;

__device__ inline bool is_set(DType dtype, const char* p) {
  switch (dtype) {
    case DType::f64: return *reinterpret_cast<const double*>(p) != 0;
    case DType::f16:
    case DType::bf16:
    case DType::f32: return load_as<float>(dtype, p) != 0;
    case DType::b8: return *reinterpret_cast<const bool*>(p);
    default: return load_as<int64_t>(dtype, p) != 0;
  }
}

struct Flags {
  const char* data;
  DType dtype;
  int64_t n;
  Path path;
  explicit Flags(const View& x) : data(x.data), dtype(x.dtype), n(x.size()), path(x) {}
  __device__ bool operator()(int64_t i) const { return i < n && is_set(dtype, data + path.offset(i)); }
};

struct Plus {
  template <class A> __device__ static A combine(A a, A b) { return a + b; }
};

__global__ void __launch_bounds__(kThreads) count_pieces(int64_t* counts, const __grid_constant__ Flags flags) {
  const int64_t first = int64_t(blockIdx.x) * kPiece + threadIdx.x;
  int count = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) count += flags(first + k * int64_t(kThreads));
  count = fold_block<Plus>(count);
  if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

// Replaces counts[k] by the sum of the counts before k, and counts[n] by the sum of all. A single block does this, kScanThreads
// counts at a time.
__global__ void __launch_bounds__(kScanThreads) scan_counts(int64_t n, int64_t* counts) {
  __shared__ int64_t sums[kScanThreads / kWarp];
  __shared__ int64_t carried;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (threadIdx.x == 0) carried = 0;
  __syncthreads();
  for (int64_t begin = 0; begin <= n; begin += kScanThreads) {
    const int64_t i = begin + threadIdx.x, own = i < n ? counts[i] : 0;
    int64_t sum = own;
#pragma unroll
    for (unsigned distance = 1; distance < kWarp; distance *= 2) {
      const int64_t other = __shfl_up_sync(kFull, sum, distance);
      if (lane >= distance) sum += other;
    }
    if (lane == kWarp - 1) sums[warp] = sum;
    __syncthreads();
    int64_t before = carried;
    for (unsigned w = 0; w < warp; ++w) before += sums[w];
    if (i <= n) counts[i] = before + sum - own;
    __syncthreads();
    if (threadIdx.x == kScanThreads - 1) carried = before + sum;
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads)
    write_positions(int64_t* out, const int64_t* counts, const __grid_constant__ Flags flags) {
  __shared__ int before[kCounters];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t first = int64_t(blockIdx.x) * kPiece + threadIdx.x;
  unsigned votes[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    votes[k] = __ballot_sync(kFull, flags(first + k * int64_t(kThreads)));
    if (lane == 0) before[k * kWarps + warp] = __popc(votes[k]);
  }
  __syncthreads();
  if (warp == 0) {
    int sums[kCounters / kWarp], sum = 0;
#pragma unroll
    for (int k = 0; k < kCounters / int(kWarp); ++k) sums[k] = sum, sum += before[lane * (kCounters / kWarp) + k];
    int start = sum;
#pragma unroll
    for (unsigned distance = 1; distance < kWarp; distance *= 2) {
      const int other = __shfl_up_sync(kFull, start, distance);
      if (lane >= distance) start += other;
    }
#pragma unroll
    for (int k = 0; k < kCounters / int(kWarp); ++k) before[lane * (kCounters / kWarp) + k] = start - sum + sums[k];
  }
  __syncthreads();
  out += counts[blockIdx.x];
#pragma unroll
  for (int k = 0; k < kEach; ++k)
    if (votes[k] >> lane & 1)
      out[before[k * kWarps + warp] + __popc(votes[k] & ((1u << lane) - 1))] = first + k * int64_t(kThreads);
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

using namespace cuda;

int64_t nonzero_pieces(int64_t size) { return (size + kPiece - 1) / kPiece; }

void nonzero_count(const Launch& launch) {
  const int64_t pieces = launch.out().size() - 1;
  int64_t* counts = launch.out().as<int64_t>();
  start(count_pieces, blocks_for(pieces, 1), kThreads, 0, counts, Flags(launch.in()));
  start(scan_counts, 1, kScanThreads, 0, pieces, counts);
}

int64_t read_total(const View& counts) {
  int64_t total = 0;
  check(cudaMemcpyAsync(&total, counts.as<int64_t>() + counts.size() - 1, sizeof total, cudaMemcpyDeviceToHost, stream()),
        "reading a count");
  synchronize();
  return total;
}

void nonzero_flat(const Launch& launch) {
  if (launch.out().size() == 0) return;
  start(write_positions, blocks_for(launch.in(1).size() - 1, 1), kThreads, 0, launch.out().as<int64_t>(),
        launch.in(1).as<const int64_t>(), Flags(launch.in(0)));
}

}  // namespace pb::kernels
