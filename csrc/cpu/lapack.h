// LAPACK from the bundled OpenBLAS. It runs in the thread that calls it.
#pragma once

#include <cstdint>

namespace pb::cpu {

// Functions of LAPACK for float and double, with its names without the letter of the dtype. Matrices are column-major. The
// functions return LAPACK's `info`, and the sizes of working memory are those that work_*() return.
template <class T> struct Lapack {
  static int potrf(char triangle, int n, T* a, int lda);
  static int getrf(int n, T* a, int* pivots);
  static void getrs(int n, int columns, const T* a, const int* pivots, T* b);
  // Solves op(a) x = b in place, or x op(a) = b if not `left`. b has `rows` and `columns`.
  static void trsm(bool left, bool upper, bool transposed, bool unit, int rows, int columns, const T* a, int lda, T* b,
                   int ldb);

  static int64_t work_qr(int m, int n, int k);  // for both of the following functions
  static void geqrf(int m, int n, T* a, T* tau, T* work, int64_t length);
  static void orgqr(int m, int n, int k, T* a, const T* tau, T* work, int64_t length);

  // Working memory has numbers and integers.
  struct Sizes {
    int64_t numbers, integers;
  };
  static Sizes work_syevd(bool vectors, int n);
  static int syevd(bool vectors, int n, T* a, T* w, T* work, int* integers, Sizes sizes);
  // vectors: 'N' for none, 'S' for min(m, n) of each side, 'A' for all.
  static Sizes work_gesdd(char vectors, int m, int n);
  static int gesdd(char vectors, int m, int n, T* a, T* s, T* u, T* vt, int rows_of_vt, T* work, int* integers, Sizes sizes);
};

}  // namespace pb::cpu
