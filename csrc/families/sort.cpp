// The kernels of sorting.
#include "families/sort.h"

#include <algorithm>

#include "launch/signature.h"

namespace pb::kernels {
namespace {

constexpr int kSortWork = 16;

const Kernel of_sort{"sort", sort, sort_cost}, of_argsort{"argsort", argsort, sort_cost};

const char* refuses_long(const Launch& launch) {
  const View& x = launch.in();
  const bool fits = std::all_of(x.shape, x.shape + x.ndim, [](int64_t length) { return length < kMaxRow; });
  return fits ? nullptr : "an axis of more than 2^32 elements";
}

const KernelRows table{
    // every sort is stable, whatever `stable` is
    {&of_sort, "(any x[...], axis axis, flag descending, flag stable) -> y[...]", kSortWork, refuses_long},
    {&of_argsort, "(any x[...], axis axis, flag descending, flag stable) -> i64 y[...]", kSortWork, refuses_long},
};

}  // namespace
}  // namespace pb::kernels
