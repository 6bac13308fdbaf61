// QR factorisations, eigenvalues and singular values, by LAPACK. It takes column-major matrices.
#include "cpu/spectral.h"

#include "cpu/blas.h"
#include "cpu/lapack.h"
#include "cpu/matrices.h"

namespace pb::cpu {
namespace {

template <class T> int lu_with_sign(int64_t n, T* a) {
  Scratch scratch;
  int* const pivots = scratch.take<int>(n);
  if (n) Lapack<T>::getrf(int(n), a, pivots);
  int sign = 1;
  for (int64_t j = 0; j < n; ++j) sign = pivots[j] == j + 1 ? sign : -sign;
  return sign;
}

// ---- QR

template <class T> struct Qr {
  static void run(const Launch& launch) {
    const View& x = launch.in();
    const auto [rows, columns, count] = matrices_of(x);
    const int64_t m = rows, n = columns, least = std::min(m, n), wide = launch.ints[0] ? m : least, length = std::max(n, wide);
    Operands<T> all(launch);
    const T* const from = all.in(0);
    const int64_t work = Lapack<T>::work_qr(int(m), int(n), int(least));
    each_matrix(count, m * n * least, [&](int64_t i) {
      Scratch scratch;
      T *const a = scratch.take<T>(m * length), *const tau = scratch.take<T>(least), *const near = scratch.take<T>(work);
      transpose(m, n, from + i * m * n, a, m);
      if (least) Lapack<T>::geqrf(int(m), int(n), a, tau, near, work);
      T *const q = all.y + i * (m + n) * wide, *const r = q + m * wide;
      for (int64_t j = 0; j < n; ++j)
        for (int64_t k = 0; k < wide; ++k) r[j * wide + k] = k <= j && k < least ? a[j * m + k] : T(0);
      if (wide) Lapack<T>::orgqr(int(m), int(wide), int(least), a, tau, near, work);
      transpose(wide, m, a, q, wide);
    });
    all.finish();
  }
};

// ---- eigenvalues of symmetric matrices

template <class T, bool kVectors> void eigenvalues(const Launch& launch) {
  const auto [rows, same, count] = matrices_of(launch.in());
  const int64_t n = rows;
  Operands<T> all(launch);
  const T* const from = all.in(0);
  const auto sizes = Lapack<T>::work_syevd(kVectors, int(n));
  Faults faults(count);
  each_matrix(count, 4 * n * n * n, [&](int64_t i) {
    Scratch scratch;
    T *const a = scratch.take<T>(n * n), *const near = scratch.take<T>(sizes.numbers);
    int* const integers = scratch.take<int>(sizes.integers);
    T *const mark = all.y + i * (kVectors ? n + 2 : 2) * n, *const w = mark + n;
    std::fill_n(mark, n, T(0));
    symmetric_part(false, n, from + i * n * n, a);
    if (!all_finite(a, n * n)) return faults.note(i, Fault::not_finite);
    if (Lapack<T>::syevd(kVectors, int(n), a, w, near, integers, sizes)) return faults.note(i, Fault::not_converged);
    if (kVectors) transpose(n, n, a, w + n, n);
  });
  faults.check(launch);
  all.finish();
}
template <class T> struct Eigh {
  static void run(const Launch& launch) { eigenvalues<T, true>(launch); }
};
template <class T> struct Eigvalsh {
  static void run(const Launch& launch) { eigenvalues<T, false>(launch); }
};

// ---- singular values

// The singular values and vectors of one matrix, as LAPACK returns them.
template <class T> struct Svd {
  Svd(char vectors, int64_t m, int64_t n)
      : vectors(vectors), m(m), n(n), least(std::min(m, n)), sizes(Lapack<T>::work_gesdd(vectors, int(m), int(n))) {}

  char vectors;
  int64_t m, n, least;
  typename Lapack<T>::Sizes sizes;

  int64_t columns_of_u() const { return vectors == 'A' ? m : least; }
  int64_t rows_of_v() const { return vectors == 'A' ? n : least; }
  // Overwrites `a`. Returns false if the iteration does not converge. With vectors 'N', u and v may be null.
  bool operator()(T* a, T* s, T* u, T* v) const {
    Scratch scratch;
    T* const near = scratch.take<T>(sizes.numbers);
    int* const integers = scratch.take<int>(sizes.integers);
    return Lapack<T>::gesdd(vectors, int(m), int(n), a, s, u, v, int(std::max<int64_t>(1, rows_of_v())), near, integers,
                            sizes) == 0;
  }
};

template <class T> struct SvdRows {
  static void run(const Launch& launch) {
    const auto [rows, columns, count] = matrices_of(launch.in());
    const int64_t m = rows, n = columns, least = std::min(m, n), all_rows = launch.out().shape[launch.out().ndim - 2];
    const int64_t width = launch.out().shape[launch.out().ndim - 1];
    Operands<T> all(launch);
    const T* const from = all.in(0);
    std::fill_n(all.y, launch.out().size(), T(0));
    Faults faults(count);
    if (least == 0) {  // the vectors of a matrix without elements are those of the identity
      for (int64_t i = 0; i < count; ++i)
        for (int64_t j = 0; j < width; ++j) all.y[(i * all_rows + 2 + j) * width + j] = T(1);
      return all.finish();
    }
    const Svd<T> svd(launch.ints[0] ? 'A' : 'S', m, n);
    each_matrix(count, 8 * m * n * least, [&](int64_t i) {
      if (!all_finite(from + i * m * n, m * n)) return faults.note(i, Fault::not_finite);
      Scratch scratch;
      T *const a = scratch.take<T>(m * n), *const u = scratch.take<T>(m * svd.columns_of_u());
      T* const v = scratch.take<T>(n * svd.rows_of_v());
      T* const y = all.y + i * all_rows * width;
      transpose(m, n, from + i * m * n, a, m);
      if (!svd(a, y + width, u, v)) return faults.note(i, Fault::not_converged);
      transpose(svd.columns_of_u(), m, u, y + 2 * width, width);
      for (int64_t j = 0; j < n; ++j) std::copy_n(v + j * svd.rows_of_v(), svd.rows_of_v(), y + (m + 2 + j) * width);
    });
    faults.check(launch);
    all.finish();
  }
};

template <class T> struct Svdvals {
  static void run(const Launch& launch) {
    const auto [rows, columns, count] = matrices_of(launch.in());
    const int64_t m = rows, n = columns, length = m * n;
    Operands<T> all(launch);
    const T* const from = all.in(0);
    Faults faults(count);
    const Svd<T> svd('N', n, m);  // of the transposed matrices, which have the same singular values
    each_matrix(count, 2 * length * svd.least, [&](int64_t i) {
      Scratch scratch;
      T* const a = scratch.take<T>(length);
      std::copy_n(from + i * length, length, a);
      if (!all_finite(a, length)) return faults.note(i, Fault::not_finite);
      T *const mark = all.y + i * 2 * svd.least, *const s = mark + svd.least;
      std::fill_n(mark, svd.least, T(0));
      if (!svd(a, s, nullptr, nullptr)) faults.note(i, Fault::not_converged);
    });
    faults.check(launch);
    all.finish();
  }
};

// With x = u diag(s) v the cofactors are det(u v) u diag(p) v, where p_i is the product of all s but s_i. LAPACK is given the
// transposed matrix, so that it returns v transposed in place of u, and all matrices here are row-major.
template <class T> struct Cofactors {
  static void run(const Launch& launch) {
    const auto [rows, same, count] = matrices_of(launch.in());
    const int64_t n = rows;
    Operands<T> all(launch);
    const T* const from = all.in(0);
    const Svd<T> svd('S', n, n);
    Faults faults(count);
    each_matrix(count, 12 * n * n * n, [&](int64_t i) {
      T* const y = all.y + i * n * n;
      if (!all_finite(from + i * n * n, n * n)) return fill_nan(y, n * n);
      Scratch scratch;
      T *const a = scratch.take<T>(n * n), *const u = scratch.take<T>(n * n), *const v = scratch.take<T>(n * n);
      T *const s = scratch.take<T>(n), *const others = scratch.take<T>(n);
      std::copy_n(from + i * n * n, n * n, a);
      if (!svd(a, s, v, u)) return faults.note(i, Fault::not_converged);
      T before = 1, after = 1;
      for (int64_t j = 0; j < n; ++j) others[j] = before, before *= s[j];
      for (int64_t j = n - 1; j >= 0; --j) others[j] *= after, after *= s[j];
      const T sign = sign_of(n, u, a) * sign_of(n, v, a);
      for (int64_t r = 0; r < n; ++r)
        for (int64_t c = 0; c < n; ++c) u[r * n + c] *= sign * others[c];
      gemm(false, false, n, n, n, T(1), u, n, v, n, T(0), y, n);
    });
    faults.check(launch);
    all.finish();
  }

  // Returns the determinant of an orthogonal matrix, which is 1 or -1. near: memory for a copy.
  static T sign_of(int64_t n, const T* x, T* near) {
    std::copy_n(x, n * n, near);
    T sign = T(determinant_sign(n, near));
    for (int64_t j = 0; j < n; ++j) sign = near[j * n + j] < T(0) ? -sign : sign;
    return sign;
  }
};

// LAPACK is given the transposed matrix, as for the cofactors.
template <class T> struct Pinv {
  static void run(const Launch& launch) {
    const auto [rows, columns, count] = matrices_of(launch.in());
    const int64_t m = rows, n = columns, least = std::min(m, n), all_rows = n + (launch.ints[0] != 0);
    Operands<T> all(launch);
    const T *const from = all.in(0), *const tolerances = all.in(1);
    std::fill_n(all.y, launch.out().size(), T(0));
    if (least == 0) return all.finish();
    const Svd<T> svd('S', n, m);
    Faults faults(count);
    each_matrix(count, 8 * m * n * least, [&](int64_t i) {
      if (!all_finite(from + i * m * n, m * n)) return faults.note(i, Fault::not_finite);
      Scratch scratch;
      T *const a = scratch.take<T>(m * n), *const s = scratch.take<T>(least);
      T *const v = scratch.take<T>(n * least), *const u = scratch.take<T>(m * least);
      std::copy_n(from + i * m * n, m * n, a);
      if (!svd(a, s, v, u)) return faults.note(i, Fault::not_converged);
      for (int64_t r = 0; r < m; ++r)
        for (int64_t k = 0; k < least; ++k) u[r * least + k] = s[k] > tolerances[i] * s[0] ? u[r * least + k] / s[k] : T(0);
      T* const y = all.y + i * all_rows * m;
      gemm(true, true, n, m, least, T(1), v, n, u, least, T(0), y, m);
      if (launch.ints[0]) std::copy_n(s, least, y + n * m);
    });
    faults.check(launch);
    all.finish();
  }
};

}  // namespace

int determinant_sign(int64_t n, float* a) { return lu_with_sign(n, a); }
int determinant_sign(int64_t n, double* a) { return lu_with_sign(n, a); }

void run_qr(const Launch& launch) { run_in_dtype<Qr>(launch); }
void run_eigh(const Launch& launch) { run_in_dtype<Eigh>(launch); }
void run_eigvalsh(const Launch& launch) { run_in_dtype<Eigvalsh>(launch); }
void run_svd(const Launch& launch) { run_in_dtype<SvdRows>(launch); }
void run_svdvals(const Launch& launch) { run_in_dtype<Svdvals>(launch); }
void run_cofactors(const Launch& launch) { run_in_dtype<Cofactors>(launch); }
void run_pinv(const Launch& launch) { run_in_dtype<Pinv>(launch); }

}  // namespace pb::cpu
