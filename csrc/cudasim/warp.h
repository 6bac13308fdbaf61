// Warp intrinsics: shuffles, votes, matches, reductions. The lanes of the mask wait for each other, exchange values and go on.
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

inline uint32_t lanes_that_meet(unsigned mask, Site site) {
  return block().meet(Collective::kVote, mask, uint32_t(0), site, [](const Peers<uint32_t>& peers) { return peers.lanes(); });
}

// Combines the values of the lanes that have arrived, in the order of the lanes.
template <class T, class Combine> T reduce(unsigned mask, T value, Site site, Combine combine) {
  return block().meet(Collective::kReduce, mask, value, site, [&](const Peers<T>& peers) {
    unsigned lanes = peers.lanes();
    T total = peers[unsigned(__builtin_ctz(lanes))];
    while (lanes &= lanes - 1) total = combine(total, peers[unsigned(__builtin_ctz(lanes))]);
    return total;
  });
}

template <class T> using IfInt32 = std::enable_if_t<std::is_same_v<T, int> || std::is_same_v<T, unsigned>, T>;

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
template <class T>
cudasim::Shuffled<T> __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                                      cudasim::Site site = cudasim::Site::here()) {
  return cudasim::shuffle(mask, value, width, site, [=](int lane, int first) {
    return uint64_t(lane - first) + delta < uint64_t(width) ? lane + int(delta) : lane;
  });
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

// ---- votes and matches

inline unsigned __ballot_sync(unsigned mask, int predicate, cudasim::Site site = cudasim::Site::here()) {
  return cudasim::vote(mask, predicate != 0, site);
}
inline int __any_sync(unsigned mask, int predicate, cudasim::Site site = cudasim::Site::here()) {
  return cudasim::vote(mask, predicate != 0, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, cudasim::Site site = cudasim::Site::here()) {
  return cudasim::vote(mask, predicate == 0, site) == 0;
}
// Returns the lanes that have not exited. Hardware returns some subset of these, without any guarantee.
inline unsigned __activemask() { return cudasim::block().live_lanes(); }

template <class T> unsigned __match_any_sync(unsigned mask, T value, cudasim::Site site = cudasim::Site::here()) {
  static_assert(std::is_arithmetic_v<T> && sizeof(T) >= 4, "matches compare numbers of 4 or 8 bytes");
  return cudasim::block().meet(cudasim::Collective::kMatch, mask, value, site, [&](const cudasim::Peers<T>& peers) {
    unsigned same = 0;
    for (unsigned lane = 0; lane < cudasim::kWarp; ++lane) {
      if (!peers.has(lane)) continue;
      const T other = peers[lane];
      same |= unsigned(std::memcmp(&other, &value, sizeof value) == 0) << lane;
    }
    return same;
  });
}
template <class T>
unsigned __match_all_sync(unsigned mask, T value, int* predicate, cudasim::Site site = cudasim::Site::here()) {
  const unsigned same = __match_any_sync(mask, value, site);
  *predicate = (mask & cudasim::block().live_lanes() & ~same) == 0;
  return *predicate ? mask : 0;
}

// ---- reductions of integers

template <class T> cudasim::IfInt32<T> __reduce_add_sync(unsigned mask, T value, cudasim::Site site = cudasim::Site::here()) {
  return T(cudasim::reduce(mask, unsigned(value), site, [](unsigned a, unsigned b) { return a + b; }));
}
template <class T> cudasim::IfInt32<T> __reduce_min_sync(unsigned mask, T value, cudasim::Site site = cudasim::Site::here()) {
  return cudasim::reduce(mask, value, site, [](T a, T b) { return b < a ? b : a; });
}
template <class T> cudasim::IfInt32<T> __reduce_max_sync(unsigned mask, T value, cudasim::Site site = cudasim::Site::here()) {
  return cudasim::reduce(mask, value, site, [](T a, T b) { return a < b ? b : a; });
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value, cudasim::Site site = cudasim::Site::here()) {
  return cudasim::reduce(mask, value, site, [](unsigned a, unsigned b) { return a & b; });
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value, cudasim::Site site = cudasim::Site::here()) {
  return cudasim::reduce(mask, value, site, [](unsigned a, unsigned b) { return a | b; });
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value, cudasim::Site site = cudasim::Site::here()) {
  return cudasim::reduce(mask, value, site, [](unsigned a, unsigned b) { return a ^ b; });
}
