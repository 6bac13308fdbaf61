// Products of many small images whose positions meet much padding, such as the gradient by the input of a convolution without padding.
// A thread takes two vectors of images, and stores the elements that these have at one place next to each other. They are then a row
// of a panel for every tap that meets the place, so that nothing is packed, and each position leaves out the taps that meet padding.
//
// A term that is left out is a weight times zero. That changes no bit of a sum, with two exceptions: if the weight is infinite or
// NaN, which is looked for before; and if the sum of the terms before it has underflown to -0, which may become +0. Images with a
// result of -0 are therefore computed again with all terms.
#include "cpu/conv.h"
#include "cpu/pool.h"
#include "cpu/scratch.h"

namespace pb::cpu {
namespace {

template <class T> constexpr int kLanes = 2 * kWidth<T>;  // images that are computed together
constexpr int kMostRows = kTileSums / 2;                  // rows in a tile of two vectors
constexpr int64_t kMostBytes = 192 << 10;                 // of the elements of these images, which have to stay in the L2 cache
constexpr int64_t kMostWork = 65;   // percent of all terms. With more left, a second layout is not worth it
constexpr int64_t kFewestRows = 3;  // with fewer rows, changing the layout would be most of the work
constexpr int64_t kGrain = 400000;  // the fewest multiply-adds per thread

// The taps along an axis that meet an element of the source at some position: `count` taps from number `first` on.
struct TapRange {
  int64_t first, count;
};
std::vector<TapRange> taps_inside(const TapPositions& axis, const std::vector<int64_t>& offsets) {
  std::vector<TapRange> found;
  found.reserve(size_t(axis.count));
  for (int64_t p = 0; p < axis.count; ++p) {
    TapRange range{0, 0};
    for (size_t t = 0; t < offsets.size(); ++t) {
      const int64_t at = axis.origin + p * axis.step + offsets[t];
      if (at < 0 || at >= axis.length) continue;
      if (range.count++ == 0) range.first = int64_t(t);
    }
    found.push_back(range);
  }
  return found;
}

struct Inside {
  std::vector<TapRange> taps[2];
  int64_t terms = 1;  // of all positions, in one channel

  explicit Inside(const ConvProduct& p) {
    for (int d = 0; d < 2; ++d) {
      taps[d] = taps_inside(p.axis[d], p.offsets[d]);
      int64_t all = 0;
      for (const TapRange& range : taps[d]) all += range.count;
      terms *= all;
    }
  }
};

template <class T> int64_t padded_images(const ConvProduct& p) { return (p.images + kLanes<T> - 1) / kLanes<T> * kLanes<T>; }

// The images of a task, and what is computed of them.
template <class T> struct ImageTask {
  const ConvProduct& p;
  const Inside& inside;
  const T *source, *weights;  // source: (channels, height, width, lanes)
  int64_t depth;
};

// Computes kRows rows of one position, and writes them `ld` elements apart.
template <class T, int kRows>
inline __attribute__((always_inline)) void run_position(const ImageTask<T>& task, const T* weights, int64_t y, int64_t x, T* to,
                                                        int64_t ld) {
  constexpr int kGroups = (kRows + 3) / 4;
  const ConvProduct& p = task.p;
  const TapRange down = task.inside.taps[0][size_t(y)], across = task.inside.taps[1][size_t(x)];
  const int64_t top = p.axis[0].origin + y * p.axis[0].step, left = p.axis[1].origin + x * p.axis[1].step;
  const int64_t *const offsets_down = p.offsets[0].data(), *const offsets_across = p.offsets[1].data();
  const int64_t tall = int64_t(p.offsets[0].size()), wide = int64_t(p.offsets[1].size());
  Vector<T> sum[kRows][2] = {};
  FinishedBlocks<T, kRows, 2, kAllLevels> finished;
  int64_t boundary = kOrderBlock;  // the first term after the current block
  for (int64_t c = 0; c < p.channels; ++c)
    for (int64_t i = down.first; i < down.first + down.count; ++i) {
      const int64_t line = (c * p.axis[0].length + top + offsets_down[i]) * p.axis[1].length + left;
      const int64_t first = (c * tall + i) * wide;
      for (int64_t j = across.first, end = across.first + across.count; j < end;) {
        for (; first + j >= boundary; boundary += kOrderBlock) finished.take(sum);
        const int64_t stop = std::min(end, boundary - first);
        const T* a[kGroups];
#pragma GCC unroll 4
        for (int g = 0; g < kGroups; ++g) {
          a[g] = weights + 4 * g * task.depth + first + j;
          asm("" : "+r"(a[g]));  // as in cpu/panel.h
        }
        for (; j < stop; ++j) {
          const T* const b = task.source + (line + offsets_across[j]) * kLanes<T>;
          const Vector<T> row[2] = {load_vector(b), load_vector(b + kWidth<T>)};
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) {
            const Vector<T> weight = broadcast<T>(a[r / 4][r % 4 * task.depth]);
            for (int v = 0; v < 2; ++v) sum[r][v] = multiply_add<T>(weight, row[v], sum[r][v]);
          }
#pragma GCC unroll 4
          for (int g = 0; g < kGroups; ++g) ++a[g];
        }
      }
    }
  for (; boundary < task.depth; boundary += kOrderBlock) finished.take(sum);
  finished.finish(sum);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 2; ++v) store_vector(to + r * ld + v * kWidth<T>, sum[r][v]);
}

