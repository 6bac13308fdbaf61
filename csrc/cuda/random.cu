// Random numbers: each thread evaluates one Philox counter, so every element gets the same words as on the CPU.
#include "families/random.h"

#include <algorithm>

#include "cuda/operand.cuh"
#include "families/executed.h"
#include "math/random.h"

namespace pb::cuda {
namespace {

using random::Numbers;
using random::Words;

constexpr int64_t kCountersAtOnce = int64_t{1} << 30;  // per launch

// Returns the words of a counter. The state is read from device memory, so a replay of a graph uses the state of that moment.
__device__ Words draw(const uint64_t* state, int64_t counter) {
  return random::philox(state[0], {uint64_t(counter), state[1]});
}

// ---- distributions: functors from words to the numbers of a counter

template <class T> struct Uniform {
  T low, width;
  __device__ Numbers<T> operator()(Words words) const {
    Numbers<T> y = random::uniform<T>(words);
    for (T& x : y.v) x = random::spread(x, low, width);
    return y;
  }
};
template <class T> struct Normal {
  T mean, std;
  __device__ Numbers<T> operator()(Words words) const {
    Numbers<T> y = random::normal<T>(words);
    for (T& x : y.v) x = random::spread(x, mean, std);
    return y;
  }
};
template <class T> struct TruncatedNormal {
  T mean, std, low, high;
  __device__ Numbers<T> operator()(Words words) const {
    Numbers<T> y = random::truncated_normal<T>(words, low, high);
    for (T& x : y.v) x = random::spread(x, mean, std);
    return y;
  }
};
struct Bernoulli {
  float p;
  __device__ Numbers<float> operator()(Words words) const { return random::bernoulli(words, p); }
};
struct Integers {
  int64_t low, high;
  __device__ Numbers<int64_t> operator()(Words words) const { return random::randint(words, low, high); }
};
struct Keys {
  __device__ Numbers<int64_t> operator()(Words words) const {
    return {{int64_t(random::pair(words, 0)), int64_t(random::pair(words, 1))}};
  }
};

// ---- filling an array

// Stores the elements of a counter at once. All of them must be inside the array, and their type the one that they were drawn in.
template <class T> __device__ void store_all(DType, char* data, int64_t i, const T (&y)[2]) {
  struct __align__(16) Two {
    T v[2];
  };
  static_assert(sizeof(Two) == 16);
  reinterpret_cast<Two*>(data)[i / 2] = {{y[0], y[1]}};
}
__device__ void store_all(DType dtype, char* data, int64_t i, const float (&y)[4]) {
  if (dtype != DType::b8) return store_four(dtype, data, i, y);
  const bool set[4] = {y[0] != 0, y[1] != 0, y[2] != 0, y[3] != 0};
  store_four(DType::b8, data, i, set);
}
__device__ void store_one(DType dtype, char* p, float y) {
  if (dtype == DType::b8) *reinterpret_cast<bool*>(p) = y != 0;
  else store_as<float>(dtype, p, y);
}
template <class T> __device__ void store_one(DType dtype, char* p, T y) { store_as<T>(dtype, p, y); }

// Fills the elements of n that belong to the counters from `first` on.
template <class T, class F>
__global__ void __launch_bounds__(kThreads)
    fill(F numbers, const uint64_t* state, int64_t first, int64_t n, DType dtype, int size, bool whole, char* data) {
  constexpr int kEach = sizeof(Numbers<T>) / sizeof(T);
  const int64_t counter = first + int64_t(blockIdx.x) * kThreads + threadIdx.x, i = kEach * counter;
  if (i >= n) return;
  const Numbers<T> y = numbers(draw(state, counter));
  if (whole && i + kEach <= n) return store_all(dtype, data, i, y.v);
#pragma unroll
  for (int k = 0; k < kEach; ++k)
    if (i + k < n) store_one(dtype, data + (i + k) * size, y.v[k]);
}

template <class T, class F> void fill_with(const View& out, const View& state, const F& numbers) {
  constexpr int kEach = sizeof(Numbers<T>) / sizeof(T);
  const int size = item_size(out.dtype);
  const bool whole = reinterpret_cast<uintptr_t>(out.data) % (kEach * size) == 0 && (kEach == 4 || size == 8);
  const int64_t n = out.size(), counters = (n + kEach - 1) / kEach;
  for (int64_t first = 0; first < counters; first += kCountersAtOnce)
    start(fill<T, F>, blocks_for(std::min(kCountersAtOnce, counters - first)), kThreads, 0, numbers, state.as<uint64_t>(),
          first, n, out.dtype, size, whole, out.data);
}

// Fills `out` with floating-point numbers, in its compute type. make(zero) returns the distribution in the type of zero.
template <class F> void fill_real(const Launch& launch, const F& make) {
  if (launch.out().dtype == DType::f64) fill_with<double>(launch.out(), launch.in(), make(double{}));
  else fill_with<float>(launch.out(), launch.in(), make(float{}));
}

// ---- dropout

template <class T> __device__ void drop(const Words& words, float p, T scale, T (&x)[4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const T kept = x[k] * scale;  // multiplied even if it is dropped, as on the CPU
    x[k] = random::uniform_of<float>(words, k) >= p ? kept : T(0);
  }
}

// Drops contiguous elements whose compute type is float, one pack of four per thread.
__global__ void __launch_bounds__(kThreads)
    drop_packs(const uint64_t* state, float p, float scale, int64_t n, DType dtype, const char* in, char* out) {
  const int64_t counter = int64_t(blockIdx.x) * kThreads + threadIdx.x, i = 4 * counter;
  if (i >= n) return;
  const Words words = draw(state, counter);
  float x[4];
  load_pack(dtype, in, i, n, x);
  drop(words, p, scale, x);
  store_pack(dtype, out, i, n, x);
}

// Drops n elements of any strides. The first of them is element `base` of the whole operand.
template <class T>
__global__ void __launch_bounds__(kThreads)
    drop_strided(const uint64_t* state, float p, T scale, int64_t base, uint32_t n, DType dtype, const char* in,
                 const __grid_constant__ Walk<1> walk, int size, char* out) {
  const int64_t counter = base / 4 + int64_t(blockIdx.x) * kThreads + threadIdx.x, i = 4 * counter - base;
  if (i >= n) return;
  const Words words = draw(state, counter);
  T x[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    x[k] = T(0);
    if (i + k < 0 || i + k >= n) continue;
    int64_t offset[1];
    walk.offsets(uint32_t(i + k), offset);
    x[k] = load_as<T>(dtype, in + offset[0]);
  }
  drop(words, p, scale, x);
#pragma unroll
  for (int k = 0; k < 4; ++k)
    if (i + k >= 0 && i + k < n) store_as<T>(dtype, out + (i + k) * size, x[k]);
}

template <class T> void dropout_as(const Launch& launch) {
  const View out = launch.out();
  const uint64_t* state = launch.in(1).as<uint64_t>();
  const float p = float(launch.reals[0]);
  const T scale = T(1 / (1 - launch.reals[0]));
  View x = launch.in(0);
  if constexpr (std::is_same_v<T, float>) {
    if (packable(x) && packable(out))
      return start(drop_packs, blocks_for((out.size() + 3) / 4), kThreads, 0, state, p, scale, out.size(), out.dtype, x.data,
                   out.data);
  }
  const int size = item_size(out.dtype);
  int64_t base = 0;
  collapse(&x, 1);
  each_part(&x, 1, [&](View* part) {  // parts split the outermost axis, and come in order
    const int64_t n = part->size();
    start(drop_strided<T>, blocks_for(n / 4 + 2), kThreads, 0, state, p, scale, base, uint32_t(n), x.dtype, part->data,
          Walk<1>(part), size, out.data + base * size);
    base += n;
  });
}

}  // namespace
}  // namespace pb::cuda

