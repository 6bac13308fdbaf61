// The gradient of the weights of a convolution: for each tap of each channel of x, and each channel of y, a sum over the positions of
// all images. A thread packs a slice of positions of g, so that the channels of y are neighbours, and copies what they meet into
// patches, from which a tile reads one number for each of its taps.
#include "cpu/conv_weight.h"

namespace pb::cpu {
namespace {

using kernels::ConvShape;

constexpr int64_t kResultsOfPart = 1 << 15;  // sums that are computed together, roughly
constexpr int kMostTaps = 8;                 // of a tile: each needs a pointer
template <class T> constexpr int64_t kPanelChannels = 2 * kWidth<T>;

// How the work is cut: the channels of x into parts, the slices into runs of a power of two.
struct Cuts {
  int64_t total, slices;    // positions of all images
  int64_t channels, parts;  // of a part; of all
  int64_t each, runs;       // slices in a run
};

Cuts cuts_of(const ConvShape& s) {
  Cuts c{s.images * s.pixels_of_y(), 0, 0, 0, 1, 0};
  c.slices = parts_of(c.total, kConvSlice);
  c.channels = std::clamp<int64_t>(kResultsOfPart / std::max<int64_t>(1, s.taps() * s.out), 1, std::max<int64_t>(1, s.in));
  c.parts = parts_of(s.in, c.channels);
  c.each = slices_of_run(c.slices, s.groups * c.parts);
  c.runs = parts_of(c.slices, c.each);
  return c;
}

// The taps [0, count) of a part, in a slice of `depth` positions.
template <class T> struct Taps {
  int64_t depth;
  const T* patch;
  const int64_t *offsets, *places;  // of the taps and of the positions in the patch
  const T* g;                       // (position, channel of a panel)
  T* out;
  int64_t ldc, columns;
};

template <class T, int kRows, int kVectors> void run_taps(const Taps<T>& t) {
  Vector<T> sum[kRows][kVectors] = {};
  FinishedBlocks<T, kRows, kVectors> finished;
  const T *a[kRows], *g = t.g;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) a[r] = t.patch + t.offsets[r];
  for (int64_t begin = 0;; begin += kOrderBlock) {
    const int64_t end = std::min(t.depth, begin + kOrderBlock);
    for (int64_t l = begin; l < end; ++l, g += kPanelChannels<T>) {
      const int64_t place = t.places[l];
      Vector<T> row[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) row[v] = load_vector(g + v * kWidth<T>);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Vector<T> left = broadcast<T>(a[r][place]);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) sum[r][v] = multiply_add<T>(left, row[v], sum[r][v]);
      }
    }
    if (end == t.depth) break;
    finished.take(sum);
  }
  finished.finish(sum);
  write_tile(sum, t.out, t.ldc, kRows, t.columns, static_cast<const T*>(nullptr), false);
}

// Computes all taps, in tiles that are as high as registers allow; the last two have about the same height.
template <class T, int kVectors, size_t... kRows>
void run_all_taps(Taps<T> t, int64_t taps, std::index_sequence<kRows...>) {
  constexpr int64_t kMost = sizeof...(kRows);
  constexpr void (*kTiles[])(const Taps<T>&) = {run_taps<T, int(kRows) + 1, kVectors>...};
  while (taps) {
    const int64_t rows = taps >= 2 * kMost || taps == kMost ? kMost : taps > kMost ? taps / 2 : taps;
    kTiles[rows - 1](t);
    t.offsets += rows, t.out += rows * t.ldc, taps -= rows;
  }
}
template <int kVectors> constexpr int kTapsOfTile = kTileSums / kVectors < kMostTaps ? kTileSums / kVectors : kMostTaps;

