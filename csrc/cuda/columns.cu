// The row operations of a linear layer other than its products: the pullback of an activation together with column sums, and bias
// and activation.
#include "cuda/copy.cuh"
#include "cuda/gemm.cuh"

namespace pb::cuda {
namespace {

using kernels::kOrderBlock;

// A block sums kOrderBlock rows of kAcross columns. Each thread has kEach rows of one column.
constexpr int kAcross = 16, kDown = 32, kEach = int(kOrderBlock) / kDown, kRun = 8;

struct Columns {
  int64_t rows, n, pitch;  // pitch: elements from row to row of gz
  unsigned chunks;         // chunks of kOrderBlock rows, one for each block
  Factor g, y;             // the outer axis is the rows
  int activation;
  char *gz, *sums;
  void* partial;
  unsigned* arrivals;
};

// Pulls g back through an activation, and sums each column in the order of families/order.h, as a sum of products with ones.
//
// A block reads 256 x 16 numbers of g, and as many of y, writes as many of gz, and keeps 16 KiB of them in shared memory (32 of
// double). All of a thread's loads are under way at once. Then one thread per column adds 256 numbers, one after the other: this
// chain is the longest part of the kernel. The last block of a strip of columns adds up the sums of all chunks.
template <class C, class T> __global__ void __launch_bounds__(kAcross* kDown) pull_chunk(const __grid_constant__ Columns c) {
  __shared__ C stage[kOrderBlock][kAcross];
  const unsigned chunk = blockIdx.x % c.chunks, strip = blockIdx.x / c.chunks;
  const int across = int(threadIdx.x % kAcross), down = int(threadIdx.x / kAcross);
  const int64_t column = int64_t(strip) * kAcross + across, begin = chunk * kOrderBlock;
  const int rows = column >= c.n ? 0 : int(c.rows - begin < kOrderBlock ? c.rows - begin : kOrderBlock);

  const int mine = (rows - down + kDown - 1) / kDown;  // rows of this thread: 0 or more, because down < kDown
  const auto each = [&](auto&& f) {
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      if (e < mine) f(e);
  };
  C value[kEach], y[kEach];
  const auto load = [&](C(&to)[kEach], const Factor& f) {
    const char* const at = f.data + (begin + down) * f.outer + column * f.depth;
    const int64_t step = kDown * f.outer;
    each([&](int e) { to[e] = C(*reinterpret_cast<const T*>(at + e * step)); });
  };
  load(value, c.g);
  if (c.activation) {
    load(y, c.y);
    kernels::visit_activation(c.activation,
                              [&](auto, auto pullback) { each([&](int e) { value[e] = pullback(value[e], y[e], y[e]); }); });
  }
  if (c.gz) {
    T* const gz = reinterpret_cast<T*>(c.gz) + (begin + down) * c.pitch + column;
    const int64_t step = kDown * c.pitch;
    each([&](int e) { gz[e * step] = T(value[e]); });
  }
  if (!c.sums) return;

#pragma unroll
  for (int e = 0; e < kEach; ++e) stage[down + e * kDown][across] = value[e];
  __syncthreads();
  C* const partial = static_cast<C*>(c.partial) + column;
  T* const sums = reinterpret_cast<T*>(c.sums) + column;
  if (down == 0 && column < c.n) {
    C sum = 0;
#pragma unroll 8
    for (int i = 0; i < rows; ++i) sum += stage[i][across];
    if (c.chunks == 1) *sums = T(sum);
    else partial[chunk * c.n] = sum;
  }
  if (c.chunks == 1 || !last_to_arrive(c.arrivals + strip, c.chunks)) return;
  // In every round, runs of neighbouring chunks are added by different threads. Chunks that are left are 2^shift apart.
#pragma unroll 1
  for (int shift = 0; (c.chunks - 1) >> shift; shift += 3) {
    const int64_t length = int64_t{kRun} << shift;
#pragma unroll 1
    for (int64_t first = down * length; first < c.chunks && column < c.n; first += kDown * length) {
      const C sum = sum_of_run<kRun>(partial + first * c.n, c.n << shift, (c.chunks - first + (length / kRun) - 1) >> shift);
      if (length >= c.chunks) *sums = T(sum);
      else partial[first * c.n] = sum;
    }
    __syncthreads();
  }
}

struct Rows {
  DType dtype;
  int size;
  int64_t elements;
  Ratio rows;  // divides the position of an element by the row length
  char* x;
  const char* bias;
  int64_t bias_step;
  int activation;
};

// Each thread processes kCount consecutive elements. The row length is a multiple of kCount.
template <class C, int kCount> __global__ void __launch_bounds__(kThreads) finish_elements(const __grid_constant__ Rows r) {
  const int64_t i = kCount * (int64_t(blockIdx.x) * kThreads + threadIdx.x);
  if (i >= r.elements) return;
  C x[kCount];
  if constexpr (kCount == 4) load_four(r.dtype, r.x, i, x);
  else x[0] = load_element<C>(r.dtype, r.x + i * r.size);
  if (r.bias) {
    const int64_t column = i - r.rows.divide(i) * r.rows.length;
#pragma unroll
    for (int j = 0; j < kCount; ++j) x[j] += load_element<C>(r.dtype, r.bias + (column + j) * r.bias_step);
  }
  kernels::visit_activation(r.activation, [&](auto forward, auto) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) x[j] = forward(x[j]);
  });
  if constexpr (kCount == 4) store_four(r.dtype, r.x, i, x);
  else store_element<C>(r.dtype, r.x + i * r.size, x[0]);
}

}  // namespace

