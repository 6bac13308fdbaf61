// What kernels on batches of matrices share: loops over the batch, and the faults of matrices.
#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include "cpu/operands.h"
#include "cpu/pool.h"
#include "families/linalg.h"
#include "launch/failure.h"

namespace pb::cpu {

using kernels::matrices_of;

// The faults of the matrices of a batch. Each thread notes those of its own matrices.
class Faults {
 public:
  explicit Faults(int64_t count) : found_(size_t(count), kNone) {}
  // Keeps the first fault of a matrix.
  void note(int64_t matrix, Fault fault, int64_t number = 0) {
    int64_t& found = found_[size_t(matrix)];
    if (found == kNone) found = int64_t(fault) << 32 | number;
  }
  bool at(int64_t matrix) const { return found_[size_t(matrix)] != kNone; }

  // Throws BadMatrix if there is a fault.
  void check(const Launch& launch) const {
    int64_t first = -1;
    for (size_t i = 0; i < found_.size(); ++i) {
      if (found_[i] == kNone) continue;
      const bool infinite = found_[i] >> 32 == int64_t(Fault::not_finite);
      if (first < 0 || infinite) first = int64_t(i);
      if (infinite) break;
    }
    if (first < 0) return;
    const int64_t found = found_[size_t(first)];
    const View& x = launch.in();
    std::vector<int64_t> place(size_t(x.ndim - 2));
    for (int d = x.ndim - 3; d >= 0; --d) place[size_t(d)] = first % x.shape[d], first /= x.shape[d];
    throw BadMatrix{launch.kernel->name, launch.ints[0], Fault(found >> 32), place, found & 0xffffffff};
  }

 private:
  static constexpr int64_t kNone = -1;
  std::vector<int64_t> found_;
};

constexpr int64_t kLeastWork = 20'000;  // of a thread, in multiply-adds

// Calls body(i) for each of `count` matrices, which take about `work` multiply-adds each.
template <class Body> void each_matrix(int64_t count, int64_t work, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, kLeastWork / std::max<int64_t>(1, work));
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

template <class T> bool all_finite(const T* x, int64_t count) {
  constexpr int kSums = 16;
  T sums[kSums] = {};  // of products that are NaN where x is not finite
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums)
    for (int k = 0; k < kSums; ++k) sums[k] += x[i + k] * T(0);
  for (; i < count; ++i) sums[0] += x[i] * T(0);
  for (int k = 1; k < kSums; ++k) sums[0] += sums[k];
  return sums[0] == T(0);
}

template <class T> void fill_nan(T* x, int64_t count) { std::fill_n(x, count, std::numeric_limits<T>::quiet_NaN()); }

// Writes the transposed matrix: `to` has `columns` rows, which are `distance` elements apart.
template <class T> void transpose(int64_t rows, int64_t columns, const T* from, T* to, int64_t distance) {
  constexpr int64_t kTile = 16;
  for (int64_t r = 0; r < rows; r += kTile)
    for (int64_t c = 0; c < columns; c += kTile)
      for (int64_t i = r; i < std::min(rows, r + kTile); ++i)
        for (int64_t j = c; j < std::min(columns, c + kTile); ++j) to[j * distance + i] = from[i * columns + j];
}

// Writes the symmetric part, which is the matrix itself, bit for bit, if that is symmetric; or its lower triangle, with zeros above.
template <class T> void symmetric_part(bool lower, int64_t n, const T* from, T* to) {
  constexpr int64_t kTile = 16;
  parallel_for((n + kTile - 1) / kTile, 8, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin * kTile; r < std::min(n, end * kTile); r += kTile)
      for (int64_t c = 0; c <= r; c += kTile)
        for (int64_t i = r; i < std::min(n, r + kTile); ++i)
          for (int64_t j = c; j < std::min(i + 1, c + kTile); ++j) {
            const T value = T(0.5) * from[i * n + j] + T(0.5) * from[j * n + i];
            to[j * n + i] = lower ? T(0) : value;
            to[i * n + j] = value;
          }
  });
}

// Runs Run<float> or Run<double> by the dtype of the launch, unless all outputs are empty.
template <template <class> class Run> void run_in_dtype(const Launch& launch) {
  int64_t elements = 0;
  for (int k = 0; k < launch.outputs; ++k) elements += launch.out(k).size();
  if (elements == 0) return;
  if (launch.out().dtype == DType::f64) Run<double>::run(launch);
  else Run<float>::run(launch);
}

}  // namespace pb::cpu