// Computes the sums over slices for one part of the channels of one group.
template <class T> class Slices {
 public:
  Slices(const ConvShape& s, const Cuts& cuts, const T* x, const T* g, int64_t group, int64_t part)
      : s_(s), cuts_(cuts), channels_(std::min(cuts.channels, s.in - part * cuts.channels)), held_(s) {
    const ConvProduct p = forward_product(s);
    patch_ = {{p.axis[0], p.axis[1]}, channels_, s.axis[0].y};
    for (int64_t c = 0; c < channels_; ++c)
      for (const int64_t down : p.offsets[0])
        for (const int64_t across : p.offsets[1]) offsets_.push_back(c * patch_.channel() + patch_.offset(down, across));
    x_ = x + (group * s.in + part * cuts.channels) * s.pixels_of_x();
    g_ = g + group * s.out * s.pixels_of_y();
    images_ = scratch_.take<T>(held_.most(), patch_.image());
    packed_ = scratch_.take<T>(parts_of(s.out, kPanelChannels<T>), kPanelChannels<T>, kConvSlice);
    places_ = scratch_.take<int64_t>(kConvSlice);
    rooms_ = scratch_.take<T>(size(), rooms_for(cuts.each));
  }
  // The number of sums: (channel of x, tap, channel of y).
  int64_t size() const { return channels_ * s_.taps() * s_.out; }

  // Computes the sums over slices [first, first + count).
  void sum(int64_t first, int64_t count, T* out) {
    sum_slices(first, count, size(), out, rooms_, [this](int64_t slice, T* to) { one(slice, to); });
  }

 private:
  void one(int64_t slice, T* out) {
    const int64_t begin = slice * kConvSlice, depth = std::min(kConvSlice, cuts_.total - begin);
    prepare(begin, depth);
    for (int64_t o = 0; o < s_.out; o += kPanelChannels<T>) {
      const T* g = packed_ + o * kConvSlice;
      const Taps<T> taps{depth, images_, offsets_.data(), places_, g, out + o, s_.out, std::min(s_.out - o, kPanelChannels<T>)};
      const auto count = int64_t(offsets_.size());
      if (taps.columns > kWidth<T>) run_all_taps<T, 2>(taps, count, std::make_index_sequence<kTapsOfTile<2>>());
      else run_all_taps<T, 1>(taps, count, std::make_index_sequence<kTapsOfTile<1>>());
    }
  }
  // Packs `depth` positions of g from position `begin` on, and fills the patches of their images.
  void prepare(int64_t begin, int64_t depth) {
    const int64_t pixels = s_.pixels_of_y();
    each_image(begin, depth, pixels, [&](int64_t l, int64_t image, int64_t pixel, int64_t count) {
      bool missing = false;
      const int64_t first = held_.slot(image, missing) * patch_.image();
      if (missing) fill_image(patch_, x_ + image * s_.groups * s_.in * s_.pixels_of_x(), 0, images_ + first);
      const T* from = g_ + image * s_.groups * s_.out * pixels + pixel;
      for (int64_t o = 0; o < s_.out; o += kWidth<T>)
        turn_strip(
            std::min<int64_t>(kWidth<T>, s_.out - o), count, from + o * pixels, pixels,
            packed_ + o / kPanelChannels<T> * kPanelChannels<T> * kConvSlice + l * kPanelChannels<T> + o % kPanelChannels<T>,
            kPanelChannels<T>);
      set_places(pixel, count, s_.axis[1].y, first, patch_.width(), places_ + l);
    });
  }

  const ConvShape& s_;
  const Cuts& cuts_;
  int64_t channels_;
  HeldImages held_;
  PatchShape patch_{};
  std::vector<int64_t> offsets_;  // where each tap reads
  const T *x_, *g_;
  Scratch scratch_;
  T *images_, *packed_, *rooms_;
  int64_t* places_;
};

}  // namespace

template <class T> void run_weight(const ConvShape& s, const T* x, const T* g, T* gw) {
  if (is_depthwise(s)) return run_depthwise_weight(s, x, g, gw);
  const Cuts cuts = cuts_of(s);
  const int64_t all = s.in * s.taps(), whole = all * s.out;
  if (cuts.total == 0) return (void)std::fill_n(gw, s.groups * whole, T(0));
  Scratch scratch;
  T* const sums = scratch.take<T>(s.groups, cuts.runs, whole);
  const auto place = [&](int64_t group, int64_t part) {
    return sums + group * cuts.runs * whole + part * cuts.runs * cuts.channels * s.taps() * s.out;
  };
  const int64_t work = std::max<int64_t>(1, cuts.each * kConvSlice * cuts.channels * s.taps() * s.out);
  parallel_for(s.groups * cuts.parts * cuts.runs, 400000 / work + 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t run = task % cuts.runs, part = task / cuts.runs % cuts.parts, group = task / cuts.runs / cuts.parts;
      Slices<T> slices(s, cuts, x, g, group, part);
      const int64_t first = run * cuts.each, n = slices.size();
      slices.sum(first, std::min(cuts.each, cuts.slices - first), place(group, part) + run * n);
    }
  });
  parallel_for(s.groups * cuts.parts, 16384 / (cuts.channels * s.taps() * s.out) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t part = task % cuts.parts, group = task / cuts.parts, from = part * cuts.channels;
      const int64_t lines = std::min(cuts.channels, s.in - from) * s.taps(), n = lines * s.out;
      T* const found = place(group, part);
      add_runs(cuts.runs, n, found);
      T* const to = gw + group * whole + from * s.taps();
      for (int64_t o = 0; o < s.out; ++o)
        for (int64_t l = 0; l < lines; ++l) to[o * all + l] = found[l * s.out + o];
    }
  });
}
template void run_weight(const ConvShape&, const float*, const float*, float*);
template void run_weight(const ConvShape&, const double*, const double*, double*);

template <class T> Counts work_of_weight(const ConvShape& s) {
  if (is_depthwise(s)) return work_of_depthwise_weight<T>(s);
  Counts work;
  const int64_t total = s.images * s.pixels_of_y(), weights = s.groups * s.in * s.taps();
  if (total * weights * s.out == 0) return work;
  const int64_t padded = weights * parts_of(s.out, kWidth<T>) * kWidth<T>, slices = parts_of(total, kConvSlice);
  work.fmas = padded * total;
  work.adds = padded * (kernels::order_blocks(total) - slices) + weights * s.out * (slices - 1);
  return work;
}
template Counts work_of_weight<float>(const ConvShape&);
template Counts work_of_weight<double>(const ConvShape&);

}  // namespace pb::cpu
