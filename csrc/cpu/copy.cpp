// Moves elements: rows that are contiguous on both sides by memcpy, transposed planes in tiles, all others one by one.
#include "cpu/copy.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu/nontemporal.h"
#include "cpu/pool.h"
#include "cpu/shuffle.h"
#include "cpu/stream.h"
#include "math/convert.h"

namespace pb::cpu {
namespace {

constexpr int64_t kGrainBytes = 256 * 1024;  // the fewest bytes per thread: about 10 us
constexpr int64_t kTile = 32;

int64_t grain_for(int64_t bytes_each) { return std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(bytes_each, 1)); }

void copy_bytes(char* out, const char* in, int64_t bytes) {
  const bool nontemporal = bytes >= kNontemporalBytes;
  parallel_for(bytes, kGrainBytes, [=](int64_t begin, int64_t end) {
    if (!nontemporal) return void(std::memcpy(out + begin, in + begin, end - begin));
    store_nontemporal(out + begin, in + begin, end - begin);
    nontemporal_fence();
  });
}

// Calls f(pointer into out, pointer into in) for each index [begin, end) of the first `axes` axes.
template <class F>
void for_each(const View& out, const View& in, int axes, int64_t begin, int64_t end, F&& f) {
  int64_t at[kMaxDims];
  char* o = out.data;
  const char* p = in.data;
  int64_t rest = begin;
  for (int d = axes - 1; d >= 0; --d) {
    at[d] = rest % out.shape[d];
    rest /= out.shape[d];
    o += at[d] * out.stride[d], p += at[d] * in.stride[d];
  }
  for (int64_t i = begin; i < end; ++i) {
    f(o, p);
    for (int d = axes - 1; d >= 0; --d) {
      o += out.stride[d], p += in.stride[d];
      if (++at[d] < out.shape[d]) break;
      o -= at[d] * out.stride[d], p -= at[d] * in.stride[d], at[d] = 0;
    }
  }
}

int64_t count_of(const View& v, int axes) {
  int64_t n = 1;
  for (int d = 0; d < axes; ++d) n *= v.shape[d];
  return n;
}

template <class T> T element(const char* p) { return *reinterpret_cast<const T*>(p); }
template <class T> T& element(char* p) { return *reinterpret_cast<T*>(p); }

void assign_rows(const View& out, const View& in, int64_t row_bytes) {
  const int axes = out.ndim - 1;
  const int64_t rows = count_of(out, axes);
  const bool nontemporal = row_bytes >= 2048 && rows * row_bytes >= kNontemporalBytes;
  parallel_for(rows, grain_for(row_bytes), [&](int64_t begin, int64_t end) {
    for_each(out, in, axes, begin, end, [=](char* o, const char* p) {
      if (nontemporal) store_nontemporal(o, p, row_bytes);
      else std::memcpy(o, p, row_bytes);
    });
    nontemporal_fence();
  });
}

template <class T> void assign_elements(const View& out, const View& in) {
  const int axes = out.ndim - 1;
  const int64_t n = out.shape[axes], step = out.stride[axes], stride = in.stride[axes];
  parallel_for(count_of(out, axes), grain_for(8 * n * int64_t(sizeof(T))), [&](int64_t begin, int64_t end) {
    for_each(out, in, axes, begin, end, [=](char* o, const char* p) {
      for (int64_t i = 0; i < n; ++i) element<T>(o + i * step) = element<T>(p + i * stride);
    });
  });
}

// Sets tile[i][j] to from[j][i]. It transposes blocks of 4 by 4 elements in registers.
template <class T> void turn_tile(T (&tile)[kTile][kTile], const char* from, int64_t stride) {
  typedef T Four __attribute__((vector_size(4 * sizeof(T))));
  const auto row = [](const char* p) {
    Four v;
    std::memcpy(&v, p, sizeof v);
    return v;
  };
  for (int64_t j = 0; j < kTile; j += 4)
    for (int64_t i = 0; i < kTile; i += 4) {
      const char* p = from + j * stride + i * int64_t(sizeof(T));
      const Four a = row(p), b = row(p + stride), c = row(p + 2 * stride), d = row(p + 3 * stride);
      const Four ac = pick_lanes<0, 4, 1, 5>(a, c), bd = pick_lanes<0, 4, 1, 5>(b, d);
      const Four ac2 = pick_lanes<2, 6, 3, 7>(a, c), bd2 = pick_lanes<2, 6, 3, 7>(b, d);
      const Four turned[4] = {pick_lanes<0, 4, 1, 5>(ac, bd), pick_lanes<2, 6, 3, 7>(ac, bd), pick_lanes<0, 4, 1, 5>(ac2, bd2),
                              pick_lanes<2, 6, 3, 7>(ac2, bd2)};
      for (int k = 0; k < 4; ++k) std::memcpy(&tile[i + k][j], &turned[k], sizeof turned[k]);
    }
}

// Copies `in`, whose last axis but one is contiguous, to `out`, whose last axis is. Tiles are transposed in a buffer, which is read
// and written line by line. Lines that are far apart then need not stay in the cache together, which they do not if their distance
// is a power of two.
template <class T> void assign_transposed(const View& out, const View& in) {
  const int lead = out.ndim - 2;
  const int64_t rows = out.shape[lead], columns = out.shape[lead + 1];
  const int64_t step = out.stride[lead], stride = in.stride[lead + 1];
  const int64_t panels = (rows + kTile - 1) / kTile;
  const auto move_panel = [=](char* o, const char* p, int64_t first) {
    alignas(64) T tile[kTile][kTile];
    const int64_t last = std::min(first + kTile, rows), height = last - first;
    for (int64_t j0 = 0; j0 < columns; j0 += kTile) {
      const int64_t width = std::min(kTile, columns - j0);
      const char* from = p + first * int64_t(sizeof(T)) + j0 * stride;
      if (height == kTile && width == kTile) turn_tile(tile, from, stride);
      else
        for (int64_t j = 0; j < width; ++j)
          for (int64_t i = 0; i < height; ++i) tile[i][j] = reinterpret_cast<const T*>(from + j * stride)[i];
      for (int64_t i = 0; i < height; ++i) std::memcpy(o + (first + i) * step + j0 * sizeof(T), tile[i], width * sizeof(T));
    }
  };
  const int64_t bytes = kTile * columns * int64_t(sizeof(T));
  parallel_for(count_of(out, lead) * panels, grain_for(4 * bytes), [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit)
      for_each(out, in, lead, unit / panels, unit / panels + 1,
               [&](char* o, const char* p) { move_panel(o, p, unit % panels * kTile); });
  });
}

