// Positions of the largest or smallest elements along an axis. Of equal elements the first one wins, so the result does not depend
// on the order in which pieces are compared.
#include "cuda/copy.cuh"
#include "cuda/fold.cuh"
#include "families/reduce.h"

namespace pb::cuda {
namespace {

constexpr int kWarps = int(kThreads / kWarp);
constexpr int64_t kLongRow = 1024;     // the most rows of a column that a single warp searches
constexpr int64_t kMostPieces = 256;   // the largest number of pieces of a column: one for each thread of a block
constexpr int64_t kPiece = 8 * 1024;   // the fewest rows per block if neighbouring rows lie closest together
constexpr int64_t kAcrossPiece = 512;  // the fewest rows per block if neighbouring columns lie closest together
constexpr int64_t kNeighbours = 8;     // from this many neighbouring columns on, each column gets a thread

// The operand as columns of `rows` elements each. The `width` columns that belong to one outer position are numbered consecutively.
struct Search {
  const char* data;
  DType dtype;
  Axes outer, inner;
  int64_t columns, rows, width, stride;
  int64_t piece;  // rows per block; 0: each warp takes a whole column
  unsigned pieces = 1;
  int64_t* out;
  void* values = nullptr;  // the best value of each piece
  int64_t* places = nullptr;
  unsigned* tickets = nullptr;
  int64_t first_unit = 0;
  Ratio by_width = Ratio(width, columns);

