// Divides the value of each row by the row's number of labels that are not ignored.
#include "cpu/copy.h"
#include "cpu/index.h"
#include "cpu/pool.h"
#include "cpu/rows.h"

namespace pb::kernels {

using namespace cpu;

void divide_by_count(const Launch& launch) {
  constexpr int64_t kGrain = 64 * 1024;  // the fewest labels per thread
  const View &out = launch.out(), &labels = launch.in(1);
  const int64_t n = row_length(labels), ignored = launch.ints[0];
  Scratch scratch;
  const int64_t* label = contiguous_as(DType::i64, labels, scratch).as<int64_t>();
  visit_row(out, [&](auto zero) {
    using C = decltype(zero);
    const DType wide = storage_of(compute_of<C>);
    const C* x = contiguous_as(wide, launch.in(0), scratch).template as<C>();
    C* y = out.dtype == wide ? out.as<C>() : scratch.take<C>(out.size());
    parallel_for(out.size(), std::max<int64_t>(1, kGrain / std::max<int64_t>(n, 1)), [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        int64_t count = 0;
        for (int64_t i = 0; i < n; ++i) count += label[k * n + i] != ignored;
        y[k] = x[k] / C(count);
      }
    });
    if (out.dtype != wide) assign(out, contiguous_view(y, wide, out));
  });
}

}  // namespace pb::kernels