void pull_back_columns(const View& g, const View& y, int activation, char* gz, char* sums) {
  const int64_t rows = g.shape[0], n = g.shape[1], size = item_size(g.dtype);
  if (n == 0 || (rows == 0 && !sums)) return;
  const int64_t chunks = std::max<int64_t>(1, kernels::order_blocks(rows));
  const int64_t most = kAcross * std::min(kTickets, std::max<int64_t>(1, kMaxBlocks / chunks));  // columns of a launch
  for (int64_t first = 0; first < n; first += most) {
    const int64_t some = std::min(most, n - first), blocks = chunks * ((some + kAcross - 1) / kAcross);
    Scratch scratch;
    Columns c{};
    c.rows = rows, c.n = some, c.pitch = n, c.chunks = unsigned(chunks);
    c.g = {g.data + first * g.stride[1], g.stride[0], g.stride[1]};
    c.y = {y.data + first * y.stride[1], y.stride[0], y.stride[1]};
    c.activation = activation;
    c.gz = gz ? gz + first * size : nullptr, c.sums = sums ? sums + first * size : nullptr;
    c.partial = sums && chunks > 1 ? scratch.take<double>(chunks * some) : nullptr;
    c.arrivals = tickets();
    const auto kernel = g.dtype == DType::f64   ? pull_chunk<double, double>
                        : g.dtype == DType::f32 ? pull_chunk<float, float>
                        : g.dtype == DType::f16 ? pull_chunk<float, float16>
                                                : pull_chunk<float, bfloat16>;
    start(kernel, dim3(unsigned(blocks)), dim3(kAcross * kDown), 0, c);
  }
}

void finish_rows(DType dtype, char* x, int64_t rows, int64_t n, const char* bias, int64_t bias_step, int activation) {
  const int size = item_size(dtype);
  const Rows r{dtype, size, rows * n, Ratio(n, rows * n), x, bias, bias_step, activation};
  const bool packs = dtype != DType::f64 && n % 4 == 0 && reinterpret_cast<uintptr_t>(x) % uint64_t(4 * size) == 0;
  const auto kernel = packs                 ? finish_elements<float, 4>
                      : dtype == DType::f64 ? finish_elements<double, 1>
                                            : finish_elements<float, 1>;
  start(kernel, blocks_for(packs ? rows * n / 4 : rows * n), kThreads, 0, r);
}

}  // namespace pb::cuda
