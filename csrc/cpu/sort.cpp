// Sorts rows in parallel: long rows by radix, short rows by comparison.
#include "families/sort.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu/copy.h"
#include "cpu/pool.h"
#include "cpu/scratch.h"

namespace pb::kernels {
namespace {

using cpu::parallel_for, cpu::Scratch, cpu::assign;

// The shortest row that is sorted by radix. For shorter rows the passes over the counts, one per byte of a key, cost more than
// comparisons.
template <class U> constexpr int64_t kRadixFrom = 24 * sizeof(U);
constexpr int64_t kPick = 128;    // elements that a selection compares with the limit at a time
constexpr int64_t kGrain = 4096;  // the fewest elements per thread: at least 10 us

// Sorts by key(item), from the least significant byte on; equal keys stay in order. It uses the buffers a and b, and returns the
// one that holds the result. The row is copied to b while it is counted, because other threads may write to the row, and the
// positions must fit the keys that were counted.
template <class Item, class Key>
const Item* radix_sort(const Item* row, Item* a, Item* b, int64_t n, Key key) {
  using U = decltype(key(*row));
  constexpr int kDigits = sizeof(U);
  uint32_t starts[kDigits][256] = {};
  const Item* source = b;
  for (int64_t i = 0; i < n; ++i) {
    b[i] = row[i];
    const U k = key(b[i]);
    for (int d = 0; d < kDigits; ++d) ++starts[d][uint8_t(k >> (8 * d))];
  }
  for (int d = 0; d < kDigits; ++d) {
    if (starts[d][uint8_t(key(source[0]) >> (8 * d))] == n) continue;  // all keys have the same byte
    uint32_t start = 0;
    for (uint32_t& count : starts[d]) start += std::exchange(count, start);
    for (int64_t i = 0; i < n; ++i) a[starts[d][uint8_t(key(source[i]) >> (8 * d))]++] = source[i];
    source = a;
    std::swap(a, b);
  }
  return source;
}

// Returns the row's keys with their positions, sorted. `items` has room for 2 n items.
template <class U> const Keyed<U>* sorted_items(const U* x, int64_t n, const Order<U>& order, Keyed<U>* items) {
  for (int64_t i = 0; i < n; ++i) items[i] = {order.key(x[i]), uint64_t(i)};
  if (n >= kRadixFrom<U>) return radix_sort(items, items + n, items, n, [](const Keyed<U>& item) { return item.key(); });
  std::sort(items, items + n);
  return items;
}

template <class U> void argsort_row(const U* x, int64_t n, int64_t* y, const Order<U>& order, Keyed<U>* items) {
  const Keyed<U>* sorted = sorted_items(x, n, order, items);
  for (int64_t i = 0; i < n; ++i) y[i] = sorted[i].position();
}

template <class U> void sort_row(const U* x, int64_t n, U* y, const Order<U>& order, Keyed<U>* items) {
  if (n >= kRadixFrom<U>) {
    const U* sorted = radix_sort(x, y, reinterpret_cast<U*>(items), n, [order](U bits) { return order.key(bits); });
    if (sorted != y) std::memcpy(y, sorted, n * sizeof(U));
    return;
  }
  const Keyed<U>* sorted = sorted_items(x, n, order, items);
  for (int64_t i = 0; i < n; ++i) y[i] = x[sorted[i].position()];
}

// Selects the first k items of the row, in order. Most blocks are skipped, because all of their keys come after the k-th best so
// far.
template <class U> void select_first(const U* x, int64_t n, int64_t k, const Order<U>& order, Keyed<U>* items) {
  const int64_t room = 2 * k + kPick;
  int64_t count = 0;
  U limit = U(~U(0));
  U keys[kPick];
  for (int64_t begin = 0; begin < n; begin += kPick) {
    const int64_t length = std::min(kPick, n - begin);
    U least = U(~U(0));
    for (int64_t i = 0; i < length; ++i) keys[i] = order.key(x[begin + i]), least = std::min(least, keys[i]);
    if (least > limit) continue;
    for (int64_t i = 0; i < length; ++i)
      if (keys[i] <= limit) items[count++] = {keys[i], uint64_t(begin + i)};
    if (count + kPick <= room) continue;
    std::nth_element(items, items + k - 1, items + count);
    count = k, limit = items[k - 1].key();
  }
  std::partial_sort(items, items + k, items + count);
}

template <class U>
void first_of_row(const U* x, int64_t n, int64_t* y, int64_t k, const Order<U>& order, Keyed<U>* items) {
  const Keyed<U>* first = items;
  if (k >= kRadixFrom<U> && k > n / 64) first = sorted_items(x, n, order, items);
  else if (k > 0) select_first(x, n, k, order, items);
  for (int64_t i = 0; i < k; ++i) y[i] = first[i].position();
}

// Returns the view with the axis moved to the end.
View rows_of(View v, int axis) {
  for (int d = axis; d + 1 < v.ndim; ++d) std::swap(v.shape[d], v.shape[d + 1]), std::swap(v.stride[d], v.stride[d + 1]);
  return v;
}

View contiguous_like(const View& like, Scratch& scratch) {
  View v = like;
  v.data = static_cast<char*>(scratch.take_bytes(v.bytes()));
  int64_t stride = item_size(v.dtype);
  for (int d = v.ndim - 1; d >= 0; --d) v.stride[d] = stride, stride *= v.shape[d];
  return v;
}

// Calls row(x, n, y, order, items) for each row of x along the axis. Rows that are not contiguous are copied first.
template <class Y, class F> void for_rows(const Launch& launch, bool nan_last, const F& row) {
  const int axis = int(launch.ints[0]);
  const bool descending = launch.ints[1];
  Scratch scratch;
  View x = rows_of(launch.in(), axis);
  const View out = rows_of(launch.out(), axis);
  if (out.size() == 0) return;
  if (!x.contiguous()) {
    const View moved = contiguous_like(x, scratch);
    assign(moved, x);
    x = moved;
  }
  const View y = out.contiguous() ? out : contiguous_like(out, scratch);
  const int64_t n = x.shape[x.ndim - 1], k = y.shape[y.ndim - 1];
  const auto run = [&](auto zero) {
    using U = decltype(zero);
    using Out = std::conditional_t<std::is_void_v<Y>, U, Y>;
    const Order<U> order(x.dtype, descending, nan_last);
    parallel_for(x.size() / n, std::max<int64_t>(1, kGrain / n), [&](int64_t begin, int64_t end) {
      Scratch working;
      Keyed<U>* items = working.take<Keyed<U>>(2 * n + kPick);
      for (int64_t r = begin; r < end; ++r) row(x.as<U>() + r * n, n, y.as<Out>() + r * k, order, items);
    });
  };
  switch (item_size(x.dtype)) {
    case 1: run(uint8_t{}); break;
    case 2: run(uint16_t{}); break;
    case 4: run(uint32_t{}); break;
    default: run(uint64_t{}); break;
  }
  if (y.data != out.data) assign(out, y);
}

}  // namespace

void sort(const Launch& launch) {
  for_rows<void>(launch, true,
                 [](const auto* x, int64_t n, auto* y, const auto& order, auto* items) { sort_row(x, n, y, order, items); });
}

void argsort(const Launch& launch) {
  for_rows<int64_t>(launch, true, [](const auto* x, int64_t n, int64_t* y, const auto& order, auto* items) {
    argsort_row(x, n, y, order, items);
  });
}

void first_positions(const Launch& launch) {
  const int64_t k = launch.ints[2];
  for_rows<int64_t>(launch, false, [k](const auto* x, int64_t n, int64_t* y, const auto& order, auto* items) {
    first_of_row(x, n, y, k, order, items);
  });
}

}  // namespace pb::kernels
