// Times large products in this backend's kernel against BLAS.
//
//   make dev, then: objects=$(ls build/dev/CMakeFiles/_cpu_v*.dir/csrc/{cpu,kernels,launch}/*.o)
//   g++ -std=c++17 -O2 -Icsrc benchmarks/kernels/large_products.cpp $objects build/dev/openblas/*.so -o build/large_products
//   LD_LIBRARY_PATH=build/dev/openblas build/large_products
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "cpu/blas.h"
#include "cpu/large_product.h"
#include "cpu/pool.h"
#include "launch/memory.h"

using namespace pb;
using namespace pb::cpu;

namespace {

double seconds(const std::function<void()>& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Returns random numbers in memory like that of arrays: in huge pages if it is large, and 16 bytes after the beginning of a cache
// line.
template <class T> T* numbers(int64_t count) {
  static std::mt19937 source(1);
  T* values = reinterpret_cast<T*>(static_cast<char*>(pb::allocate(size_t(count) * sizeof(T) + 16).data) + 16);
  for (int64_t i = 0; i < count; ++i) values[i] = T(std::normal_distribution<float>()(source));
  return values;
}

template <class T> void compare(bool ta, bool tb, int64_t m, int64_t n, int64_t k, int rounds) {
  const T *a = numbers<T>(m * k), *b = numbers<T>(k * n);
  T *blas = numbers<T>(m * n), *ours = numbers<T>(m * n);
  const Matrix left{reinterpret_cast<const char*>(a), ta ? m : k, ta};
  const Matrix right{reinterpret_cast<const char*>(b), tb ? k : n, tb};
  const auto by_blas = [&] { gemm(ta, tb, m, n, k, T(1), a, left.ld, b, right.ld, T(0), blas, n); };
  const auto by_ours = [&] { large_product<T>(m, n, k, left, right, nullptr, ours); };
  std::printf("%4ld x %4ld x %4ld %c%c %s", long(m), long(k), long(n), ta ? 't' : 'n', tb ? 't' : 'n',
              sizeof(T) == 4 ? "f32" : "f64");
  for (const int threads : {1, 2}) {
    set_thread_count(threads);
    by_blas(), by_ours();
    std::vector<double> old_times, new_times, ratios;
    for (int round = 0; round < rounds; ++round) {
      old_times.push_back(seconds(by_blas)), new_times.push_back(seconds(by_ours));
      ratios.push_back(old_times.back() / new_times.back());
    }
    const double gflop = 2e-9 * double(m) * double(n) * double(k);
    std::printf("   %d: %5.0f -> %5.0f GF/s (x%.2f; best %4.0f, %4.0f)", threads, gflop / median(old_times),
                gflop / median(new_times), median(ratios), gflop / *std::min_element(old_times.begin(), old_times.end()),
                gflop / *std::min_element(new_times.begin(), new_times.end()));
  }
  double worst = 0;
  for (int64_t i = 0; i < m * n; ++i) worst = std::max(worst, std::abs(double(ours[i]) - double(blas[i])));
  std::printf("   apart by at most %.1e\n", worst);
}

}  // namespace

// Arguments: the number of rounds. To time a different product, also m, n, k and the transposition of both factors, such as nt.
int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 41;
  if (count > 5) {
    const auto number = [&](int i) { return int64_t(std::atoi(arguments[i])); };
    compare<float>(arguments[5][0] == 't', arguments[5][1] == 't', number(2), number(3), number(4), rounds);
    return 0;
  }
  compare<float>(false, true, 512, 1024, 784, rounds);
  compare<float>(false, true, 512, 1024, 1024, rounds);
  compare<float>(true, false, 1024, 1024, 512, rounds);
  compare<float>(false, false, 512, 1024, 1024, rounds);
  compare<float>(true, false, 1024, 784, 512, rounds);
  compare<double>(false, false, 512, 512, 512, rounds);
}
