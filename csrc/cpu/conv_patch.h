// Patches of images, from which convolutions read: copies with their padding, in which neighbouring positions are neighbours.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/vector.h"
#include "families/conv.h"
#include "launch/memory.h"

namespace pb::cpu {

// The positions along an axis at which the taps of a kernel meet the source. Position p and a tap of offset t meet element
// origin + p step + t, which is zero if it lies outside the source.
struct TapPositions {
  int64_t count, step, origin, length;
  // A patch stores the elements of each remainder of division by the step on their own, so that positions are neighbours.
  std::vector<int64_t> phases;  // the remainders of the offsets, in ascending order
  int64_t reach;                // the largest quotient of an offset

  int64_t stored(int64_t positions) const { return positions + reach; }
  int64_t phase_of(int64_t offset) const {
    return std::lower_bound(phases.begin(), phases.end(), offset % step) - phases.begin();
  }
};

// The patch of an image and consecutive rows of positions: (channel, phase of the height, phase of the width, row, column).
struct PatchShape {
  TapPositions axis[2];
  int64_t channels, rows;  // rows of positions

  int64_t height() const { return axis[0].stored(rows); }
  int64_t width() const { return axis[1].stored(axis[1].count); }
  int64_t plane() const { return elements_of(height(), width()); }
  int64_t channel() const { return elements_of(axis[0].phases.size(), axis[1].phases.size(), plane()); }
  int64_t image() const { return elements_of(channels, channel()); }
  // Where the tap of these offsets reads for position 0 of the first image and channel.
  int64_t offset(int64_t down, int64_t across) const {
    const TapPositions &y = axis[0], &x = axis[1];
    return (y.phase_of(down) * int64_t(x.phases.size()) + x.phase_of(across)) * plane() + down / y.step * width() +
           across / x.step;
  }
};

// Copies the elements of a row of the source to `columns` elements of a patch, beginning with element `first`, with zeros outside.
template <class T> void copy_row(const T* row, const TapPositions& x, int64_t first, int64_t columns, T* to) {
  const int64_t step = x.step;
  const int64_t begin = std::clamp<int64_t>(first < 0 ? (-first + step - 1) / step : 0, 0, columns);
  const int64_t end = std::clamp<int64_t>(first < x.length ? (x.length - first + step - 1) / step : 0, begin, columns);
  std::fill_n(to, begin, T(0));
  if (step == 1) std::copy_n(row + first + begin, end - begin, to + begin);
  else
    for (int64_t c = begin; c < end; ++c) to[c] = row[first + c * step];
  std::fill_n(to + end, columns - end, T(0));
}

// Fills the channels of one image of a patch, whose first row of positions is `first`. `source` is the first channel.
template <class T> void fill_image(const PatchShape& p, const T* source, int64_t first, T* to) {
  const TapPositions &y = p.axis[0], &x = p.axis[1];
  const int64_t height = p.height(), width = p.width(), area = y.length * x.length;
  for (int64_t c = 0; c < p.channels; ++c, source += area)
    for (const int64_t i : y.phases)
      for (const int64_t j : x.phases)
        for (int64_t r = 0; r < height; ++r, to += width) {
          const int64_t at = y.origin + (first + r) * y.step + i;
          if (at < 0 || at >= y.length) std::fill_n(to, width, T(0));
          else copy_row(source + at * x.length, x, x.origin + j, width, to);
        }
}

}  // namespace pb::cpu
