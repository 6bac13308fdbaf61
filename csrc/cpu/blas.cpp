// OpenBLAS always runs with one thread here. Large products are cut into tiles of C that run on pullback's own pool. Compared with
// OpenBLAS's own threads (measured on 2 cores with AVX-512) this is as fast for 1024^3 (440 GFLOP/s) and 1.3 to 2 times as fast
// from 128^3 to 256^3. Small products (100x16x16: 0.3 us) have no overhead, and there is one pool instead of two that compete for
// the cores. OpenBLAS's callback for external thread pools does not help: its jobs wait for one another, so the pool would have to
// run all of them at the same time.
#include "cpu/blas.h"

#include <cblas.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "cpu/pool.h"

extern "C" {
char* scipy_openblas_get_corename(void);
char* scipy_openblas_get_config(void);
void scipy_openblas_set_num_threads(int);
}

namespace pb::cpu {
namespace {

[[maybe_unused]] const bool one_thread = [] {
  scipy_openblas_set_num_threads(1);
  return true;
}();

// The cost of packing one element of an operand, in multiply-adds (about 9 ps each on one core of the measured machine).
constexpr double kPack = 30;
// The smallest cost of a product that is shared by threads, in multiply-adds. 128^3 (3.1e6 with packing) takes 20 us on one core
// and 12 us on two; 96^3 (1.4e6) takes 7 us on either.
constexpr double kShareFrom = 2.5e6;
// For products of up to 1e6 multiply-adds OpenBLAS has AVX-512 kernels that do not pack. If C has few rows, packing is most of the
// work, so C is cut into tiles of this size: 10x128x1000 then takes 17 us on one core instead of 36 us.
constexpr double kUnpacked = 1e6;
constexpr int64_t kFewRows = 16;
constexpr int64_t kMaxBlas = std::numeric_limits<int>::max();

template <class T>
struct Product {
  bool ta, tb;
  int64_t m, n, k;
  T alpha;
  const T* a;
  int64_t lda;
  const T* b;
  int64_t ldb;
  T beta;
  T* c;
  int64_t ldc;
};

CBLAS_TRANSPOSE flag(bool transposed) { return transposed ? CblasTrans : CblasNoTrans; }

void call(const Product<float>& p) {
  if (p.n == 1) {
    scipy_cblas_sgemv(CblasRowMajor, flag(p.ta), int(p.ta ? p.k : p.m), int(p.ta ? p.m : p.k), p.alpha, p.a, int(p.lda), p.b,
                      p.tb ? 1 : int(p.ldb), p.beta, p.c, int(p.ldc));
  } else if (p.m == 1) {
    scipy_cblas_sgemv(CblasRowMajor, flag(!p.tb), int(p.tb ? p.n : p.k), int(p.tb ? p.k : p.n), p.alpha, p.b, int(p.ldb), p.a,
                      p.ta ? int(p.lda) : 1, p.beta, p.c, 1);
  } else {
    scipy_cblas_sgemm(CblasRowMajor, flag(p.ta), flag(p.tb), int(p.m), int(p.n), int(p.k), p.alpha, p.a, int(p.lda), p.b,
                      int(p.ldb), p.beta, p.c, int(p.ldc));
  }
}

void call(const Product<double>& p) {
  if (p.n == 1) {
    scipy_cblas_dgemv(CblasRowMajor, flag(p.ta), int(p.ta ? p.k : p.m), int(p.ta ? p.m : p.k), p.alpha, p.a, int(p.lda), p.b,
                      p.tb ? 1 : int(p.ldb), p.beta, p.c, int(p.ldc));
  } else if (p.m == 1) {
    scipy_cblas_dgemv(CblasRowMajor, flag(!p.tb), int(p.tb ? p.n : p.k), int(p.tb ? p.k : p.n), p.alpha, p.b, int(p.ldb), p.a,
                      p.ta ? int(p.lda) : 1, p.beta, p.c, 1);
  } else {
    scipy_cblas_dgemm(CblasRowMajor, flag(p.ta), flag(p.tb), int(p.m), int(p.n), int(p.k), p.alpha, p.a, int(p.lda), p.b,
                      int(p.ldb), p.beta, p.c, int(p.ldc));
  }
}

// Computes rows [i0, i1) and columns [j0, j1) of C.
template <class T>
void tile(Product<T> p, int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
  p.a += p.ta ? i0 : i0 * p.lda;
  p.b += p.tb ? j0 * p.ldb : j0;
  p.c += i0 * p.ldc + j0;
  p.m = i1 - i0;
  p.n = j1 - j0;
  call(p);
}

struct Grid {
  int64_t rows, columns;  // the number of tiles down and across
  int64_t height, width;  // the size of one tile
};

int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

// Returns the grid whose largest tile costs least. Grids with several columns are charged 5 % more, because the kernels are faster
// on tall tiles.
Grid grid_for(int64_t m, int64_t n, int threads) {
  Grid best{1, 1, m, n};
  double best_cost = std::numeric_limits<double>::infinity();
  for (int64_t rows = threads; rows >= 1; --rows) {
    const int64_t columns = threads / rows;
    const int64_t height = round_up((m + rows - 1) / rows, 4), width = round_up((n + columns - 1) / columns, 16);
    const double cost = (double(height) * double(width) + kPack * double(height + width)) * (columns > 1 ? 1.05 : 1.);
    if (cost < best_cost) {
      best_cost = cost;
      best = {(m + height - 1) / height, (n + width - 1) / width, height, width};
    }
  }
  return best;
}

// Returns a grid of one row of tiles for a C of few rows, with at least one tile per thread.
Grid strip_for(int64_t m, int64_t n, int64_t k, int threads) {
  const int64_t fits = static_cast<int64_t>(kUnpacked / (double(m) * double(k))) / 16 * 16;
  const int64_t width = std::min(std::max<int64_t>(fits, 64), round_up((n + threads - 1) / threads, 16));
  return {1, (n + width - 1) / width, m, width};
}

template <class T>
void run(const Product<T>& p) {
  if (p.m <= 0 || p.n <= 0) return;
  if (p.k <= 0) {  // OpenBLAS's matrix-vector product would return without applying beta
    for (int64_t i = 0; i < p.m; ++i) {
      T* row = p.c + i * p.ldc;
      for (int64_t j = 0; j < p.n; ++j) row[j] = p.beta == 0 ? 0 : p.beta * row[j];
    }
    return;
  }
  const double m = double(p.m), n = double(p.n), k = double(p.k);
  const double work = m * n * k + kPack * k * (m + n);
  if (work < kShareFrom) return call(p);
  const int threads = thread_count();
  const bool strip = p.m > 1 && p.m <= kFewRows && p.n > p.m;
  const Grid grid = strip ? strip_for(p.m, p.n, p.k, threads) : grid_for(p.m, p.n, threads);
  parallel_for(grid.rows * grid.columns, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t i = t / grid.columns * grid.height, j = t % grid.columns * grid.width;
      tile(p, i, std::min(i + grid.height, p.m), j, std::min(j + grid.width, p.n));
    }
  });
}