// Moves the axis along which `in` is contiguous next to the last axis. Returns false if there is no such axis, or if `out` is not
// contiguous along its last axis.
bool turn_plane(View& out, View& in, int64_t size) {
  const int last = out.ndim - 1;
  if (out.stride[last] != size) return false;
  for (int d = 0; d < last; ++d) {
    if (in.stride[d] != size || out.shape[d] < 4) continue;
    for (View* v : {&out, &in})
      for (int k = d; k + 1 < last; ++k) {
        std::swap(v->shape[k], v->shape[k + 1]);
        std::swap(v->stride[k], v->stride[k + 1]);
      }
    return true;
  }
  return false;
}

template <class T> void assign_strided(View out, View in) {
  if (turn_plane(out, in, sizeof(T))) assign_transposed<T>(out, in);
  else assign_elements<T>(out, in);
}

void assign_same_dtype(View out, View in) {
  View views[2] = {out, in};
  collapse(views, 2);
  const int64_t size = item_size(out.dtype);
  for (View& v : views)
    if (v.ndim == 0) v.ndim = 1, v.shape[0] = 1, v.stride[0] = size;
  const int last = views[0].ndim - 1;
  if (views[0].stride[last] == size && views[1].stride[last] == size) {
    const int64_t row_bytes = views[0].shape[last] * size;
    if (last == 0) return copy_bytes(views[0].data, views[1].data, row_bytes);
    return assign_rows(views[0], views[1], row_bytes);
  }
  switch (size) {
    case 1: return assign_strided<uint8_t>(views[0], views[1]);
    case 2: return assign_strided<uint16_t>(views[0], views[1]);
    case 4: return assign_strided<uint32_t>(views[0], views[1]);
    default: return assign_strided<uint64_t>(views[0], views[1]);
  }
}

