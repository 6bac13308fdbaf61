// Factorisations and solutions of small matrices, as many at once as a vector register has lanes.
#include "cpu/small_matrices.h"

#include "cpu/vector.h"

namespace pb::cpu {
namespace {

template <class T> using Mask = typename Register<T>::Ints;

// The matrices that share registers: `lanes` of them, from the matrix `first` on. Further lanes repeat the last one.
struct Group {
  int64_t first;
  int lanes;
};

// Loads the matrices of a group: to[e] has element e of each.
template <class T> void interleave(const T* from, Group group, int64_t length, Vector<T>* to) {
  constexpr int kLanes = kWidth<T>;
  for (int64_t e = 0; e < length; e += kLanes) {
    const int64_t some = std::min<int64_t>(kLanes, length - e);
    Vector<T> v[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      const T* at = from + (group.first + std::min(lane, group.lanes - 1)) * length + e;
      v[lane] = some == kLanes ? load_vector(at) : load_part(at, some);
    }
    turn_square<T>(v);
    for (int k = 0; k < kLanes; ++k) to[e + k] = v[k];
  }
}

template <class T> void store_group(const Vector<T>* from, Group group, int64_t length, T* to) {
  constexpr int kLanes = kWidth<T>;
  for (int64_t e = 0; e < length; e += kLanes) {
    const int64_t some = std::min<int64_t>(kLanes, length - e);
    Vector<T> v[kLanes];
    for (int k = 0; k < kLanes; ++k) v[k] = from[e + k];
    turn_square<T>(v);
    for (int lane = 0; lane < group.lanes; ++lane) {
      T* at = to + (group.first + lane) * length + e;
      if (some == kLanes) store_vector(at, v[lane]);
      else store_part(at, v[lane], some);
    }
  }
}

// Returns working memory for `length` elements of each matrix of a group.
template <class T> Vector<T>* take(Scratch& scratch, int64_t length) {
  return reinterpret_cast<Vector<T>*>(scratch.take_bytes(size_t(whole<T>(length)) * sizeof(Vector<T>)));
}

template <class T, class Body> void each_group(int64_t count, int64_t work, const Body& body) {
  constexpr int64_t kLanes = kWidth<T>;
  each_matrix((count + kLanes - 1) / kLanes, work,
              [&](int64_t k) { body(Group{k * kLanes, int(std::min(kLanes, count - k * kLanes))}); });
}

// Calls note(matrix) for each matrix of the group whose lane is marked.
template <class T, class Note> void each_marked(Mask<T> marked, Group group, const Note& note) {
  if (!any_lane<T>(marked)) return;
  for (int lane = 0; lane < group.lanes; ++lane)
    if (marked[lane]) note(group.first + lane);
}

template <class T> Vector<T> root(Vector<T> x) {
  for (int lane = 0; lane < kWidth<T>; ++lane) x[lane] = m::sqrt(T(x[lane]));
  return x;
}

// Subtracts factor * row from `to`.
template <class T> void subtract(int64_t length, Vector<T> factor, const Vector<T>* row, Vector<T>* to) {
  const Vector<T> negative = broadcast(T(0)) - factor;
  for (int64_t c = 0; c < length; ++c) to[c] = multiply_add<T>(negative, row[c], to[c]);
}

// Replaces the lower triangle of symmetric matrices by its Cholesky factor.
template <class T> void factorize(int64_t n, Vector<T>* a, Group group, Faults& faults) {
  Vector<T> column[kSmall];
  for (int64_t j = 0; j < n; ++j) {
    const Vector<T> pivot = a[j * n + j];
    each_marked<T>(~(pivot > broadcast(T(0))), group, [&](int64_t matrix) { faults.note(matrix, Fault::not_positive, j + 1); });
    const Vector<T> d = a[j * n + j] = root<T>(pivot);
    for (int64_t i = j + 1; i < n; ++i) {
      a[j * n + i] = broadcast(T(0));
      column[i] = a[i * n + j] = a[i * n + j] / d;
      subtract<T>(i - j, column[i], column + j + 1, a + i * n + j + 1);
    }
  }
}

// Replaces b by the x of a x = b for triangular matrices.
template <class T> void substitute(int64_t n, int64_t columns, bool upper, bool unit, const Vector<T>* a, Vector<T>* b) {
  for (int64_t step = 0; step < n; ++step) {
    const int64_t j = upper ? n - 1 - step : step;
    Vector<T>* const solved = b + j * columns;
    if (!unit)
      for (int64_t c = 0; c < columns; ++c) solved[c] = solved[c] / a[j * n + j];
    for (int64_t i = upper ? 0 : j + 1; i < (upper ? j : n); ++i) subtract<T>(columns, a[i * n + j], solved, b + i * columns);
  }
}

// Exchanges two rows in the marked lanes.
template <class T> void exchange(Mask<T> marked, int64_t length, Vector<T>* x, Vector<T>* y) {
  for (int64_t c = 0; c < length; ++c) {
    const Vector<T> kept = x[c];
    x[c] = choose<T>(marked, y[c], kept);
    y[c] = choose<T>(marked, kept, y[c]);
  }
}

// Moves the row with the largest element of column j, from row j on, to row j. Returns that element.
template <class T> Vector<T> pivot_rows(int64_t n, int64_t columns, int64_t j, Vector<T>* a, Vector<T>* b) {
  const auto size_of = [](Vector<T> x) { return choose<T>(x < broadcast(T(0)), broadcast(T(0)) - x, x); };
  Vector<T> largest = size_of(a[j * n + j]), place = broadcast(T(j));
  for (int64_t i = j + 1; i < n; ++i) {
    const Vector<T> size = size_of(a[i * n + j]);
    const Mask<T> larger = size > largest;
    largest = choose<T>(larger, size, largest), place = choose<T>(larger, broadcast(T(i)), place);
  }
  for (int64_t i = j + 1; i < n; ++i) {
    const Mask<T> chosen = place == broadcast(T(i));
    if (!any_lane<T>(chosen)) continue;
    exchange<T>(chosen, n - j, a + j * n + j, a + i * n + j);
    exchange<T>(chosen, columns, b + j * columns, b + i * columns);
  }
  return a[j * n + j];
}

// Replaces b by the x of a x = b, and a by its upper factor.
template <class T> void eliminate(int64_t n, int64_t columns, Vector<T>* a, Vector<T>* b, Group group, Faults& faults) {
  for (int64_t j = 0; j < n; ++j) {
    const Vector<T> pivot = pivot_rows<T>(n, columns, j, a, b);
    each_marked<T>(pivot == broadcast(T(0)), group, [&](int64_t matrix) { faults.note(matrix, Fault::singular); });
    for (int64_t i = j + 1; i < n; ++i) {
      const Vector<T> factor = a[i * n + j] / pivot;
      subtract<T>(n - j - 1, factor, a + j * n + j + 1, a + i * n + j + 1);
      subtract<T>(columns, factor, b + j * columns, b + i * columns);
    }
  }
  substitute<T>(n, columns, true, false, a, b);
}

template <class T> void transpose_in_place(int64_t n, Vector<T>* a) {
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < i; ++j) std::swap(a[i * n + j], a[j * n + i]);
}

// Writes -left right^T, whose factors have n rows.
template <class T>
void negative_product(int64_t n, int64_t columns, const Vector<T>* left, const Vector<T>* right, Vector<T>* to) {
  const Vector<T> zero = broadcast(T(0)), negative_zero = broadcast(T(-0.0));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      Vector<T> sum = zero;
      for (int64_t c = 0; c < columns; ++c) sum = multiply_add<T>(left[i * columns + c], right[j * columns + c], sum);
      to[i * n + j] = negative_zero - sum;
    }
}