template <class T>
void checked(Product<T> p) {
  if (p.n > kMaxBlas || p.k > kMaxBlas || p.lda > kMaxBlas || p.ldb > kMaxBlas || p.ldc > kMaxBlas) {
    throw std::length_error("gemm: more than 2^31 - 1 columns");
  }
  // OpenBLAS rejects a row distance of 0, which an empty matrix has.
  p.lda = std::max<int64_t>(p.lda, 1);
  p.ldb = std::max<int64_t>(p.ldb, 1);
  p.ldc = std::max<int64_t>(p.ldc, 1);
  constexpr int64_t kRows = int64_t{1} << 30;
  const Product<T> whole = p;
  for (int64_t i = 0; i < whole.m; i += kRows) {
    p.m = std::min(kRows, whole.m - i);
    p.a = whole.a + (whole.ta ? i : i * whole.lda);
    p.c = whole.c + i * whole.ldc;
    run(p);
  }
}

}  // namespace

void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda, const float* b,
          int64_t ldb, float beta, float* c, int64_t ldc) {
  checked(Product<float>{ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc});
}

void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, double alpha, const double* a, int64_t lda, const double* b,
          int64_t ldb, double beta, double* c, int64_t ldc) {
  checked(Product<double>{ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc});
}

const char* blas_core() { return scipy_openblas_get_corename(); }
const char* blas_config() { return scipy_openblas_get_config(); }

}  // namespace pb::cpu
