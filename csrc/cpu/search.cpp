// Binary search without branches. A group of values is searched in lockstep, so that their cache misses overlap.
#include <algorithm>

#include "cpu/index.h"
#include "cpu/pool.h"
#include "cpu/stream.h"
#include "families/sort.h"

namespace pb::kernels {
namespace {

using namespace cpu;

constexpr int64_t kGrain = 2048;  // the fewest values per thread: about 10 us
constexpr int64_t kGroup = 8;

// True if a comes before b in sorted order, where NaN comes last.
template <class C> bool less(C a, C b) { return a < b || (b != b && a == a); }

// True if a sorted element lies before the position of v: if it is less than v or, with kRight, not greater.
template <class C, bool kRight> bool before(C element, C v) { return kRight ? !less(v, element) : less(element, v); }

template <class C, bool kRight>
void search_group(const C* sorted, int64_t n, const C* values, int64_t count, int64_t* y) {
  int64_t first[kGroup] = {};
  for (int64_t length = n; length > 1; length -= length / 2)
    for (int64_t k = 0; k < count; ++k)
      first[k] += before<C, kRight>(sorted[first[k] + length / 2 - 1], values[k]) ? length / 2 : 0;
  for (int64_t k = 0; k < count; ++k) y[k] = first[k] + (n > 0 && before<C, kRight>(sorted[first[k]], values[k]));
}

template <class C, bool kRight> void search(const C* sorted, int64_t n, View values, int64_t* y) {
  collapse(&values, 1);
  parallel_for(values.size(), kGrain, [&](int64_t begin, int64_t end) {
    alignas(64) char buffer[kBlockBytes];
    Reader reader(values, compute_type(values.dtype));
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t length = std::min(kBlock, end - i);
      const C* v = static_cast<const C*>(reader.block(i, length, buffer));
      for (int64_t k = 0; k < length; k += kGroup)
        search_group<C, kRight>(sorted, n, v + k, std::min(kGroup, length - k), y + i + k);
    }
  });
}

}  // namespace

void searchsorted(const Launch& launch) {
  Scratch scratch;
  const View& values = launch.in(1);
  const Compute compute = compute_type(values.dtype);
  const View sorted = contiguous_as(storage_of(compute), launch.in(0), scratch);
  int64_t* y = launch.out().as<int64_t>();
  visit(compute, [&](auto t) {
    using C = typename decltype(t)::type;
    if (launch.ints[0]) search<C, true>(sorted.as<C>(), sorted.size(), values, y);
    else search<C, false>(sorted.as<C>(), sorted.size(), values, y);
  });
}

}  // namespace pb::kernels