  __device__ const char* column(int64_t i) const {
    const int64_t o = by_width.divide(i);
    return data + outer.offset(o) + inner.offset(i - o * width);
  }
};

// The best element so far and its position, which is -1 before the first element.
template <class R, class C> struct Best {
  C value{};
  int64_t at = -1;

  __device__ void take(C x, int64_t i) {  // elements must come in order of i
    if (at < 0 || R::better(x, value)) value = x, at = i;
  }
  __device__ void merge(C x, int64_t i) {
    if (i < 0) return;
    if (at < 0 || R::better(x, value) || (i < at && !R::better(value, x))) value = x, at = i;
  }
  // Leaves the best element of the warp in lane 0.
  __device__ void merge_warp() {
#pragma unroll 1
    for (int half = int(kWarp) / 2; half > 0; half /= 2) {
      const C x = shuffle_xor(value, half);
      merge(x, shuffle_xor(at, half));
    }
  }
  // Leaves the best of the elements that the lanes 0 of a block have in thread 0. All threads of the block must call it.
  __device__ void merge_warps() {
    __shared__ C values[kWarps];
    __shared__ int64_t places[kWarps];
    __syncthreads();
    if (threadIdx.x % kWarp == 0) values[threadIdx.x / kWarp] = value, places[threadIdx.x / kWarp] = at;
    __syncthreads();
    if (threadIdx.x == 0)
#pragma unroll 1
      for (int k = 1; k < kWarps; ++k) merge(values[k], places[k]);
  }
  // Takes the elements of rows begin, begin + step, ... below `end`.
  __device__ void look(const Search& s, const char* column, int64_t begin, int64_t end, int step) {
    constexpr int kBatch = std::is_same_v<C, int64_t> ? 4 : 8;
    const char* next = column + begin * s.stride;
    const int64_t by = step * s.stride;
#pragma unroll 1
    for (int64_t row = begin; row < end; row += kBatch * step) {
      const int64_t rows = end - row;
      const int left = int(rows < kBatch * step ? rows : kBatch * step);
      Raw<C> raw[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b, next += by)
        if (b * step < left) raw[b] = load_raw<C>(s.dtype, next);
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
        if (b * step < left) take(widen<C>(s.dtype, raw[b]), row + b * step);
    }
  }
};

// For operands whose neighbouring rows lie closest together: one warp per column, or one block per piece of a column.
template <class R, class C> __global__ void __launch_bounds__(kThreads, 3) search_along(const __grid_constant__ Search s) {
  const bool by_warps = s.piece == 0;
  const int64_t unit = blockIdx.x / s.pieces, piece = blockIdx.x - unit * s.pieces;
  const int64_t i = by_warps ? int64_t(blockIdx.x) * kWarps + threadIdx.x / kWarp : s.first_unit + unit;
  if (i >= s.columns) return;
  const int64_t begin = piece * s.piece, end = by_warps || begin + s.piece > s.rows ? s.rows : begin + s.piece;
  const int step = int(by_warps ? kWarp : kThreads);
  Best<R, C> best;
  best.look(s, s.column(i), begin + threadIdx.x % unsigned(step), end, step);
  best.merge_warp();
  if (by_warps) {
    if (threadIdx.x % kWarp == 0) s.out[i] = best.at;
    return;
  }
  best.merge_warps();
  if (s.pieces > 1) {
    C* values = static_cast<C*>(s.values) + i * s.pieces;
    int64_t* places = s.places + i * s.pieces;
    if (threadIdx.x == 0) values[piece] = best.value, places[piece] = best.at;
    if (!last_to_arrive(s.tickets + unit, unsigned(s.pieces))) return;
    best.at = -1;
    if (threadIdx.x < s.pieces) best.merge(read_fresh(values + threadIdx.x), read_fresh(places + threadIdx.x));
    best.merge_warp();
    best.merge_warps();
  }
  if (threadIdx.x == 0) s.out[i] = best.at;
}

// For operands whose neighbouring columns lie closest together: each lane takes one column, and eight warps share the rows of a
// piece.
template <class R, class C> __global__ void __launch_bounds__(kThreads, 3) search_across(const __grid_constant__ Search s) {
  __shared__ C side_values[kWarps][kWarp];
  __shared__ int64_t side_places[kWarps][kWarp];
  const int x = threadIdx.x % kWarp, y = threadIdx.x / kWarp;
  const int64_t unit = s.first_unit + blockIdx.x / s.pieces, piece = blockIdx.x % s.pieces, i = unit * kWarp + x;
  const int64_t begin = piece * s.piece, end = begin + s.piece < s.rows ? begin + s.piece : s.rows;
  Best<R, C> best;
  if (i < s.columns) best.look(s, s.column(i), begin + y, end, kWarps);
  const auto merge_warps = [&] {
    __syncthreads();
    side_values[y][x] = best.value, side_places[y][x] = best.at;
    __syncthreads();
    if (y == 0)
#pragma unroll 1
      for (int k = 1; k < kWarps; ++k) best.merge(side_values[k][x], side_places[k][x]);
  };
  merge_warps();
  if (s.pieces > 1) {
    C* values = static_cast<C*>(s.values) + i;
    if (y == 0 && i < s.columns) values[piece * s.columns] = best.value, s.places[piece * s.columns + i] = best.at;
    if (!last_to_arrive(s.tickets + (unit - s.first_unit), unsigned(s.pieces))) return;
    best.at = -1;
    if (i < s.columns)
#pragma unroll 1
      for (int64_t k = y; k < s.pieces; k += kWarps)
        best.merge(read_fresh(values + k * s.columns), read_fresh(s.places + k * s.columns + i));
    merge_warps();
  }
  if (y == 0 && i < s.columns) s.out[i] = best.at;
}

int64_t rounded_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class R, class C> void search(Search& s, bool across) {
  Scratch scratch;
  if (!across && s.rows <= kLongRow) {
    s.piece = 0;
    return start(search_along<R, C>, blocks_for(s.columns, kWarps), kThreads, 0, s);
  }
  s.piece = std::max(across ? kAcrossPiece : kPiece, rounded_up(s.rows, kMostPieces));
  s.pieces = unsigned(rounded_up(s.rows, s.piece));
  if (s.pieces > 1) {
    s.values = scratch.take<C>(s.columns * s.pieces), s.places = scratch.take<int64_t>(s.columns * s.pieces);
    s.tickets = tickets();
  }
  const int64_t units = across ? rounded_up(s.columns, kWarp) : s.columns;
  for (s.first_unit = 0; s.first_unit < units; s.first_unit += kTickets) {
    const int64_t some = std::min(kTickets, units - s.first_unit);
    start(across ? search_across<R, C> : search_along<R, C>, dim3(unsigned(some * s.pieces)), kThreads, 0, s);
  }
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void arg_reduce(const Launch& launch) {
  const View& x = launch.in();
  if (launch.out().size() == 0) return;
  const int axis = int(launch.ints[0]);
  const View outer = cuda::axes_of(x, 0, axis), inner = cuda::axes_of(x, axis + 1, x.ndim);
  cuda::Search s{x.data,
                 x.dtype,
                 cuda::Axes(outer),
                 cuda::Axes(inner),
                 outer.size() * inner.size(),
                 x.shape[axis],
                 inner.size(),
                 x.stride[axis],
                 0,
                 1,
                 launch.out().as<int64_t>()};
  // A warp reads along whichever direction has the smaller stride.
  const View& last = inner.ndim > 0 ? inner : outer;
  const bool across = last.ndim > 0 && last.shape[last.ndim - 1] >= cuda::kNeighbours &&
                      std::abs(last.stride[last.ndim - 1]) < std::abs(s.stride);
  visit(compute_type(x.dtype), [&](auto tag) {
    using C = typename decltype(tag)::type;
    if (launch.ints[1]) cuda::search<Smallest, C>(s, across);
    else cuda::search<Largest, C>(s, across);
  });
}

}  // namespace pb::kernels
