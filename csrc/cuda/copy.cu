// Copies between operands of one dtype: in units of up to 16 bytes where both sides are contiguous, in tiles if the copy
// transposes, otherwise one unit per thread.
#include "cuda/copy.cuh"

#include <utility>

#include "cuda/cast.cuh"

namespace pb::cuda {
namespace {

constexpr int kEach = 4;                       // units per thread
constexpr int64_t kSpread = int64_t{1} << 18;  // below this number of units each thread takes one unit, so that more blocks run
constexpr unsigned kTile = 32, kTileRows = 8;  // 32 by 8 threads transpose a tile
constexpr int64_t kTurned = 4;                 // the shortest axis worth a tiled transposition

// Copies n units, then `tail` bytes.
template <class U, int kUnits>
__global__ void __launch_bounds__(kThreads) copy_units(int64_t n, int tail, char* out, const char* in) {
  const int64_t first = int64_t(blockIdx.x) * (kThreads * kUnits) + threadIdx.x;
  U x[kUnits];
#pragma unroll
  for (int k = 0; k < kUnits; ++k)
    if (first + k * kThreads < n) x[k] = reinterpret_cast<const U*>(in)[first + k * kThreads];
#pragma unroll
  for (int k = 0; k < kUnits; ++k)
    if (first + k * kThreads < n) reinterpret_cast<U*>(out)[first + k * kThreads] = x[k];
  if (first == 0)
    for (int64_t i = n * int64_t(sizeof(U)), k = 0; k < tail; ++k) out[i + k] = in[i + k];
}

// Fills n units, then `tail` bytes, which are whole elements. `number` holds the bits of one element of `size` bytes.
template <class U, int kUnits>
__global__ void __launch_bounds__(kThreads) fill_units(int64_t n, int tail, char* out, U value, uint64_t number, int size) {
  const int64_t first = int64_t(blockIdx.x) * (kThreads * kUnits) + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kUnits; ++k)
    if (first + k * kThreads < n) reinterpret_cast<U*>(out)[first + k * kThreads] = value;
  if (first == 0)
    for (int k = 0; k < tail; ++k) out[n * int64_t(sizeof(U)) + k] = char(number >> 8 * (k % size));
}

template <class U>
__global__ void __launch_bounds__(kThreads)
    copy_strided(uint32_t n, char* out, const char* in, const __grid_constant__ Walk<2> walk) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= n) return;
  int64_t offset[2];
  walk.offsets(i, offset);
  *reinterpret_cast<U*>(out + offset[0]) = *reinterpret_cast<const U*>(in + offset[1]);
}

template <class U>
__global__ void __launch_bounds__(kThreads) fill_strided(uint32_t n, char* out, U value, const __grid_constant__ Walk<1> walk) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= n) return;
  int64_t offset[1];
  walk.offsets(i, offset);
  *reinterpret_cast<U*>(out + offset[0]) = value;
}

// Transposes planes of `rows` by `columns` elements: the rows of `out` and the columns of `in` are contiguous. `planes` iterates
// over the leading axes.
struct Turn {
  uint32_t rows, columns;
  Divider down, across;  // tiles per plane
  int64_t step, stride;  // bytes from row to row of `out`, from column to column of `in`
};

