// Measures the time that the door adds to a launch: an empty kernel is called directly, through the door without a ledger, and
// through the door with one.
//
//   g++ -std=c++17 -O3 -march=native -Icsrc benchmarks/kernels/door.cpp csrc/cpu/door.cpp -o build/door && build/door
#include <algorithm>
#include <cstdio>

#include "launch/door.h"

using namespace pb;

static void nothing(const Launch& launch) { asm volatile("" : : "r"(&launch) : "memory"); }
static void costs(const Launch&, Cost& cost) { cost.flops = 1; }

template <class F> double nanoseconds(F&& f) {
  double best = 1e9;
  for (int repeat = 0; repeat < 20; ++repeat) {
    constexpr int kCalls = 100000;
    const int64_t begin = now_ns();
    for (int i = 0; i < kCalls; ++i) f();
    best = std::min(best, double(now_ns() - begin) / kCalls);
    if (door.ledger) door.ledger->records.clear();
  }
  return best;
}

int main() {
  static const Kernel kernel{"nothing", nothing, costs};
  float x[8] = {}, y[8];
  View operands[2] = {flat_view(y, DType::f32, 8), flat_view(x, DType::f32, 8)};
  const Launch launch{&kernel, 1, 1, operands, {}, {}, nullptr};
  const double direct = nanoseconds([&] { nothing(launch); });
  const double off = nanoseconds([&] { run(launch); });
  Ledger ledger;
  ledger.records.reserve(1 << 20);
  door.ledger = &ledger;
  const double on = nanoseconds([&] { run(launch); });
  std::printf("direct call %.1f ns; through the door %.1f ns; with a ledger %.1f ns\n", direct, off, on);
}
