// Gathers. They move bytes, so there is one loop per item size, not per dtype.
#include "cpu/index.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu/copy.h"
#include "cpu/nontemporal.h"
#include "cpu/pool.h"
#include "cpu/stream.h"

namespace pb::cpu {
namespace {

constexpr int64_t kGrain = 16 * 1024;  // the fewest elements per thread; a gather takes about 1 ns per element

template <class F> void visit_size(int size, F&& f) {
  switch (size) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    default: return f(uint64_t{});
  }
}

}  // namespace

View contiguous_as(DType dtype, const View& v, Scratch& scratch) {
  if (v.dtype == dtype && v.contiguous()) return v;
  const View whole = contiguous_view(scratch.take_bytes(v.size() * item_size(dtype)), dtype, v);
  assign(whole, v);
  return whole;
}

const int64_t* resolve(const View& indices, int64_t length, Negative negative, Scratch& scratch) {
  const int64_t n = indices.size();
  const View whole = contiguous_as(DType::i64, indices, scratch);
  int64_t* index = whole.data == indices.data ? scratch.take<int64_t>(n) : whole.as<int64_t>();
  if (index != whole.as<int64_t>()) std::memcpy(index, whole.data, n * sizeof(int64_t));
  // A uint64 index too large for int64 has become negative, and must not count from the end.
  const int64_t from_end = negative == Negative::from_end && indices.dtype != DType::u64 ? length : 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = index[i] < 0 ? index[i] + from_end : index[i];
    if (at < 0 || at >= length) throw OutOfRange{i, index[i], length};
    index[i] = at;
  }
  return index;
}

namespace {

// Contiguous rows of `row_bytes` bytes. They are `step` bytes apart along the axis, and `outer_step` bytes apart along the axes
// before it.
struct Rows {
  const char* data;
  int64_t outer_step, step, row_bytes;
};

template <class T> void take_elements(char* out, const char* x, int64_t step, const int64_t* index, int64_t n) {
  T* y = reinterpret_cast<T*>(out);
  if (step == int64_t(sizeof(T))) {
    const T* p = reinterpret_cast<const T*>(x);
    for (int64_t i = 0; i < n; ++i) y[i] = p[index[i]];
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = *reinterpret_cast<const T*>(x + index[i] * step);
  }
}

// A gather may read a small table many times. A result that fills half the caches is written by non-temporal stores, so that the
// table stays cached.
constexpr int64_t kNontemporalRows = kNontemporalBytes / 2;  // the size of the result in bytes

void copy_rows(char* out, const Rows& x, const int64_t* index, int64_t n, bool nontemporal) {
  for (int64_t k = 0; k < n; ++k) {
    const char* from = x.data + index[k] * x.step;
    if (nontemporal) store_nontemporal(out + k * x.row_bytes, from, x.row_bytes);
    else std::memcpy(out + k * x.row_bytes, from, x.row_bytes);
  }
  if (nontemporal) nontemporal_fence();
}

void take_rows(char* out, const Rows& x, int64_t outer, const Positions& positions, int64_t n, int size) {
  const bool nontemporal = x.row_bytes % 64 == 0 && outer * n * x.row_bytes >= kNontemporalRows;
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, x.row_bytes / 8));
  parallel_for(outer * n, grain, [&](int64_t begin, int64_t end) {
    int64_t near[Positions::kBlock];
    for (int64_t r = begin; r < end;) {
      const int64_t o = r / n, j = r % n, run = std::min({end - r, n - j, Positions::kBlock});
      const int64_t* index = positions.block(j, run, near);
      if (!index) return;
      const Rows slice{x.data + o * x.outer_step, 0, x.step, x.row_bytes};
      char* to = out + r * x.row_bytes;
      if (x.row_bytes == size) {
        visit_size(size, [&](auto t) { take_elements<decltype(t)>(to, slice.data, x.step, index, run); });
      } else {
        copy_rows(to, slice, index, run, nontemporal);
      }
      r += run;
    }
  });
}

