// The row operations of a linear layer other than its products: the pullback of an activation together with column sums, and bias
// and activation.
#include "cuda/copy.cuh"
#include "cuda/gemm.cuh"

namespace pb::cuda {
namespace {

using kernels::kOrderBlock;

// Threads of a block: the number of columns, and of rows that are pulled back at once. kStage rows are pulled back before they are
// added to the sums.
constexpr int kAcross = 32, kDown = 8, kStage = 64;

struct Columns {
  DType dtype;
  int size;
  int64_t rows, n, pitch;  // pitch: elements from row to row of gz
  unsigned chunks;         // chunks of kOrderBlock rows, one for each block
  Factor g, y;             // the outer axis is the rows
  int activation;
  char *gz, *sums;
  void* partial;
  unsigned* arrivals;
};

// Sums each column in the order of families/order.h, as a sum of products with ones.
template <class C> __global__ void __launch_bounds__(kAcross* kDown) pull_chunk(const __grid_constant__ Columns c) {
  __shared__ C stage[kStage][kAcross];
  const unsigned chunk = blockIdx.x % c.chunks, strip = blockIdx.x / c.chunks;
  const int across = int(threadIdx.x) % kAcross, down = int(threadIdx.x) / kAcross;
  const int64_t column = int64_t(strip) * kAcross + across, begin = chunk * kOrderBlock;
  const int rows = int(c.rows - begin < kOrderBlock ? c.rows - begin : kOrderBlock);
  C sum = 0;
  for (int first = 0; first < rows; first += kStage) {
#pragma unroll
    for (int i = down; i < kStage; i += kDown) {
      const int64_t row = begin + first + i;
      if (first + i >= rows || column >= c.n) break;
      C g = load_element<C>(c.dtype, c.g.data + row * c.g.outer + column * c.g.depth);
      if (c.activation) {
        const C y = load_element<C>(c.dtype, c.y.data + row * c.y.outer + column * c.y.depth);
        kernels::visit_activation(c.activation, [&](auto, auto pullback) { g = pullback(g, y, y); });
      }
      if (c.gz) store_element<C>(c.dtype, c.gz + (row * c.pitch + column) * c.size, g);
      stage[i][across] = g;
    }
    __syncthreads();
    if (c.sums && down == 0 && column < c.n) {
#pragma unroll 8
      for (int i = 0; i < (rows - first < kStage ? rows - first : kStage); ++i) sum += stage[i][across];
    }
    __syncthreads();
  }
  if (!c.sums) return;
  C* const partial = static_cast<C*>(c.partial);
  if (down == 0 && column < c.n) {
    if (c.chunks == 1) store_element<C>(c.dtype, c.sums + column * c.size, sum);
    else partial[chunk * c.n + column] = sum;
  }
  if (c.chunks == 1 || !last_to_arrive(c.arrivals + strip, c.chunks)) return;
  add_runs<kAcross * kDown>(c.chunks, kAcross, [&](int, const Run& run) {
    if (column >= c.n) return;
    const auto place = [&](int i) { return partial + (run.first + i * run.apart) * c.n + column; };
    const C all = add_pairs<Run::kMost>(run.count, [&](int i) { return C(__ldcg(place(i))); });
    if (run.is_last) store_element<C>(c.dtype, c.sums + column * c.size, all);
    else *place(0) = all;
  });
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

void pull_columns(const View& g, const View& y, int activation, char* gz, char* sums) {
  const int64_t rows = g.shape[0], n = g.shape[1], size = item_size(g.dtype);
  if (n == 0 || (rows == 0 && !sums)) return;
  const int64_t chunks = std::max<int64_t>(1, kernels::order_blocks(rows));
  const int64_t most = kAcross * std::min(kTickets, std::max<int64_t>(1, kMaxBlocks / chunks));  // columns of a launch
  for (int64_t first = 0; first < n; first += most) {
    const int64_t some = std::min(most, n - first), blocks = chunks * ((some + kAcross - 1) / kAcross);
    Scratch scratch;
    const Columns c{g.dtype,
                    int(size),
                    rows,
                    some,
                    n,
                    unsigned(chunks),
                    {g.data + first * g.stride[1], g.stride[0], g.stride[1]},
                    {y.data + first * y.stride[1], y.stride[0], y.stride[1]},
                    activation,
                    gz ? gz + first * size : nullptr,
                    sums ? sums + first * size : nullptr,
                    sums && chunks > 1 ? scratch.take<double>(chunks * some) : nullptr,
                    tickets()};
    const auto kernel = g.dtype == DType::f64 ? pull_chunk<double> : pull_chunk<float>;
    start(kernel, dim3(unsigned(blocks)), dim3(kAcross * kDown), 0, c);
  }
}

// Each column takes an addition for every row, and then one for every chunk but one.
Counts work_of_columns(int64_t rows, int64_t n, int activation, bool sums) {
  Counts work;
  work.add(kernels::linear_backward().counts[activation], rows * n);
  if (sums) work.adds += n * (rows + std::max<int64_t>(1, kernels::order_blocks(rows)) - 1);
  return work;
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
