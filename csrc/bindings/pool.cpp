// Binds pools: the maximum or the mean of each window.
#include "families/pool.h"

#include "bindings/result.h"
#include "bindings/tables.h"
#include "launch/memory.h"

namespace pb {
namespace {

constexpr int64_t kMostOfPlane = (int64_t{1} << 31) - 1;  // positions in a plane are also computed in 32 bits
constexpr int64_t kMostWindows = int64_t{1} << 32;        // in a plane
constexpr int64_t kMostReach = int64_t{1} << 42;  // of a window, a stride or a padding, so that positions do not overflow

View planes_or_refuse(PyObject* object) {
  const View v = view_or_refuse(object);
  if (!is_float(v.dtype)) throw Refused{"not a float dtype"};
  if (v.ndim < 2) throw Refused{"a plane needs two axes"};
  if (v.size() && elements_of(v.shape[v.ndim - 2], v.shape[v.ndim - 1]) > kMostOfPlane)
    throw Refused{"planes that are too large"};
  return v;
}

// Returns x with the lengths of the last two axes replaced.
View with_lengths(PyObject* object, const View& x) {
  View v = x;
  if (to_ints(object, v.shape + v.ndim - 2, 2) != 2) throw Refused{"not two lengths"};
  if (v.shape[v.ndim - 2] < 0 || v.shape[v.ndim - 1] < 0) throw Refused{"a negative length"};
  if (elements_of(v.shape[v.ndim - 2], v.shape[v.ndim - 1]) > kMostWindows) throw std::bad_alloc();
  return v;
}
// Reads the tuple `window`. Its last two numbers are dilations if the pool takes maxima.
void read_window(PyObject* object, Launch& launch, bool maxima) {
  int64_t* n = launch.ints;
  if (to_ints(object, n, kMaxInts) != kMaxInts) throw Refused{"not eight numbers of a window"};
  for (int k = 0; k < kMaxInts; ++k)
    if ((k < 6 || maxima) && (n[k] < 0 || n[k] > kMostReach)) throw Refused{"a number outside its range"};
  for (int d = 0; d < 2; ++d)
    if (maxima && elements_of(n[d], n[6 + d]) > 2 * kMostReach) throw Refused{"windows that are too large"};
}

// max_pool(x, window, lengths), and the same for max_pool_indices, avg_pool and avg_unpool: `lengths` are those of the last two axes
// of the result.
template <bool kMaxima, bool kIndices> PyObject* call_pool(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 3);
  View views[2];
  const View& x = views[1] = planes_or_refuse(args[0]);
  Launch launch{static_cast<const Kernel*>(table), 1, 1, views, {}, {}, nullptr};
  read_window(args[1], launch, kMaxima);
  const View like = with_lengths(args[2], x);
  Result y(kIndices ? DType::i64 : x.dtype, x.ndim, like.shape, views[0]);
  run_released(launch, x.size() + 4 * like.size());
  return y.hand_out();
}

// max_pool_pullback(g, x, window)
PyObject* call_pullback(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 3);
  View views[3];
  const View &x = views[2] = planes_or_refuse(args[1]), &g = views[1] = planes_or_refuse(args[0]);
  bool fits = g.dtype == x.dtype && g.ndim == x.ndim;
  for (int d = 0; fits && d + 2 < x.ndim; ++d) fits = g.shape[d] == x.shape[d];
  if (!fits) throw Refused{"g does not fit x"};
  Launch launch{static_cast<const Kernel*>(table), 1, 2, views, {}, {}, nullptr};
  read_window(args[2], launch, true);
  Result gx(x.dtype, x.ndim, x.shape, views[0]);
  run_released(launch, 2 * x.size() + 4 * g.size());
  return gx.hand_out();
}

}  // namespace

void bind_pool(PyObject* module) {
  define(module, kernels::max_pool, call_pool<true, false>, &kernels::max_pool);
  define(module, kernels::max_pool_indices, call_pool<true, true>, &kernels::max_pool_indices);
  define(module, kernels::max_pool_pullback, call_pullback, &kernels::max_pool_pullback);
  define(module, kernels::avg_pool, call_pool<false, false>, &kernels::avg_pool);
  define(module, kernels::avg_unpool, call_pool<false, false>, &kernels::avg_unpool);
}

}  // namespace pb
