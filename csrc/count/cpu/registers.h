// Replaces cpu/registers.h in the counting build. Vectors of counting scalars are arrays of the same size, and each lane counts its
// operations.
#pragma once
#include "count/prelude.h"

namespace pb::cpu {

// PB_COUNT_LANES is the number of float lanes. With one lane a kernel does exactly the work that its formula states. With sixteen,
// as on the widest level, it also does the work on padding.
constexpr int kVectorBytes = PB_COUNT_LANES == 1 ? 8 : PB_COUNT_LANES * 4;
constexpr int kRegisters = 32;
template <class T> constexpr int kWidth = PB_COUNT_LANES == 1 ? 1 : kVectorBytes / int(sizeof(T));
// Returns n, rounded up to whole vectors.
template <class T> constexpr int64_t whole(int64_t n) { return (n + kWidth<T> - 1) / kWidth<T> * kWidth<T>; }

template <class T, class Int> struct LanesOf {
  static constexpr int kCount = kWidth<T>;
  typedef Int Ints __attribute__((vector_size(kCount * sizeof(T))));
  T lane[kCount];

  T& operator[](int64_t i) { return lane[i]; }
  const T& operator[](int64_t i) const { return lane[i]; }

#define PB_EACH(op)                                                      \
  friend LanesOf operator op(const LanesOf& a, const LanesOf& b) {       \
    LanesOf y{};                                                         \
    for (int i = 0; i < kCount; ++i) y.lane[i] = a.lane[i] op b.lane[i]; \
    return y;                                                            \
  }
#define PB_EACH_ASKED(op)                                                              \
  friend Ints operator op(const LanesOf& a, const LanesOf& b) {                        \
    Ints y{};                                                                          \
    for (int i = 0; i < kCount; ++i) y[i] = a.lane[i] op b.lane[i] ? Int(-1) : Int(0); \
    return y;                                                                          \
  }
  PB_EACH(+)
  PB_EACH(-)
  PB_EACH(*)
  PB_EACH(/)
  PB_EACH_ASKED(<)
  PB_EACH_ASKED(>)
  PB_EACH_ASKED(<=)
  PB_EACH_ASKED(==)
  PB_EACH_ASKED(!=)
#undef PB_EACH
#undef PB_EACH_ASKED
  LanesOf& operator+=(const LanesOf& b) { return *this = *this + b; }
};

template <class T> struct Register;
template <> struct Register<count::Float> {
  using Numbers = LanesOf<count::Float, int32_t>;
  using Ints = Numbers::Ints;
};
template <> struct Register<count::Double> {
  using Numbers = LanesOf<count::Double, int64_t>;
  using Ints = Numbers::Ints;
};
template <class T> using Vector = typename Register<T>::Numbers;

template <class T> Vector<T> broadcast(T x) {
  Vector<T> v;
  for (T& lane : v.lane) lane = x;
  return v;
}

template <class T> Vector<T> choose(typename Register<T>::Ints condition, const Vector<T>& yes, const Vector<T>& no) {
  Vector<T> v;
  for (int i = 0; i < kWidth<T>; ++i) v.lane[i] = condition[i] ? yes.lane[i] : no.lane[i];
  return v;
}

template <class T> bool any_lane(typename Register<T>::Ints condition) {
  bool found = false;
  for (int i = 0; i < kWidth<T>; ++i) found |= condition[i] != 0;
  return found;
}

template <class T> Vector<T> interleave(const Vector<T>& a, const Vector<T>& b, int from) {
  Vector<T> v;
  for (int i = 0; i < kWidth<T>; ++i) v.lane[i] = (i % 2 ? b : a).lane[from + i / 2];
  return v;
}
template <class T> Vector<T> interleave_low(const Vector<T>& a, const Vector<T>& b) { return interleave<T>(a, b, 0); }
template <class T> Vector<T> interleave_high(const Vector<T>& a, const Vector<T>& b) {
  return interleave<T>(a, b, kWidth<T> / 2);
}

template <class T> Vector<T> even_lanes(const Vector<T>& a, const Vector<T>& b) {
  Vector<T> v;
  for (int i = 0; i < kWidth<T>; ++i) v.lane[i] = 2 * i < kWidth<T> ? a.lane[2 * i] : b.lane[2 * i - kWidth<T>];
  return v;
}

// Counts as one operation per lane, because every level from v3 on multiplies and adds in one instruction.
template <class T> Vector<T> multiply_add(const Vector<T>& a, const Vector<T>& b, const Vector<T>& c) {
  Vector<T> v;
  for (int i = 0; i < kWidth<T>; ++i) v.lane[i] = count::fused(a.lane[i], b.lane[i], c.lane[i]);
  return v;
}

template <class T> T multiply_add_number(T a, T b, T c) { return count::fused(a, b, c); }

}  // namespace pb::cpu