void narrow_to_odd(int64_t n, const double* in, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = m::narrow_to_odd(in[i]);
}

void assign_cast(const View& out, View in) {
  collapse(&in, 1);
  const int64_t size = item_size(out.dtype);
  const Compute compute = compute_type(in.dtype);
  const bool twice = compute == Compute::f64 && is_half(out.dtype), nontemporal = out.bytes() >= kNontemporalBytes;
  parallel_for(out.size(), grain_for(2 * size), [&](int64_t begin, int64_t end) {
    alignas(64) char staged[kBlockBytes], odd[kBlockBytes], done[kBlockBytes];
    Reader reader(in, compute);
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      const void* x = reader.block(i, n, staged);
      if (twice) narrow_to_odd(n, static_cast<const double*>(x), reinterpret_cast<float*>(odd)), x = odd;
      char* target = out.data + i * size;
      store(twice ? Compute::f32 : compute, out.dtype, x, n, nontemporal ? done : target, size);
      if (nontemporal) store_nontemporal(target, done, n * size);
    }
    nontemporal_fence();
  });
}

template <class T> void fill_elements(const View& out, uint64_t number) {
  T value;
  std::memcpy(&value, &number, sizeof(T));
  const int axes = out.ndim - 1;
  const int64_t n = out.shape[axes], step = out.stride[axes];
  if (axes == 0 && step == int64_t(sizeof(T))) {
    parallel_for(n, grain_for(sizeof(T)),
                 [&](int64_t begin, int64_t end) { std::fill(out.as<T>() + begin, out.as<T>() + end, value); });
    return;
  }
  parallel_for(count_of(out, axes), grain_for(n * int64_t(sizeof(T))), [&](int64_t begin, int64_t end) {
    for_each(out, out, axes, begin, end, [=](char* o, const char*) {
      if (step == int64_t(sizeof(T))) std::fill_n(reinterpret_cast<T*>(o), n, value);
      else
        for (int64_t i = 0; i < n; ++i) element<T>(o + i * step) = value;
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
  collapse(&out, 1);
  if (out.ndim == 0) out = flat_view(out.data, out.dtype, 1);
  switch (item_size(out.dtype)) {
    case 1: return fill_elements<uint8_t>(out, number);
    case 2: return fill_elements<uint16_t>(out, number);
    case 4: return fill_elements<uint32_t>(out, number);
    default: return fill_elements<uint64_t>(out, number);
  }
}

}  // namespace pb::cpu

namespace pb::kernels {

using cpu::assign;
using cpu::assign_number;

void copy(const Launch& launch) { assign(launch.out(), launch.in()); }

void concat(const Launch& launch) {
  const int axis = int(launch.ints[0]);
  View part = launch.out();
  for (int k = 0; k < launch.inputs; ++k) {
    part.shape[axis] = launch.in(k).shape[axis];
    assign(part, launch.in(k));
    part.data += part.shape[axis] * part.stride[axis];
  }
}

// The padding of axis d covers the input's range on the axes before d, and the whole result on the axes after d.
void pad(const Launch& launch) {
  const View& in = launch.in();
  View inner = launch.out();
  for (int d = 0; d < in.ndim; ++d) {
    const int64_t before = launch.ints[d], length = inner.shape[d];
    View slab = inner;
    slab.shape[d] = before;
    assign_number(slab, number_of(launch));
    slab.shape[d] = length - before - in.shape[d];
    slab.data = inner.data + (before + in.shape[d]) * inner.stride[d];
    assign_number(slab, number_of(launch));
    inner.data += before * inner.stride[d];
    inner.shape[d] = in.shape[d];
  }
  assign(inner, in);
}

void fill(const Launch& launch) { assign_number(launch.out(), number_of(launch)); }

}  // namespace pb::kernels