template <class T> void store_solutions(const Vector<T>* b, Group group, int64_t length, T* y, const Faults& faults) {
  store_group<T>(b, group, length, y);
  for (int64_t i = group.first; i < group.first + group.lanes; ++i)
    if (faults.at(i)) fill_nan(y + i * length, length);
}

}  // namespace

template <class T> void small_cholesky(int64_t count, int64_t n, const T* x, T* y, Faults& faults) {
  each_group<T>(count, n * n * (n + 12), [&](Group group) {
    Scratch scratch;
    Vector<T>* const a = take<T>(scratch, n * n);
    interleave(x, group, n * n, a);
    const Vector<T> half = broadcast(T(0.5)), zero = broadcast(T(0));
    Vector<T> sum = zero;  // of products that are NaN where a matrix is not finite
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j <= i; ++j) {
        const Vector<T> value = half * a[i * n + j] + half * a[j * n + i];
        a[i * n + j] = value, sum = sum + value * zero;
      }
    each_marked<T>(~(sum == zero), group, [&](int64_t matrix) { faults.note(matrix, Fault::not_finite); });
    factorize<T>(n, a, group, faults);
    store_group<T>(a, group, n * n, y);
  });
}

template <class T>
void small_triangular(int64_t count, int64_t n, int64_t columns, bool upper, bool unit, const T* a, const T* b, T* y,
                      Faults& faults) {
  each_group<T>(count, n * (n + 8) * (columns + 4), [&](Group group) {
    Scratch scratch;
    Vector<T>*const left = take<T>(scratch, n * n), *const right = take<T>(scratch, n * columns);
    interleave(a, group, n * n, left), interleave(b, group, n * columns, right);
    for (int64_t j = 0; j < n && !unit; ++j)
      each_marked<T>(left[j * n + j] == broadcast(T(0)), group,
                     [&](int64_t matrix) { faults.note(matrix, Fault::zero_on_diagonal, j); });
    substitute<T>(n, columns, upper, unit, left, right);
    store_solutions<T>(right, group, n * columns, y, faults);
  });
}

