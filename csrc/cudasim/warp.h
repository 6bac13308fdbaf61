// Warp intrinsics: shuffles and votes. The lanes of the mask wait for each other, exchange values and go on.
#pragma once

#include <type_traits>

#include "cudasim/block.h"

namespace cudasim {

inline Block& block() { return Block::running(); }

// The type that a shuffle of T returns. As with CUDA's overloads, small integers become int, and only numbers are accepted.
template <class T> using Shuffled = decltype(+std::declval<T>());

// Returns to every lane the value of lane source(lane, first), where `first` is the first lane of its segment of `width` lanes.
template <class T, class Source> Shuffled<T> shuffle(unsigned mask, T value, int width, Site site, Source source) {
  static_assert(std::is_arithmetic_v<T>, "shuffles move numbers of 4 or 8 bytes");
  if (width < 1 || width > 32 || (width & (width - 1))) fail("a shuffle of width %d at %s:%d", width, site.file, site.line);
  const int lane = int(block().lane()), first = lane & ~(width - 1);
  return block().meet(Collective::kShuffle, mask, Shuffled<T>(value), site,
                      [&](const Peers<Shuffled<T>>& peers) { return peers[unsigned(source(lane, first))]; });
}

inline unsigned vote(unsigned mask, bool predicate, Site site) {
  return block().meet(Collective::kVote, mask, uint32_t(predicate), site, [](const Peers<uint32_t>& peers) {
    unsigned votes = 0;
    for (unsigned lane = 0; lane < kWarp; ++lane) votes |= unsigned(peers.has(lane) && peers[lane]) << lane;
    return votes;
  });
}

}  // namespace cudasim

inline void __syncwarp(unsigned mask = 0xffffffffu, cudasim::Site site = cudasim::Site::here()) {
  cudasim::block().meet(cudasim::Collective::kSync, mask, char(), site, [](const cudasim::Peers<char>&) { return 0; });
}

// ---- shuffles

template <class T>
cudasim::Shuffled<T> __shfl_sync(unsigned mask, T value, int source, int width = 32,
                                 cudasim::Site site = cudasim::Site::here()) {
  return cudasim::shuffle(mask, value, width, site, [=](int, int first) { return first | (source & (width - 1)); });
}
template <class T>
cudasim::Shuffled<T> __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                                    cudasim::Site site = cudasim::Site::here()) {
  return cudasim::shuffle(mask, value, width, site,
                          [=](int lane, int first) { return unsigned(lane - first) >= delta ? lane - int(delta) : lane; });
}
// A lane can read lanes of earlier segments, but not of later ones.
template <class T>
cudasim::Shuffled<T> __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                                     cudasim::Site site = cudasim::Site::here()) {
  return cudasim::shuffle(mask, value, width, site, [=](int lane, int first) {
    const int other = (lane ^ lane_mask) & 31;
    return other < first + width ? other : lane;
  });
}

// ---- votes

inline unsigned __ballot_sync(unsigned mask, int predicate, cudasim::Site site = cudasim::Site::here()) {
  return cudasim::vote(mask, predicate != 0, site);
}
inline int __any_sync(unsigned mask, int predicate, cudasim::Site site = cudasim::Site::here()) {
  return cudasim::vote(mask, predicate != 0, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, cudasim::Site site = cudasim::Site::here()) {
  return cudasim::vote(mask, predicate == 0, site) == 0;
}
