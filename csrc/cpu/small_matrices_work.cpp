// The work of the kernels on small matrices. LAPACK computes larger ones, and the textbook's formula is taken to be its work.
#include "cpu/registers.h"
#include "cpu/small_matrices.h"

namespace pb::cpu {
namespace {

int64_t pairs_of(int64_t n) { return n * (n - 1) / 2; }

// Elimination changes the sign of each factor and of each element that may become a pivot.
Counts elimination(int64_t n, int64_t columns) {
  const int64_t pairs = pairs_of(n);
  Counts work;
  work.adds = n * (n + 1) / 2 + 3 * pairs;
  work.fmas = pairs * (2 * n - 1) / 3 + 2 * pairs * columns;
  work.special = pairs + n * columns;
  return work;
}

// Sets `work` to that of `count` matrices which take `each`. Lanes without a matrix do as much as the others.
void in_lanes(const Launch& launch, int64_t count, const Counts& each, Counts& work) {
  const int64_t lanes = launch.in().dtype == DType::f64 ? kWidth<double> : kWidth<float>;
  work = {};
  work.add(each, (count + lanes - 1) / lanes * lanes);
}

}  // namespace

void executed_cholesky(const Launch& launch, Counts& work) {
  const auto [n, same, count] = matrices_of(launch.in());
  if (!is_small(n)) return;
  const int64_t elements = n * (n + 1) / 2;
  Counts each;
  each.adds = 2 * elements + pairs_of(n), each.multiplies = 3 * elements;
  each.fmas = pairs_of(n) * (n + 1) / 3, each.special = elements;
  in_lanes(launch, count, each, work);
}

void executed_solve_triangular(const Launch& launch, Counts& work) {
  const auto [n, columns, count] = matrices_of(launch.out());
  if (!is_small(n, columns)) return;
  Counts each;
  if (columns) each.adds = pairs_of(n);
  each.fmas = pairs_of(n) * columns, each.special = launch.ints[1] ? 0 : n * columns;
  in_lanes(launch, count, each, work);
}

void executed_solve(const Launch& launch, Counts& work) {
  const auto [n, columns, count] = matrices_of(launch.out());
  if (is_small(n, columns)) in_lanes(launch, columns ? count : 0, elimination(n, columns), work);
}

void executed_solve_pullback(const Launch& launch, Counts& work) {
  const auto [n, columns, count] = matrices_of(launch.in(1));
  if (!is_small(n, columns)) return;
  Counts each = elimination(n, columns);
  const bool both = launch.out().size();
  if (both) each.adds += n * n, each.fmas += n * n * columns;
  in_lanes(launch, both || columns ? count : 0, each, work);
}

}  // namespace pb::cpu
