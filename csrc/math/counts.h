// What arithmetic was done: by formulas that run on the counting scalar, and by launches.
#pragma once
#include <cstdint>

namespace pb {

// A multiply-add is two FLOPs; special ops (exp, log, tanh, sqrt, division) are counted apart.
struct Counts {
  int64_t adds = 0, multiplies = 0, fmas = 0, special = 0;

  int64_t flops() const { return adds + multiplies + 2 * fmas; }
  void add(const Counts& other, int64_t times = 1) {
    adds += times * other.adds, multiplies += times * other.multiplies, fmas += times * other.fmas;
    special += times * other.special;
  }
};

}  // namespace pb
