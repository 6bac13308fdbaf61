// The row operations of a linear layer other than its products: the pullback of an activation together with column sums, and bias
// and activation.
#include "cuda/copy.cuh"
#include "cuda/gemm.cuh"

namespace pb::cuda {
namespace {

constexpr int kAcross = 32, kDown = 8;  // threads of a block: the number of columns, and of rows processed at once
constexpr int64_t kRows = 256;          // the smallest number of rows per block
constexpr int64_t kMostChunks = 1024;   // the largest number of chunks that the rows are cut into

struct Columns {
  DType dtype;
  int size;
  int64_t rows, n, chunk;  // chunk: rows per block
  unsigned chunks;
  Factor g, y;  // the outer axis is the rows
  int activation;
  char *gz, *sums;
  void* partial;
  unsigned* arrivals;
};

template <class C> __global__ void __launch_bounds__(kAcross* kDown) pull_chunk(const __grid_constant__ Columns c) {
  __shared__ C shared[kDown][kAcross];
  const unsigned chunk = blockIdx.x % c.chunks, strip = blockIdx.x / c.chunks;
  const int across = int(threadIdx.x) % kAcross, down = int(threadIdx.x) / kAcross;
  const int64_t column = int64_t(strip) * kAcross + across, begin = chunk * c.chunk;
  const int64_t end = begin + c.chunk < c.rows ? begin + c.chunk : c.rows;
  Sum<C> sum;
  if (column < c.n) {
    for (int64_t row = begin + down; row < end; row += kDown) {
      C g = load_element<C>(c.dtype, c.g.data + row * c.g.outer + column * c.g.depth);
      if (c.activation) {
        const C y = load_element<C>(c.dtype, c.y.data + row * c.y.outer + column * c.y.depth);
        kernels::visit_activation(c.activation, [&](auto, auto pullback) { g = pullback(g, y, y); });
      }
      if (c.gz) store_element<C>(c.dtype, c.gz + (row * c.n + column) * c.size, g);
      sum.add(g);
    }
  }
  if (!c.sums) return;
  shared[down][across] = sum.total();
  __syncthreads();
  C* const partial = static_cast<C*>(c.partial);
  if (down == 0 && column < c.n) {
    Sum<C> all;
    for (int k = 0; k < kDown; ++k) all.add(shared[k][across]);
    if (c.chunks == 1) store_element<C>(c.dtype, c.sums + column * c.size, all.total());
    else partial[chunk * c.n + column] = all.total();
  }
  if (c.chunks == 1 || !last_to_arrive(c.arrivals + strip, c.chunks) || down != 0 || column >= c.n) return;
  Sum<C> all;
  for (unsigned k = 0; k < c.chunks; ++k) all.add(__ldcg(partial + k * c.n + column));
  store_element<C>(c.dtype, c.sums + column * c.size, all.total());
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

// The split of the matrix into strips of columns and chunks of rows.
struct Strips {
  int64_t strips, chunk, chunks;

  Strips(int64_t rows, int64_t n) : strips((n + kAcross - 1) / kAcross) {
    chunk = std::max(kRows, (rows + kMostChunks - 1) / kMostChunks);
    if (strips > kTickets) chunk = std::max<int64_t>(1, rows);
    chunks = std::max<int64_t>(1, (rows + chunk - 1) / chunk);
  }
};

}  // namespace

void pull_columns(const View& g, const View& y, int activation, char* gz, char* sums) {
  const int64_t rows = g.shape[0], n = g.shape[1];
  if (n == 0 || (rows == 0 && !sums)) return;
  const auto [strips, chunk, chunks] = Strips(rows, n);
  if (chunks * strips > kMaxBlocks) throw Failure("a layer with too many outputs");
  Scratch scratch;
  Columns c{g.dtype,
            item_size(g.dtype),
            rows,
            n,
            chunk,
            unsigned(chunks),
            {g.data, g.stride[0], g.stride[1]},
            {y.data, y.stride[0], y.stride[1]},
            activation,
            gz,
            sums,
            nullptr,
            nullptr};
  if (sums && chunks > 1) {
    c.partial = scratch.take<double>(chunks * n);
    c.arrivals = tickets();
  }
  const auto kernel = g.dtype == DType::f64 ? pull_chunk<double> : pull_chunk<float>;
  start(kernel, dim3(unsigned(chunks * strips)), dim3(kAcross * kDown), 0, c);
}

// Each thread sums its rows of a column; one thread per column adds up the block's partial sums; the last block to finish adds up
// those of all blocks.
Counts work_of_columns(DType dtype, int64_t rows, int64_t n, int activation, bool sums) {
  Counts work;
  if (n == 0 || (rows == 0 && !sums)) return work;
  work.add(kernels::linear_backward().counts[activation], rows * n);
  if (!sums) return work;
  const Strips s(rows, n);
  const int64_t each = additions_of_sum(dtype);
  work.adds += rows * n * each + s.chunks * s.strips * kAcross * kDown + s.chunks * n * (kDown * each + 1);
  if (s.chunks > 1) work.adds += n * (s.chunks * each + 1);
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