// Each thread moves kPack consecutive elements at a time: 4 bytes together if the operands are aligned to 4 bytes.
template <class U, int kPack>
__global__ void __launch_bounds__(kTile* kTileRows)
    turn_tiles(char* out, const char* in, const __grid_constant__ Turn turn, const __grid_constant__ Walk<2> planes) {
  struct __align__(sizeof(U) * kPack) Neighbours {
    U v[kPack];
  };
  constexpr uint32_t kSide = kTile * kPack;
  __shared__ U tile[kSide][kSide + 1];
  const uint32_t band = turn.across.divide(blockIdx.x), plane = turn.down.divide(band);
  const uint32_t row = (band - plane * turn.down.divisor) * kSide;
  const uint32_t column = (blockIdx.x - band * turn.across.divisor) * kSide;
  const uint32_t x = threadIdx.x * kPack;
  int64_t offset[2];
  planes.offsets(plane, offset);
#pragma unroll 4
  for (uint32_t k = threadIdx.y; k < kSide; k += kTileRows) {
    if (row + x >= turn.rows || column + k >= turn.columns) continue;
    const U* from = reinterpret_cast<const U*>(in + offset[1] + int64_t(column + k) * turn.stride) + row + x;
    const bool whole = row + x + kPack <= turn.rows;
    const Neighbours pack = whole ? *reinterpret_cast<const Neighbours*>(from) : Neighbours{};
#pragma unroll
    for (int j = 0; j < kPack; ++j)
      if (whole || row + x + j < turn.rows) tile[k][x + j] = whole ? pack.v[j] : from[j];
  }
  __syncthreads();
#pragma unroll 4
  for (uint32_t k = threadIdx.y; k < kSide; k += kTileRows) {
    if (row + k >= turn.rows || column + x >= turn.columns) continue;
    U* to = reinterpret_cast<U*>(out + offset[0] + int64_t(row + k) * turn.step) + column + x;
    Neighbours pack;
#pragma unroll
    for (int j = 0; j < kPack; ++j)
      if (column + x + j < turn.columns) pack.v[j] = tile[x + j][k];
    if (column + x + kPack <= turn.columns) {
      *reinterpret_cast<Neighbours*>(to) = pack;
    } else {
#pragma unroll
      for (int j = 0; j < kPack; ++j)
        if (column + x + j < turn.columns) to[j] = pack.v[j];
    }
  }
}

template <class U, int kPack> void turn_with(const View* views) {
  View lead[2] = {views[0], views[1]};
  const int ndim = views[0].ndim, row = ndim - 2, column = ndim - 1;
  for (View& v : lead) v.ndim -= 2;
  const auto tiles = [](int64_t length) { return (length + kTile * kPack - 1) / (kTile * kPack); };
  const int64_t down = tiles(views[0].shape[row]), across = tiles(views[0].shape[column]);
  const Turn turn{uint32_t(views[0].shape[row]), uint32_t(views[0].shape[column]),
                  Divider(uint32_t(down)),       Divider(uint32_t(across)),
                  views[0].stride[row],          views[1].stride[column]};
  start(turn_tiles<U, kPack>, blocks_for(lead[0].size() * down * across, 1), dim3(kTile, kTileRows), 0, views[0].data,
        views[1].data, turn, Walk<2>(lead));
}

template <class U> void turn_planes(const View* views) {
  if constexpr (sizeof(U) < 4) {
    uint64_t together = address(views[0]) | address(views[1]);
    for (int d = 0; d < views[0].ndim; ++d) {
      if (d != views[0].ndim - 1) together |= uint64_t(views[0].stride[d]);
      if (d != views[0].ndim - 2) together |= uint64_t(views[1].stride[d]);
    }
    if (together % 4 == 0) return turn_with<U, int(4 / sizeof(U))>(views);
  }
  turn_with<U, 1>(views);
}

// Moves the axis along which `in` is contiguous next to the last axis. Returns false if there is no such axis.
bool turn_plane(View* views, int64_t size) {
  const int last = views[0].ndim - 1;
  if (views[0].stride[last] != size || views[0].shape[last] < kTurned) return false;
  for (int d = 0; d < last; ++d) {
    if (views[1].stride[d] != size || views[0].shape[d] < kTurned) continue;
    for (int v = 0; v < 2; ++v)
      for (int k = d; k + 1 < last; ++k) {
        std::swap(views[v].shape[k], views[v].shape[k + 1]);
        std::swap(views[v].stride[k], views[v].stride[k + 1]);
      }
    return true;
  }
  return false;
}

// Calls f(U{}, units, bytes of the tail) for a contiguous run of bytes. `together` is the bitwise OR of the run's addresses.
template <class F> void as_units(int64_t bytes, uint64_t together, F&& f) {
  visit_unit(unit_of(together), [&](auto u) { f(u, bytes / int64_t(sizeof u), int(bytes % int64_t(sizeof u))); });
}

