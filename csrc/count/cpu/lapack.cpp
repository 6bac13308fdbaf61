// Replaces cpu/lapack.cpp in the counting build. The operations of LAPACK cannot be counted, so its functions fail there.
#include "cpu/lapack.h"

#include "launch/failure.h"

namespace pb::cpu {
namespace {

[[noreturn]] void fail() { throw Failure("LAPACK is not in the counting build"); }

}  // namespace

#define PB_LAPACK(T)                                                                                     \
  template <> int Lapack<T>::potrf(char, int, T*, int) { fail(); }                                       \
  template <> int Lapack<T>::getrf(int, T*, int*) { fail(); }                                            \
  template <> void Lapack<T>::getrs(int, int, const T*, const int*, T*) { fail(); }                      \
  template <> void Lapack<T>::trsm(bool, bool, bool, bool, int, int, const T*, int, T*, int) { fail(); } \
  template <> int64_t Lapack<T>::work_qr(int, int, int) { fail(); }                                      \
  template <> void Lapack<T>::geqrf(int, int, T*, T*, T*, int64_t) { fail(); }                           \
  template <> void Lapack<T>::orgqr(int, int, int, T*, const T*, T*, int64_t) { fail(); }                \
  template <> Lapack<T>::Sizes Lapack<T>::work_syevd(bool, int) { fail(); }                              \
  template <> int Lapack<T>::syevd(bool, int, T*, T*, T*, int*, Sizes) { fail(); }                       \
  template <> Lapack<T>::Sizes Lapack<T>::work_gesdd(char, int, int) { fail(); }                         \
  template <> int Lapack<T>::gesdd(char, int, int, T*, T*, T*, T*, int, T*, int*, Sizes) { fail(); }     \
  template struct Lapack<T>;

PB_LAPACK(float)
PB_LAPACK(double)

}  // namespace pb::cpu
