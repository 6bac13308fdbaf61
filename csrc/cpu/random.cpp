// The loops around math/random.h. Vector lanes evaluate consecutive counters, block by block.
#include "families/random.h"

#include <algorithm>
#include <cstring>

#include "cpu/pool.h"
#include "cpu/scratch.h"
#include "cpu/stream.h"
#include "families/sort.h"
#include "math/random.h"

namespace pb::kernels {
namespace {

using namespace cpu;
using random::Numbers;
using random::Words;

constexpr int64_t kGrain = 16 * kBlock;  // the fewest elements per thread: about 10 us

struct State {
  uint64_t seed, serial;
};
State state_of(const View& v) { return {v.as<uint64_t>()[0], v.as<uint64_t>()[1]}; }

// Draws the numbers of n elements from `first` on, which is a multiple of the numbers per counter. It writes the numbers of whole
// counters, so y must have room for them.
template <class T, class F> void draw(State state, int64_t first, int64_t n, T* __restrict y, const F& numbers) {
  constexpr int kEach = sizeof(numbers(Words{}).v) / sizeof(T);
  const uint64_t start = uint64_t(first) / kEach;
  const int64_t counters = (n + kEach - 1) / kEach;
#pragma GCC ivdep
  for (int64_t c = 0; c < counters; ++c) {
    const auto drawn = numbers(random::philox(state.seed, {start + uint64_t(c), state.serial}));
    for (int k = 0; k < kEach; ++k) y[kEach * c + k] = drawn.v[k];
  }
}

// Fills `out` with the results of numbers(words), rounded to its dtype.
template <class T, class F> void fill(const View& out, State state, const F& numbers) {
  const int size = item_size(out.dtype);
  const Compute compute = std::is_same_v<T, float> ? Compute::f32 : std::is_same_v<T, double> ? Compute::f64 : Compute::i64;
  const bool direct = out.dtype == storage_of(compute) || (compute == Compute::i64 && out.dtype == DType::u64);
  parallel_for((out.size() + kBlock - 1) / kBlock, kGrain / kBlock, [&](int64_t begin, int64_t end) {
    alignas(64) T buffer[kBlock];
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kBlock, n = std::min(kBlock, out.size() - first);
      char* target = out.data + first * size;
      if (direct && n == kBlock) {
        draw(state, first, n, reinterpret_cast<T*>(target), numbers);
      } else {
        draw(state, first, n, buffer, numbers);
        store(compute, out.dtype, buffer, n, target, size);
      }
    }
  });
}

// Fills the output with floating-point numbers that are computed in its compute type.
template <class F> void fill_real(const Launch& launch, const F& make) {
  const State state = state_of(launch.in());
  if (launch.out().dtype == DType::f64) fill<double>(launch.out(), state, make(double{}));
  else fill<float>(launch.out(), state, make(float{}));
}

template <class T> Numbers<T> spread_all(Numbers<T> u, T low, T width) {
  for (T& x : u.v) x = random::spread(x, low, width);
  return u;
}

}  // namespace

void random_state(const Launch& launch) {
  const State state = state_of(launch.in());
  launch.out().as<uint64_t>()[0] = state.seed;
  launch.out().as<uint64_t>()[1] = state.serial + uint64_t(launch.ints[0]);
}

void uniform(const Launch& launch) {
  fill_real(launch, [&](auto zero) {
    using T = decltype(zero);
    const T low = T(launch.reals[0]), width = T(launch.reals[1] - launch.reals[0]);
    return [=](Words words) { return spread_all(random::uniform<T>(words), low, width); };
  });
}

void normal(const Launch& launch) {
  fill_real(launch, [&](auto zero) {
    using T = decltype(zero);
    const T mean = T(launch.reals[0]), std = T(launch.reals[1]);
    return [=](Words words) { return spread_all(random::normal<T>(words), mean, std); };
  });
}

void truncated_normal(const Launch& launch) {
  fill_real(launch, [&](auto zero) {
    using T = decltype(zero);
    const T mean = T(launch.reals[0]), std = T(launch.reals[1]), low = T(launch.reals[2]), high = T(launch.reals[3]);
    return [=](Words words) { return spread_all(random::truncated_normal<T>(words, low, high), mean, std); };
  });
}

void bernoulli(const Launch& launch) {
  const float p = float(launch.reals[0]);
  fill<float>(launch.out(), state_of(launch.in()), [p](Words words) { return random::bernoulli(words, p); });
}

void randint(const Launch& launch) {
  const int64_t low = launch.ints[0], high = launch.ints[1];
  fill<int64_t>(launch.out(), state_of(launch.in()), [=](Words words) { return random::randint(words, low, high); });
}

namespace {

Numbers<int64_t> keys(Words words) { return {{int64_t(random::pair(words, 0)), int64_t(random::pair(words, 1))}}; }

}  // namespace

void random_keys(const Launch& launch) {
  fill<int64_t>(launch.out(), state_of(launch.in()), [](Words words) { return keys(words); });
}

void permutation(const Launch& launch) {
  Scratch scratch;
  const int64_t n = launch.out().size();
  View operands[2] = {launch.out(), flat_view(scratch.take<uint64_t>(n), DType::u64, n)};
  fill<int64_t>(operands[1], state_of(launch.in()), [](Words words) { return keys(words); });
  argsort({launch.kernel, 1, 1, operands, {}, {}, nullptr});
}

namespace {

template <class T> void dropout_as(const Launch& launch) {
  const View& out = launch.out();
  const State state = state_of(launch.in(1));
  const Compute compute = compute_type(out.dtype);
  const float p = float(launch.reals[0]);
  const T scale = T(1 / (1 - launch.reals[0]));
  const int size = item_size(out.dtype);
  View x = launch.in(0);
  collapse(&x, 1);
  parallel_for((out.size() + kBlock - 1) / kBlock, kGrain / kBlock, [&](int64_t begin, int64_t end) {
    alignas(64) float u[kBlock];
    alignas(64) T in[kBlock], y[kBlock];
    Reader reader(x, compute);
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kBlock, n = std::min(kBlock, out.size() - first);
      const T* from = static_cast<const T*>(reader.block(first, n, in));
      draw(state, first, n, u, [](Words words) { return random::uniform<float>(words); });
      for (int64_t i = 0; i < n; ++i) {
        const T kept = from[i] * scale;  // computed for every element, because a branch would often be mispredicted
        y[i] = u[i] >= p ? kept : T(0);
      }
      store(compute, out.dtype, y, n, out.data + first * size, size);
    }
  });
}

}  // namespace

void dropout(const Launch& launch) {
  if (launch.out().dtype == DType::f64) dropout_as<double>(launch);
  else dropout_as<float>(launch);
}

}  // namespace pb::kernels