// Returns true, and sets `rows`, if x is contiguous along the axes after `axis`, and one stride covers the axes before it.
bool as_rows(const View& x, int axis, Rows& rows) {
  View before = x, after = x;
  before.ndim = axis;
  after.ndim = x.ndim - axis - 1;
  for (int d = 0; d < after.ndim; ++d) after.shape[d] = x.shape[axis + 1 + d], after.stride[d] = x.stride[axis + 1 + d];
  collapse(&before, 1);
  if (before.ndim > 1 || !after.contiguous()) return false;
  rows = {x.data, before.ndim ? before.stride[0] : 0, x.stride[axis], after.bytes()};
  return true;
}

View without_axis(View v, int axis, int count) {
  for (int d = axis; d + count < v.ndim; ++d) v.shape[d] = v.shape[d + count], v.stride[d] = v.stride[d + count];
  v.ndim -= count;
  return v;
}

// Copies slice by slice. It is for a strided x that is much larger than the result, so that a contiguous copy of x would cost more.
void take_slices(const Launch& launch, const Positions& positions, int64_t n) {
  const int axis = int(launch.ints[0]);
  View from = without_axis(launch.in(0), axis, 1), to = without_axis(launch.out(), axis, launch.in(1).ndim);
  int64_t step = item_size(to.dtype);
  for (int d = axis; d < to.ndim; ++d) step *= to.shape[d];
  for (int64_t j = 0, at; j < n; ++j) {
    if (!positions.block(j, 1, &at)) return;
    from.data = launch.in(0).data + at * launch.in(0).stride[axis];
    to.data = launch.out().data + j * step;
    assign(to, from);
  }
}

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

using namespace cpu;

void take(const Launch& launch) {
  const int axis = int(launch.ints[0]);
  const View& out = launch.out();
  View x = launch.in(0);
  Scratch scratch;
  const int64_t n = launch.in(1).size();
  const Negative negative = Negative(launch.ints[1]);
  if (out.size() == 0) return void(resolve(launch.in(1), x.shape[axis], negative, scratch));
  Rows rows;
  const bool by_slices = !as_rows(x, axis, rows) && x.size() > 4 * out.size();
  if (!by_slices && !as_rows(x, axis, rows)) {
    x = contiguous_as(x.dtype, x, scratch);
    as_rows(x, axis, rows);
  }
  with_positions(launch.in(1), x.shape[axis], negative, scratch, [&](const Positions& positions) {
    if (by_slices) take_slices(launch, positions, n);
    else take_rows(out.data, rows, split_at(x, axis).outer, positions, n, item_size(x.dtype));
  });
}

namespace {

// Computes elements [begin, end) of the flat result: y[o, j, i] = x[o, index[o, j, i], i].
template <class T>
void take_along(T* y, const T* x, const Positions& positions, const AxisSplit& a, int64_t n, int64_t begin, int64_t end) {
  const int64_t row = a.inner > 1 ? a.inner : n, step = a.inner > 1;
  int64_t near[Positions::kBlock];
  for (int64_t p = begin; p < end;) {
    const int64_t i = p % row, run = std::min({end - p, row - i, Positions::kBlock});
    const int64_t* index = positions.block(p, run, near);
    if (!index) return;
    const T* from = x + p / (n * a.inner) * a.length * a.inner + i * step;
    for (int64_t k = 0; k < run; ++k) y[p + k] = from[index[k] * a.inner + k * step];
    p += run;
  }
}

}  // namespace

void take_along_axis(const Launch& launch) {
  const int axis = int(launch.ints[0]);
  Scratch scratch;
  const AxisSplit a = split_at(launch.in(0), axis);
  const int64_t n = launch.in(1).shape[axis];
  if (launch.out().size() == 0) return;
  const View x = contiguous_as(launch.in(0).dtype, launch.in(0), scratch);
  with_positions(launch.in(1), a.length, Negative::from_end, scratch, [&](const Positions& positions) {
    visit_size(item_size(x.dtype), [&](auto t) {
      using T = decltype(t);
      parallel_for(launch.out().size(), kGrain, [&](int64_t begin, int64_t end) {
        take_along(launch.out().as<T>(), x.as<T>(), positions, a, n, begin, end);
      });
    });
  });
}