void copy_run(const View& out, const View& in) {
  as_units(out.bytes(), address(out) | address(in), [&](auto u, int64_t n, int tail) {
    using U = decltype(u);
    if (n < kSpread) return start(copy_units<U, 1>, blocks_for(n + (n == 0)), kThreads, 0, n, tail, out.data, in.data);
    start(copy_units<U, kEach>, blocks_for(n, kThreads * kEach), kThreads, 0, n, tail, out.data, in.data);
  });
}

void fill_run(const View& out, uint64_t number, int size) {
  as_units(out.bytes(), address(out), [&](auto u, int64_t n, int tail) {
    using U = decltype(u);
    const U value = repeated<U>(number, size);
    if (n < kSpread)
      return start(fill_units<U, 1>, blocks_for(n + (n == 0)), kThreads, 0, n, tail, out.data, value, number, size);
    start(fill_units<U, kEach>, blocks_for(n, kThreads * kEach), kThreads, 0, n, tail, out.data, value, number, size);
  });
}

// If all views are contiguous along the last axis, reinterprets that axis in the largest unit that fits. Returns the unit's size in
// bytes.
int64_t widen_last_axis(View* views, int count, int64_t size) {
  const int last = views[0].ndim - 1;
  uint64_t together = uint64_t(views[0].shape[last] * size);
  for (int k = 0; k < count; ++k) {
    if (views[k].stride[last] != size) return size;
    together |= address(views[k]);
    for (int d = 0; d < last; ++d) together |= uint64_t(views[k].stride[d]);
  }
  const int64_t unit = unit_of(together);
  for (int k = 0; k < count; ++k) views[k].shape[last] = views[k].shape[last] * size / unit, views[k].stride[last] = unit;
  return unit;
}

// Collapses the views. A view without axes gets one axis of length 1.
void collapse_some(View* views, int count, int64_t size) {
  collapse(views, count);
  for (int k = 0; k < count; ++k)
    if (views[k].ndim == 0) views[k].ndim = 1, views[k].shape[0] = 1, views[k].stride[0] = size;
}

void assign_same_dtype(View out, View in) {
  View views[2] = {out, in};
  const int64_t size = item_size(out.dtype);
  collapse_some(views, 2, size);
  if (views[0].contiguous() && views[1].contiguous()) return copy_run(views[0], views[1]);
  const int64_t unit = widen_last_axis(views, 2, size);
  each_part(views, 2, [unit](View* part) {
    View turned[2] = {part[0], part[1]};
    visit_unit(unit, [&](auto u) {
      using U = decltype(u);
      if constexpr (sizeof(U) <= 8)
        if (turn_plane(turned, unit)) return turn_planes<U>(turned);
      const int64_t n = part[0].size();
      start(copy_strided<U>, blocks_for(n), kThreads, 0, uint32_t(n), part[0].data, part[1].data, Walk<2>(part));
    });
  });
}

}  // namespace

void assign(View out, View in) {
  PB_CHECK_EQ(out.size(), in.size());
  if (out.size() == 0) return;
  if (out.dtype == in.dtype) assign_same_dtype(out, in);
  else assign_cast(out, in);
}

void assign_number(View out, uint64_t number) {
  if (out.size() == 0) return;
  const int size = item_size(out.dtype);
  collapse_some(&out, 1, size);
  if (out.contiguous()) return fill_run(out, number, size);
  visit_unit(widen_last_axis(&out, 1, size), [&](auto u) {
    using U = decltype(u);
    each_part(&out, 1, [&](View* part) {
      const int64_t n = part[0].size();
      start(fill_strided<U>, blocks_for(n), kThreads, 0, uint32_t(n), part[0].data, repeated<U>(number, size), Walk<1>(part));
    });
  });
}

View contiguous_as(DType dtype, const View& v, Scratch& scratch) {
  if (v.dtype == dtype && v.contiguous()) return v;
  const View whole = contiguous_view(scratch.take_bytes(size_t(v.size()) * size_t(item_size(dtype))), dtype, v);
  assign(whole, v);
  return whole;
}

}  // namespace pb::cuda

namespace pb::kernels {

void copy(const Launch& launch) { cuda::assign(launch.out(), launch.in()); }

void fill(const Launch& launch) { cuda::assign_number(launch.out(), number_of(launch)); }

}  // namespace pb::kernels
