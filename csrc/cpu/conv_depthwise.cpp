// The gradient of the weights of a depthwise convolution. Each lane of a vector belongs to one group, and a tile has one vector for each
// tap. So the patches, and g, are transposed: the groups of a vector are neighbours.
#include "cpu/conv_weight.h"

namespace pb::cpu {
namespace {

using kernels::ConvShape;

constexpr int kMostTaps = 9;  // of a tile

// The taps of a tile, in a slice of `depth` positions.
template <class T> struct Taps {
  int64_t depth;
  const T* patch;
  const int64_t *offsets, *places;
  const T* g;
  T* out;
};

template <class T, int kRows> void run_taps(const Taps<T>& t) {
  Vector<T> sum[kRows][1] = {};
  FinishedBlocks<T, kRows, 1> finished;
  const T* g = t.g;
  for (int64_t begin = 0;; begin += kOrderBlock) {
    const int64_t end = std::min(t.depth, begin + kOrderBlock);
    for (int64_t l = begin; l < end; ++l, g += kWidth<T>) {
      const T* from = t.patch + t.places[l] * kWidth<T>;
      const Vector<T> row = load_vector(g);
#pragma GCC unroll 9
      for (int r = 0; r < kRows; ++r) sum[r][0] = multiply_add<T>(load_vector(from + t.offsets[r] * kWidth<T>), row, sum[r][0]);
    }
    if (end == t.depth) break;
    finished.take(sum);
  }
  finished.finish(sum);
#pragma GCC unroll 9
  for (int r = 0; r < kRows; ++r) store_vector(t.out + r * kWidth<T>, sum[r][0]);
}

template <class T, size_t... kRows> void run_all_taps(Taps<T> t, int64_t taps, std::index_sequence<kRows...>) {
  constexpr void (*kTiles[])(const Taps<T>&) = {run_taps<T, int(kRows) + 1>...};
  while (taps) {
    const int64_t rows = std::min<int64_t>(taps, kMostTaps);
    kTiles[rows - 1](t);
    t.offsets += rows, t.out += rows * kWidth<T>, taps -= rows;
  }
}

// Computes the sums over slices for one vector of groups: (channel of y, tap, group).
template <class T> class Lanes {
 public:
  Lanes(const ConvShape& s, int64_t each, const T* x, const T* g, int64_t first)
      : s_(s), first_(first), lanes_(std::min<int64_t>(kWidth<T>, s.groups - first)), x_(x), g_(g), held_(s) {
    const ConvProduct p = forward_product(s);
    patch_ = {{p.axis[0], p.axis[1]}, lanes_, s.axis[0].y};
    for (const int64_t down : p.offsets[0])
      for (const int64_t across : p.offsets[1]) offsets_.push_back(patch_.offset(down, across));
    image_ = scratch_.take<T>(patch_.image());
    images_ = scratch_.take<T>(held_.most(), patch_.channel(), kWidth<T>);
    packed_ = scratch_.take<T>(s.out, kConvSlice, kWidth<T>);
    places_ = scratch_.take<int64_t>(kConvSlice);
    rooms_ = scratch_.take<T>(size(), rooms_for(each));
  }
  int64_t size() const { return s_.out * s_.taps() * kWidth<T>; }

  void sum(int64_t first, int64_t count, T* out) {
    sum_slices(first, count, size(), out, rooms_, [this](int64_t slice, T* to) { one(slice, to); });
  }

 private:
  void one(int64_t slice, T* out) {
    const int64_t begin = slice * kConvSlice, depth = std::min(kConvSlice, s_.images * s_.pixels_of_y() - begin);
    each_image(begin, depth, s_.pixels_of_y(), [&](int64_t l, int64_t image, int64_t pixel, int64_t count) {
      bool missing = false;
      const int64_t at = held_.slot(image, missing) * patch_.channel();
      if (missing) {
        fill_image(patch_, x_ + (image * s_.groups + first_) * s_.pixels_of_x(), 0, image_);
        turn_strip(lanes_, patch_.channel(), image_, patch_.channel(), images_ + at * kWidth<T>, kWidth<T>);
      }
      const int64_t pixels = s_.pixels_of_y();
      for (int64_t j = 0; j < s_.out; ++j)
        turn_strip(lanes_, count, g_ + ((image * s_.groups + first_) * s_.out + j) * pixels + pixel, s_.out * pixels,
                   packed_ + (j * kConvSlice + l) * kWidth<T>, kWidth<T>);
      set_places(pixel, count, s_.axis[1].y, at, patch_.width(), places_ + l);
    });
    for (int64_t j = 0; j < s_.out; ++j) {
      const T* g = packed_ + j * kConvSlice * kWidth<T>;
      run_all_taps(Taps<T>{depth, images_, offsets_.data(), places_, g, out + j * s_.taps() * kWidth<T>}, s_.taps(),
                   std::make_index_sequence<kMostTaps>());
    }
  }

  const ConvShape& s_;
  int64_t first_, lanes_;
  const T *x_, *g_;
  HeldImages held_;
  PatchShape patch_{};
  std::vector<int64_t> offsets_;
  Scratch scratch_;
  T *image_, *images_, *packed_, *rooms_;
  int64_t* places_;
};

}  // namespace

template <class T> void run_depthwise_weight(const ConvShape& s, const T* x, const T* g, T* gw) {
  const int64_t slices = parts_of(s.images * s.pixels_of_y(), kConvSlice), vectors = parts_of(s.groups, kWidth<T>);
  const int64_t lines = s.out * s.taps(), size = lines * kWidth<T>;
  if (slices == 0) return (void)std::fill_n(gw, s.groups * lines, T(0));
  const int64_t each = slices_of_run(slices, vectors), runs = parts_of(slices, each);
  Scratch scratch;
  T* const sums = scratch.take<T>(vectors, runs, size);
  parallel_for(vectors * runs, 400000 / (each * kConvSlice * size) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % runs * each;
      Lanes<T>(s, each, x, g, task / runs * kWidth<T>).sum(first, std::min(each, slices - first), sums + task * size);
    }
  });
  for (int64_t v = 0; v < vectors; ++v) {
    T* const found = sums + v * runs * size;
    add_runs(runs, size, found);
    for (int64_t lane = 0; lane < std::min<int64_t>(kWidth<T>, s.groups - v * kWidth<T>); ++lane)
      for (int64_t l = 0; l < lines; ++l) gw[(v * kWidth<T> + lane) * lines + l] = found[l * kWidth<T> + lane];
  }
}
template void run_depthwise_weight(const ConvShape&, const float*, const float*, float*);
template void run_depthwise_weight(const ConvShape&, const double*, const double*, double*);

template <class T> Counts work_of_depthwise_weight(const ConvShape& s) {
  Counts work;
  const int64_t total = s.images * s.pixels_of_y();
  const int64_t padded = parts_of(s.groups, kWidth<T>) * kWidth<T> * s.out * s.taps();
  if (total == 0) return work;
  work.fmas = padded * total;
  work.adds = padded * (kernels::order_blocks(total) - 1);
  return work;
}
template Counts work_of_depthwise_weight<float>(const ConvShape&);
template Counts work_of_depthwise_weight<double>(const ConvShape&);

}  // namespace pb::cpu