void one_hot(const Launch& launch) {
  const View& out = launch.out();
  const int64_t n = launch.in().size(), depth = out.shape[out.ndim - 1];
  const int size = item_size(out.dtype);
  Scratch scratch;
  const double one = 1;
  char bits[8];
  store(Compute::f64, out.dtype, &one, 1, bits, size);
  const int64_t grain = std::max<int64_t>(1, 8 * kGrain / std::max<int64_t>(1, depth * size));
  with_positions(launch.in(), depth, Negative::refused, scratch, [&](const Positions& positions) {
    parallel_for(n, grain, [&](int64_t begin, int64_t end) {
      int64_t near[Positions::kBlock];
      for (int64_t first = begin; first < end; first += Positions::kBlock) {
        const int64_t rows = std::min(Positions::kBlock, end - first);
        const int64_t* index = positions.block(first, rows, near);
        if (!index) return;
        char* row = out.data + first * depth * size;
        std::memset(row, 0, rows * depth * size);
        for (int64_t i = 0; i < rows; ++i) std::memcpy(row + (i * depth + index[i]) * size, bits, size);
      }
    });
  });
}

namespace {

constexpr int64_t kNonzeroPiece = 64 * 1024;

// Calls f(piece, flags, position, n) for the blocks of each piece of the collapsed x. A flag is 1 if its element is not zero.
template <class F> void for_flags(View x, F&& f) {
  collapse(&x, 1);
  const int64_t size = x.size();
  parallel_for((size + kNonzeroPiece - 1) / kNonzeroPiece, 1, [&](int64_t begin, int64_t end) {
    uint8_t buffer[kBlock];
    Reader reader(x, Compute::b8);
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t stop = std::min(size, (piece + 1) * kNonzeroPiece);
      for (int64_t i = piece * kNonzeroPiece; i < stop; i += kBlock) {
        const int64_t n = std::min(kBlock, stop - i);
        f(piece, static_cast<const uint8_t*>(reader.block(i, n, buffer)), i, n);
      }
    }
  });
}

}  // namespace

int64_t nonzero_pieces(int64_t size) { return (size + kNonzeroPiece - 1) / kNonzeroPiece; }

void nonzero_count(const Launch& launch) {
  int64_t* counts = launch.out().as<int64_t>();
  const int64_t pieces = launch.out().size() - 1;
  std::fill_n(counts, pieces + 1, 0);
  for_flags(launch.in(), [&](int64_t piece, const uint8_t* flags, int64_t, int64_t n) {
    int32_t count = 0;
    for (int64_t i = 0; i < n; ++i) count += flags[i] != 0;
    counts[piece] += count;
  });
  for (int64_t k = 0, total = 0; k <= pieces; ++k) total += std::exchange(counts[k], total);
}

int64_t read_total(const View& counts) { return counts.as<int64_t>()[counts.size() - 1]; }

void nonzero_flat(const Launch& launch) {
  if (launch.out().size() == 0) return;
  Scratch scratch;
  const int64_t pieces = launch.in(1).size();
  const int64_t* starts = launch.in(1).as<int64_t>();
  int64_t* next = scratch.take<int64_t>(pieces);
  std::copy_n(starts, pieces, next);
  for_flags(launch.in(0), [&](int64_t piece, const uint8_t* flags, int64_t start, int64_t n) {
    int64_t found[kBlock];  // positions of zeros are written too, then overwritten, which avoids a branch
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) found[count] = start + i, count += flags[i] != 0;
    count = std::min(count, starts[piece + 1] - next[piece]);  // another thread may have written to x since it was counted
    std::memcpy(launch.out().as<int64_t>() + next[piece], found, count * sizeof(int64_t));
    next[piece] += count;
  });
}

}  // namespace pb::kernels