namespace pb::cuda {
namespace {

// Runs in a single thread, because out may be the state itself.
__global__ void move_state_kernel(uint64_t* out, const uint64_t* state, uint64_t offset) {
  const uint64_t seed = state[0], serial = state[1];
  out[0] = seed, out[1] = serial + offset;
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

using namespace cuda;

void random_state(const Launch& launch) {
  start(move_state_kernel, dim3(1), dim3(1), 0, launch.out().as<uint64_t>(), launch.in().as<const uint64_t>(),
        uint64_t(launch.ints[0]));
}

void uniform(const Launch& launch) {
  fill_real(launch, [&](auto zero) {
    using T = decltype(zero);
    return Uniform<T>{T(launch.reals[0]), T(launch.reals[1] - launch.reals[0])};
  });
}
void normal(const Launch& launch) {
  fill_real(launch, [&](auto zero) {
    using T = decltype(zero);
    return Normal<T>{T(launch.reals[0]), T(launch.reals[1])};
  });
}
void truncated_normal(const Launch& launch) {
  fill_real(launch, [&](auto zero) {
    using T = decltype(zero);
    return TruncatedNormal<T>{T(launch.reals[0]), T(launch.reals[1]), T(launch.reals[2]), T(launch.reals[3])};
  });
}
void bernoulli(const Launch& launch) { fill_with<float>(launch.out(), launch.in(), Bernoulli{float(launch.reals[0])}); }
void randint(const Launch& launch) { fill_with<int64_t>(launch.out(), launch.in(), Integers{launch.ints[0], launch.ints[1]}); }
void random_keys(const Launch& launch) { fill_with<int64_t>(launch.out(), launch.in(), Keys{}); }

// All four elements of a counter are multiplied, including those past the end.
void executed_dropout(const Launch& launch, Counts& work) { work.multiplies += (4 - launch.out().size() % 4) % 4; }

void dropout(const Launch& launch) {
  if (launch.out().dtype == DType::f64) dropout_as<double>(launch);
  else dropout_as<float>(launch);
}

}  // namespace pb::kernels