template <class T, int kRows> void run_positions(const ImageTask<T>& task, const T* weights, T* to) {
  const int64_t ld = task.p.positions() * kLanes<T>;
  for (int64_t y = 0; y < task.p.axis[0].count; ++y)
    for (int64_t x = 0; x < task.p.axis[1].count; ++x, to += kLanes<T>) run_position<T, kRows>(task, weights, y, x, to, ld);
}
template <class T, size_t... kRows>
void run_positions(const ImageTask<T>& task, int64_t rows, const T* weights, T* to, std::index_sequence<kRows...>) {
  constexpr void (*kTiles[])(const ImageTask<T>&, const T*, T*) = {run_positions<T, int(kRows) + 1>...};
  kTiles[rows - 1](task, weights, to);
}

// Copies the elements of `count` images to (channels, height, width, lanes), with zeros in the lanes without an image.
template <class T> void gather(const T* source, int64_t image, int64_t elements, int64_t count, T* to) {
  for (int64_t e = 0; e < elements; ++e, to += kLanes<T>) {
    for (int64_t i = 0; i < count; ++i) to[i] = source[i * image + e];
    std::fill_n(to + count, kLanes<T> - count, T(0));
  }
}

// Adds the bias and writes the sums (positions, lanes) of one row to the result. Returns true if one of the sums is -0.
template <class T> bool scatter(const ConvProduct& p, const T* sums, int64_t count, const T* bias, T* out) {
  bool minus_zero = false;
  for (int64_t i = 0; i < count; ++i, out += p.out.image) {
    const T* from = sums + i;
    for (int64_t y = 0; y < p.axis[0].count; ++y) {
      T* to = out + y * p.out.down;
      for (int64_t x = 0; x < p.axis[1].count; ++x, from += kLanes<T>, to += p.out.across) {
        minus_zero |= *from == T(0) && m::signbit(*from);
        *to = bias ? *from + *bias : *from;
      }
    }
  }
  return minus_zero;
}

// Rows of weights are cut into parts if there are too few images for all threads. A part consists of whole tiles.
template <class T> int64_t rows_of_part(const ConvProduct& p) {
  return padded_images<T>(p) / kLanes<T> * p.groups < 8 ? std::min<int64_t>(p.rows, 2 * kMostRows) : p.rows;
}

}  // namespace

template <class T> bool leaves_out_padding(const ConvProduct& p) {
  const int64_t area = p.axis[0].length * p.axis[1].length, terms = p.positions() * p.taps();
  if (p.images < kLanes<T> || p.rows < kFewestRows || p.groups * p.channels * terms == 0) return false;
  if (p.channels * area * kLanes<T> * int64_t(sizeof(T)) > kMostBytes) return false;
  return 100 * Inside(p).terms * padded_images<T>(p) <= kMostWork * terms * p.images;
}

template <class T>
std::vector<char> run_images(const ConvProduct& p, const T* source, const T* weights, const T* bias, T* out) {
  const Inside inside(p);
  const int64_t strips = padded_images<T>(p) / kLanes<T>, part = rows_of_part<T>(p), parts = (p.rows + part - 1) / part;
  const int64_t elements = p.channels * p.axis[0].length * p.axis[1].length, image = p.groups * elements, depth = p.depth();
  const int64_t ld = p.positions() * kLanes<T>, each = kLanes<T> * part * p.channels * std::max<int64_t>(1, inside.terms);
  std::vector<char> again(size_t(strips * p.groups * parts), 0);
  parallel_for(int64_t(again.size()), kGrain / each + 1, [&](int64_t begin, int64_t end) {
    Scratch scratch;
    T* const near = scratch.take<T>(elements * kLanes<T>);
    T* const sums = scratch.take<T>(kMostRows * ld);
    int64_t filled = -1;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t rest = task / parts, group = rest % p.groups, first = rest / p.groups * kLanes<T>;
      const int64_t count = std::min<int64_t>(kLanes<T>, p.images - first);
      if (filled != rest) gather(source + first * image + group * elements, image, elements, count, near);
      filled = rest;
      const int64_t last = std::min(p.rows, (task % parts + 1) * part);
      for (int64_t row = task % parts * part; row < last;) {
        const int64_t left = last - row,
                      rows = left > kMostRows && left < 2 * kMostRows ? left / 2 : std::min<int64_t>(left, kMostRows);
        const int64_t channel = group * p.rows + row;
        run_positions<T>({p, inside, near, weights, depth}, rows, weights + channel * depth, sums,
                         std::make_index_sequence<kMostRows>());
        for (int64_t r = 0; r < rows; ++r)
          again[size_t(task)] |= scatter(p, sums + r * ld, count, bias ? bias + channel + r : nullptr,
                                         out + first * p.out.image + group * p.out.group + (row + r) * p.out.row);
        row += rows;
      }
    }
  });
  std::vector<char> images(size_t(strips), 0);
  for (size_t task = 0; task < again.size(); ++task) images[task / size_t(parts * p.groups)] |= again[task];
  return images;
}

template <class T> Counts work_of_images(const ConvProduct& p) {
  const int64_t rows = padded_images<T>(p) * p.groups * p.rows;
  Counts work;
  work.fmas = rows * p.channels * Inside(p).terms;
  work.adds = rows * p.positions() * (kernels::order_blocks(p.depth()) - 1);
  return work;
}

template bool leaves_out_padding<float>(const ConvProduct&);
template bool leaves_out_padding<double>(const ConvProduct&);
template std::vector<char> run_images(const ConvProduct&, const float*, const float*, const float*, float*);
template std::vector<char> run_images(const ConvProduct&, const double*, const double*, const double*, double*);
template Counts work_of_images<float>(const ConvProduct&);
template Counts work_of_images<double>(const ConvProduct&);

}  // namespace pb::cpu
