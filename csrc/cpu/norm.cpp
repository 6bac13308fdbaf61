// Layer norm and RMS norm, and their pullbacks; the variance and the deviation of rows.
#include "cpu/index.h"
#include "cpu/rows.h"
#include "families/executed.h"
#include "families/norm_rows.h"
#include "families/order.h"

namespace pb::cpu {
namespace {

constexpr int64_t kStrip = 64;  // columns whose sums of chains are added up together

using kernels::kOrderChain;
using kernels::order_chains;

template <class C> const C* read_all(const View& v, Scratch& scratch) { return Rows<C>(v, scratch).read(0).data; }

// Calls f(w), or f(none()) if w is null.
template <class C, class F> void call_given(const C* w, const F& f) {
  if (w) f(w);
  else f(kernels::none());
}

template <bool kCentred> void norm(const Launch& launch) {
  const View& x = launch.in();
  const int64_t n = row_length(x);
  if (n == 0) return;
  visit_row(x, [&](auto tag) {
    using C = decltype(tag);
    Scratch scratch;
    int next = 1;
    const C* weight = launch.ints[0] ? read_all<C>(launch.in(next++), scratch) : nullptr;
    const C* bias = launch.ints[1] ? read_all<C>(launch.in(next), scratch) : nullptr;
    for_rows(x, 1, [&](int64_t begin, int64_t end) {
      Scratch near;
      const Rows<C> in(x, near);
      const RowsOut<C> out(launch.out(), near, kNontemporalBytes);
      call_given(weight, [&](auto w) {
        call_given(bias, [&](auto b) {
          for (int64_t k = begin; k < end; ++k) {
            kernels::Norm<kCentred>()(Loop{n}, in.read(k), w, b, C(launch.reals[0]), out.open(k));
            out.close(k);
          }
        });
      });
    });
  });
}

// The gradients of weight and bias are summed over each chain of rows, and then over the chains.
template <bool kCentred, class C> void norm_pullback_as(const Launch& launch) {
  constexpr int kSums = kCentred ? 2 : 1;
  const View &g = launch.in(0), &x = launch.in(1);
  const int64_t n = row_length(x), rows = row_count(x), chains = order_chains(rows);
  Scratch scratch;
  const C* weight = launch.ints[0] ? read_all<C>(launch.in(2), scratch) : nullptr;
  C* sums = scratch.take<C>(std::max<int64_t>(1, chains) * kSums * n);
  parallel_for(chains, std::max<int64_t>(1, kRowGrain / (kOrderChain * n)), [&](int64_t begin, int64_t end) {
    Scratch near;
    const Rows<C> g_rows(g, near), x_rows(x, near);
    const RowsOut<C> gx_rows(launch.out(), near, kNontemporalBytes);
    for (int64_t chain = begin; chain < end; ++chain) {
      C* sum = sums + chain * kSums * n;
      std::fill_n(sum, kSums * n, C(0));
      call_given(weight, [&](auto w) {
        for (int64_t k = chain * kOrderChain; k < std::min(rows, (chain + 1) * kOrderChain); ++k) {
          kernels::NormPullback<kCentred>()(Loop{n}, g_rows.read(k), x_rows.read(k), w, C(launch.reals[0]), gx_rows.open(k),
                                            sum, sum + n);
          gx_rows.close(k);
        }
      });
    }
  });
  const int64_t width = kSums * n, blocks = kernels::order_blocks(chains), strips = (width + kStrip - 1) / kStrip;
  C* const results = scratch.take<C>(std::max<int64_t>(1, blocks) * width);
  std::fill_n(results, width, C(0));
  parallel_for(blocks * strips, std::max<int64_t>(1, kRowGrain / (std::clamp<int64_t>(chains, 1, kOrderBlock) * kStrip)),
               [&](int64_t begin, int64_t end) {
                 alignas(64) C lanes[kMostGroups * kStrip];
                 for (int64_t unit = begin; unit < end; ++unit) {
                   const int64_t block = unit / strips, column = unit % strips * kStrip;
                   reduce_block<sum_reduce>(std::min(kOrderBlock, chains - block * kOrderBlock),
                                            std::min(kStrip, width - column), sums + block * kOrderBlock * width + column,
                                            width, lanes, results + block * width + column);
                 }
               });
  reduce_pairs<sum_reduce>(blocks, width, results);
  for (int s = 0; s < kSums; ++s) {
    const View& out = launch.out(1 + s);
    store(compute_type(out.dtype), out.dtype, results + s * n, n, out.data, item_size(out.dtype));
  }
}

template <bool kCentred> void norm_pullback(const Launch& launch) {
  if (row_length(launch.in()) == 0) return;
  visit_row(launch.in(), [&](auto tag) { norm_pullback_as<kCentred, decltype(tag)>(launch); });
}

template <class F> void spread(const Launch& launch, const F& measure) {
  Scratch scratch;
  const View x = contiguous_as(launch.in().dtype, launch.in(), scratch);  // the elements of a row may be far apart
  visit_row(x, [&](auto tag) {
    using C = decltype(tag);
    for_rows(x, 1, [&](int64_t begin, int64_t end) {
      Scratch near;
      const Rows<C> in(x, near);
      const RowsOut<C> out(launch.out(), near, kNontemporalBytes);
      for (int64_t k = begin; k < end; ++k) {
        measure(Loop{row_length(x)}, in.read(k), out.open(k));
        out.close(k);
      }
    });
  });
}

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

Walks walks_of_norm(const Launch& launch) {
  const int64_t n = row_length(launch.in()), rows = row_count(launch.in());
  return {rows, rows * n, rows * (n - 1), 0};
}
Walks walks_of_norm_pullback(const Launch& launch) { return walks_of_norm(launch); }
void executed_sums(const Launch& launch, int sums, Counts& work) {
  work.adds += std::max<int64_t>(0, order_chains(row_count(launch.in())) - 1) * sums * row_length(launch.in());
}

void run_layer_norm(const Launch& launch) { cpu::norm<true>(launch); }
void run_layer_norm_pullback(const Launch& launch) { cpu::norm_pullback<true>(launch); }
void run_rms_norm(const Launch& launch) { cpu::norm<false>(launch); }
void run_rms_norm_pullback(const Launch& launch) { cpu::norm_pullback<false>(launch); }
void run_variance(const Launch& launch) { cpu::spread(launch, Variance()); }
void run_deviation(const Launch& launch) { cpu::spread(launch, Deviation{launch.reals[0]}); }

}  // namespace pb::kernels
