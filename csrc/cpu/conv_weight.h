// What the two ways to compute the gradient of the weights have in common: slices of positions, and the order of their sums.
#pragma once
#include "cpu/conv.h"
#include "cpu/pool.h"
#include "cpu/scratch.h"
#include "cpu/strips.h"

namespace pb::cpu {

constexpr int64_t kConvSlice = kTileDepth;  // positions that are packed at a time

inline int64_t parts_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

// Returns the number of results that sum_slices() needs room for.
inline int64_t rooms_for(int64_t count) {
  int64_t rooms = 0;
  for (; count > 1; count = kernels::upper_half(count)) ++rooms;
  return rooms;
}

// Computes the `size` sums over slices [first, first + count). one(slice, out) computes those over one slice.
template <class T, class One>
void sum_slices(int64_t first, int64_t count, int64_t size, T* out, T* rooms, const One& one) {
  if (count == 1) return one(first, out);
  const int64_t half = kernels::upper_half(count);
  sum_slices(first, half, size, out, rooms, one);
  sum_slices(first + half, count - half, size, rooms, rooms + size, one);
  for (int64_t i = 0; i < size; ++i) out[i] += rooms[i];
}

// The images of which a thread holds patches. A slice needs at most `most` consecutive ones.
struct HeldImages {
  std::vector<int64_t> image;  // in each slot, or -1

  explicit HeldImages(const kernels::ConvShape& s)
      : image(size_t(std::min(s.images, (kConvSlice + s.pixels_of_y() - 2) / s.pixels_of_y() + 1)), -1) {}
  int64_t most() const { return int64_t(image.size()); }
  // Returns the slot of an image. Sets `missing` if the slot holds another one; it is then taken to hold this one.
  int64_t slot(int64_t number, bool& missing) {
    const int64_t at = number % most();
    missing = image[size_t(at)] != number;
    image[size_t(at)] = number;
    return at;
  }
};

// Sets the place in the patch of each of `count` positions of an image, from number `pixel` on.
inline void set_places(int64_t pixel, int64_t count, int64_t columns, int64_t first, int64_t width, int64_t* places) {
  int64_t r = pixel / columns, c = pixel % columns;
  for (int64_t i = 0; i < count; ++i) {
    places[i] = first + r * width + c;
    if (++c == columns) ++r, c = 0;
  }
}

// Calls piece(slice's position, image, pixel, count) for the part of each image in positions [begin, begin + depth).
template <class F> void each_image(int64_t begin, int64_t depth, int64_t pixels, const F& piece) {
  for (int64_t l = 0; l < depth;) {
    const int64_t pixel = (begin + l) % pixels, count = std::min(pixels - pixel, depth - l);
    piece(l, (begin + l) / pixels, pixel, count);
    l += count;
  }
}

// Adds up the sums of `runs` runs, in pairs of neighbours, into those of the first.
template <class T> void add_runs(int64_t runs, int64_t size, T* sums) {
  for (int64_t apart = 1; apart < runs; apart *= 2)
    for (int64_t r = 0; r + apart < runs; r += 2 * apart) {
      T *to = sums + r * size, *from = sums + (r + apart) * size;
      for (int64_t i = 0; i < size; ++i) to[i] += from[i];
    }
}

// Returns the number of slices in a run, a power of two, so that `tasks` tasks of all slices become enough for all threads.
inline int64_t slices_of_run(int64_t slices, int64_t tasks) {
  int64_t each = 1;
  while (each < slices) each *= 2;
  while (each > 1 && tasks * parts_of(slices, each) < 2 * thread_count()) each /= 2;
  return each;
}

// True if there is one channel of x in each group and at most two of y, so that the lanes of a vector are groups. conv_depthwise.cpp
// then computes the gradient.
inline bool is_depthwise(const kernels::ConvShape& s) { return s.in == 1 && s.out <= 2 && s.groups > 1; }
template <class T> void run_depthwise_weight(const kernels::ConvShape& s, const T* x, const T* g, T* gw);
template <class T> Counts work_of_depthwise_weight(const kernels::ConvShape& s);

}  // namespace pb::cpu
