// Cholesky factors, linear systems, determinants and quotients, and the table of the family.
#include "families/linalg.h"

#include "cpu/blas.h"
#include "cpu/lapack.h"
#include "cpu/small_matrices.h"
#include "cpu/spectral.h"
#include "math/exp_log.h"

namespace pb::cpu {
namespace {

// ---- Cholesky

constexpr int64_t kBlock = 128;       // rows of the blocks of a large matrix
constexpr int64_t kBlocksFrom = 384;  // rows from which on a matrix is cut into blocks

// Replaces the lower triangle (row-major) by its Cholesky factor. The products run on the pool. They are cut by the shape alone, so
// the bits do not depend on the number of threads. Returns 0, or the number of rows of the leading block without a factor.
template <class T> int64_t factorize_in_blocks(int64_t n, T* a) {
  for (int64_t j = 0; j < n; j += kBlock) {
    const int64_t width = std::min(kBlock, n - j), next = j + width, strips = (n - next + kBlock - 1) / kBlock;
    T* const corner = a + j * n + j;
    const int bad = Lapack<T>::potrf('U', int(width), corner, int(n));
    if (bad) return j + bad;
    const auto rows_of = [=](int64_t strip) { return std::min(n, next + (strip + 1) * kBlock); };
    parallel_for(strips, 1, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) {
        const int64_t first = next + s * kBlock;
        Lapack<T>::trsm(true, true, true, false, int(width), int(rows_of(s) - first), corner, int(n), a + first * n + j,
                        int(n));
      }
    });
    parallel_for(strips * strips, 1, [&](int64_t begin, int64_t end) {
      for (int64_t tile = begin; tile < end; ++tile) {
        const int64_t s = tile / strips, t = tile % strips, row = next + s * kBlock, column = next + t * kBlock;
        if (t > s) continue;
        gemm(false, true, rows_of(s) - row, rows_of(t) - column, width, T(-1), a + row * n + j, n, a + column * n + j, n, T(1),
             a + row * n + column, n);
      }
    });
  }
  return 0;
}

template <class T> struct Cholesky {
  static void run(const Launch& launch) {
    const auto [n, same, count] = matrices_of(launch.in());
    Operands<T> all(launch);
    const T* const x = all.in(0);
    Faults faults(count);
    if (is_small(n)) small_cholesky<T>(count, n, x, all.y, faults);
    else {
      const int64_t rows = n;
      each_matrix(count, n * n * n / 6, [&, rows](int64_t i) {
        T* const y = all.y + i * rows * rows;
        symmetric_part(true, rows, x + i * rows * rows, y);
        if (!all_finite(y, rows * rows)) return faults.note(i, Fault::not_finite);
        const int64_t bad = rows < kBlocksFrom ? Lapack<T>::potrf('U', int(rows), y, int(rows)) : factorize_in_blocks(rows, y);
        if (bad) return faults.note(i, Fault::not_positive, bad);
        if (rows >= kBlocksFrom)  // the products have written above the diagonal of their blocks
          for (int64_t r = 0; r < rows; ++r) std::fill(y + r * rows + r + 1, y + r * rows + std::min(rows, r + kBlock), T(0));
      });
    }
    faults.check(launch);
    all.finish();
  }
};

// ---- linear systems

template <class T> struct SolveTriangular {
  static void run(const Launch& launch) {
    const auto [n, columns, count] = matrices_of(launch.out());
    const bool upper = launch.ints[0], unit = launch.ints[1];
    Operands<T> all(launch);
    const T *const a = all.in(0), *const b = all.in(1);
    Faults faults(count);
    if (is_small(n, columns)) small_triangular<T>(count, n, columns, upper, unit, a, b, all.y, faults);
    else {
      const int64_t rows = n, width = columns;
      each_matrix(count, n * n * columns, [&, rows, width](int64_t i) {
        const T* const left = a + i * rows * rows;
        T* const y = all.y + i * rows * width;
        for (int64_t j = 0; j < rows && !unit; ++j)
          if (left[j * rows + j] == T(0)) {
            faults.note(i, Fault::zero_on_diagonal, j);
            return fill_nan(y, rows * width);
          }
        // To LAPACK a row-major matrix is the transposed one, so this solves x^T a^T = b^T.
        std::copy_n(b + i * rows * width, rows * width, y);
        Lapack<T>::trsm(false, !upper, false, unit, int(width), int(rows), left, int(rows), y, int(width));
      });
    }
    if (launch.ints[2]) faults.check(launch);
    all.finish();
  }
};

