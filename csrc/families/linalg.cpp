// The costs of factorisations and linear systems.
#include "families/linalg.h"

#include <algorithm>

namespace pb::kernels {
namespace {

// The lengths of the longer and the shorter axis of the matrices, and the number of matrices.
struct Sides {
  int64_t m, n, count;
};
Sides sides_of(const View& x) {
  const Matrices all = matrices_of(x);
  return {std::max(all.rows, all.columns), std::min(all.rows, all.columns), all.count};
}
int64_t cube(int64_t n) { return n * n * n; }
int64_t thin_svd(int64_t m, int64_t n) { return std::min(7 * m * n * n + 4 * cube(n), 3 * m * n * n + 10 * cube(n)); }

}  // namespace

void cost_of_cholesky(const Launch& launch, Cost& cost) {
  const auto [n, same, count] = sides_of(launch.in());
  cost.fmas = count * (cube(n) / 6), cost.special = count * n;
}

void cost_of_solve_triangular(const Launch& launch, Cost& cost) {
  const int64_t elements = launch.out().size(), n = matrices_of(launch.in()).rows;
  cost.fmas = elements * n / 2, cost.special = launch.ints[1] ? 0 : elements;
}

void cost_of_solve(const Launch& launch, Cost& cost) {
  const auto [n, same, count] = sides_of(launch.in());
  const int64_t elements = launch.out().size();
  cost.fmas = count * (cube(n) / 3) + elements * n, cost.special = elements;
}

// The solution of the transposed systems, and a product.
void cost_of_solve_pullback(const Launch& launch, Cost& cost) {
  const auto [n, same, count] = sides_of(launch.in());
  const int64_t elements = launch.in(1).size(), products = launch.out().size() ? elements * n : 0;
  cost.fmas = count * (cube(n) / 3) + elements * n + products, cost.matmul_flops = 2 * products;
  cost.adds = launch.out().size(), cost.special = elements;
}

void cost_of_lu(const Launch& launch, Cost& cost) {
  const auto [n, same, count] = sides_of(launch.in());
  cost.fmas = count * (cube(n) / 3), cost.special = count * n;
}

// The singular values and vectors of a square matrix.
void cost_of_cofactors(const Launch& launch, Cost& cost) {
  const auto [n, same, count] = sides_of(launch.in());
  cost.fmas = 12 * count * cube(n);
}

// Section 5.2, without the product that forms Q.
void cost_of_qr(const Launch& launch, Cost& cost) {
  const auto [m, n, count] = sides_of(launch.in());
  cost.fmas = count * (m * n * n - cube(n) / 3), cost.special = count * n;
}

void cost_of_eigh(const Launch& launch, Cost& cost) {
  const auto [n, same, count] = sides_of(launch.in());
  cost.fmas = count * (9 * cube(n) / 2);
}

void cost_of_eigvalsh(const Launch& launch, Cost& cost) {
  const auto [n, same, count] = sides_of(launch.in());
  cost.fmas = count * (2 * cube(n) / 3);
}

// Figure 8.6.1, with or without a QR factorisation before.
void cost_of_svd(const Launch& launch, Cost& cost) {
  const auto [m, n, count] = sides_of(launch.in());
  const int64_t plain = 4 * m * m * n + 8 * m * n * n + 9 * cube(n), after_qr = 4 * m * m * n + 22 * cube(n);
  cost.fmas = count * (launch.ints[0] ? std::min(plain, after_qr) / 2 : thin_svd(m, n));
}

void cost_of_svdvals(const Launch& launch, Cost& cost) {
  const auto [m, n, count] = sides_of(launch.in());
  cost.fmas = count * std::min(2 * m * n * n - 2 * cube(n) / 3, m * n * n + cube(n));
}

void cost_of_pinv(const Launch& launch, Cost& cost) {
  const auto [m, n, count] = sides_of(launch.in());
  cost.fmas = count * (thin_svd(m, n) + m * n * n), cost.special = count * n;
}

}  // namespace pb::kernels
