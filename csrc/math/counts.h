// The number of arithmetic operations of a formula that runs on CountingScalar, or of a launch.
#pragma once
#include <cstdint>

namespace pb {

// A multiply-add counts as two FLOPs. Special ops (exp, log, tanh, sqrt, division) are counted separately.
struct Counts {
  int64_t adds = 0, multiplies = 0, fmas = 0, special = 0;

  int64_t flops() const { return adds + multiplies + 2 * fmas; }
  void add(const Counts& other, int64_t times = 1) {
    adds += times * other.adds, multiplies += times * other.multiplies, fmas += times * other.fmas;
    special += times * other.special;
  }
};

}  // namespace pb