template <class T> struct Solve {
  static void run(const Launch& launch) {
    const auto [n, columns, count] = matrices_of(launch.out());
    Operands<T> all(launch);
    const T *const a = all.in(0), *const b = all.in(1);
    Faults faults(count);
    if (is_small(n, columns)) small_solve<T>(count, n, columns, a, b, all.y, faults);
    else {
      const int64_t rows = n, width = columns;
      each_matrix(count, n * n * (n + columns), [&, rows, width](int64_t i) {
        Scratch scratch;
        T *const left = scratch.take<T>(rows * rows), *const right = scratch.take<T>(rows * width);
        int* const pivots = scratch.take<int>(rows);
        transpose(rows, rows, a + i * rows * rows, left, rows);
        transpose(rows, width, b + i * rows * width, right, rows);
        T* const y = all.y + i * rows * width;
        if (Lapack<T>::getrf(int(rows), left, pivots) > 0) {
          faults.note(i, Fault::singular);
          return fill_nan(y, rows * width);
        }
        Lapack<T>::getrs(int(rows), int(width), left, pivots, right);
        transpose(width, rows, right, y, width);
      });
    }
    if (launch.ints[0]) faults.check(launch);
    all.finish();
  }
};

template <class T> struct SolvePullback {
  static void run(const Launch& launch) {
    const auto [n, columns, count] = matrices_of(launch.in(1));
    Operands<T> all(launch);
    T *const by_a = all.out(0), *const by_b = all.out(1);
    const T *const a = all.in(0), *const g = all.in(1), *const x = by_a ? all.in(2) : nullptr;
    if (is_small(n, columns)) small_solve_pullback<T>(count, n, columns, a, g, x, by_a, by_b);
    else {
      const int64_t rows = n, width = columns;
      each_matrix(count, n * n * (n + 2 * columns), [&, rows, width](int64_t i) {
        const int64_t square = rows * rows, length = rows * width;
        Scratch scratch;
        T *const left = scratch.take<T>(square), *const right = scratch.take<T>(length);
        T* const solution = by_b ? by_b + i * length : scratch.take<T>(length);
        int* const pivots = scratch.take<int>(rows);
        std::copy_n(a + i * square, square, left);  // to LAPACK this is the transposed matrix
        transpose(rows, width, g + i * length, right, rows);
        if (Lapack<T>::getrf(int(rows), left, pivots) > 0) {
          fill_nan(solution, length);
        } else {
          Lapack<T>::getrs(int(rows), int(width), left, pivots, right);
          transpose(width, rows, right, solution, width);
        }
        if (by_a)
          gemm(false, true, rows, rows, width, T(-1), solution, width, x + i * length, width, T(0), by_a + i * square, rows);
      });
    }
    all.finish();
  }
};

// ---- determinants

// Writes the sign and the logarithm of the determinant, or as one number the determinant.
template <class T, bool kLogarithm> void determinants(const Launch& launch) {
  const auto [n, same, count] = matrices_of(launch.in());
  Operands<T> all(launch);
  const T* const x = all.in(0);
  const int64_t rows = n;
  each_matrix(count, n * n * n / 3, [&, rows](int64_t i) {
    Scratch scratch;
    T* const a = scratch.take<T>(rows * rows);
    transpose(rows, rows, x + i * rows * rows, a, rows);
    T sign = T(determinant_sign(rows, a)), product = sign, logarithm = 0;
    for (int64_t j = 0; j < rows; ++j) {
      const T pivot = a[j * rows + j];
      product *= pivot;
      if constexpr (kLogarithm) {
        sign = pivot == T(0) ? T(0) : pivot < T(0) ? -sign : pivot > T(0) ? sign : pivot;
        logarithm += m::log(m::abs(pivot));
      }
    }
    if constexpr (kLogarithm) {
      all.y[2 * i] = sign, all.y[2 * i + 1] = logarithm;
    } else {
      all.y[i] = product;
    }
  });
  all.finish();
}
template <class T> struct Det {
  static void run(const Launch& launch) { determinants<T, false>(launch); }
};
template <class T> struct Slogdet {
  static void run(const Launch& launch) { determinants<T, true>(launch); }
};

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

const Linalg& linalg() {
  using namespace cpu;
  static const Linalg table{
      {"cholesky", run_in_dtype<Cholesky>, cost_of_cholesky, executed_cholesky},
      {"solve_triangular", run_in_dtype<SolveTriangular>, cost_of_solve_triangular, executed_solve_triangular},
      {"solve", run_in_dtype<Solve>, cost_of_solve, executed_solve},
      {"solve_pullback", run_in_dtype<SolvePullback>, cost_of_solve_pullback, executed_solve_pullback},
      {"det", run_in_dtype<Det>, cost_of_lu},
      {"slogdet", run_in_dtype<Slogdet>, cost_of_lu},
      {"cofactors", run_cofactors, cost_of_cofactors},
      {"qr", run_qr, cost_of_qr},
      {"eigh", run_eigh, cost_of_eigh},
      {"eigvalsh", run_eigvalsh, cost_of_eigvalsh},
      {"svd", run_svd, cost_of_svd},
      {"svdvals", run_svdvals, cost_of_svdvals},
      {"pinv", run_pinv, cost_of_pinv},
  };
  return table;
}

}  // namespace pb::kernels