template <class T>
void small_solve(int64_t count, int64_t n, int64_t columns, const T* a, const T* b, T* y, Faults& faults) {
  each_group<T>(count, n * (n + 8) * (n + columns), [&](Group group) {
    Scratch scratch;
    Vector<T>*const left = take<T>(scratch, n * n), *const right = take<T>(scratch, n * columns);
    interleave(a, group, n * n, left), interleave(b, group, n * columns, right);
    eliminate<T>(n, columns, left, right, group, faults);
    store_solutions<T>(right, group, n * columns, y, faults);
  });
}

template <class T>
void small_solve_pullback(int64_t count, int64_t n, int64_t columns, const T* a, const T* g, const T* x, T* ga, T* gb) {
  Faults faults(count);
  each_group<T>(count, n * (n + 8) * (n + 2 * columns), [&](Group group) {
    Scratch scratch;
    Vector<T>*const left = take<T>(scratch, n * n), *const right = take<T>(scratch, n * columns);
    interleave(a, group, n * n, left), interleave(g, group, n * columns, right);
    transpose_in_place<T>(n, left);
    eliminate<T>(n, columns, left, right, group, faults);
    if (gb) store_solutions<T>(right, group, n * columns, gb, faults);
    if (!ga) return;
    Vector<T>* const solution = take<T>(scratch, n * columns);
    interleave(x, group, n * columns, solution);
    negative_product<T>(n, columns, right, solution, left);
    store_solutions<T>(left, group, n * n, ga, faults);
  });
}

#define PB_SMALL(T)                                                                                          \
  template void small_cholesky<T>(int64_t, int64_t, const T*, T*, Faults&);                                  \
  template void small_triangular<T>(int64_t, int64_t, int64_t, bool, bool, const T*, const T*, T*, Faults&); \
  template void small_solve<T>(int64_t, int64_t, int64_t, const T*, const T*, T*, Faults&);                  \
  template void small_solve_pullback<T>(int64_t, int64_t, int64_t, const T*, const T*, const T*, T*, T*);
PB_SMALL(float)
PB_SMALL(double)

}  // namespace pb::cpu
