// The rows of the table of scatters: a backend makes its kernels of them.
#pragma once
#include "kernels/scatter.h"
#include "math/counting.h"
#include "math/scalar.h"

namespace pb::kernels {

struct Add {
  template <class A> PB_HD A operator()(A y, A u) const { return m::add(y, u); }
  PB_HD bool operator()(bool y, bool u) const { return y | u; }
};
struct Max {  // this way round a NaN wins
  template <class A> PB_HD A operator()(A y, A u) const { return u > y || u != u ? u : y; }
};
struct Min {
  template <class A> PB_HD A operator()(A y, A u) const { return u < y || u != u ? u : y; }
};
struct Set {  // moves bytes, whatever the dtype
  template <class A> PB_HD A operator()(A, A u) const { return u; }
};

template <class Op, Scattering kHow, Identity kBefore = Identity::zero> struct ScatterRow {
  using Functor = Op;
  static constexpr bool kMoves = std::is_same_v<Op, Set>;
  static constexpr Scattering kScattering = kHow;
  static constexpr Identity kIdentity = kBefore;
};

// add(ScatterRow<...>{}, name) for every op.
template <class Visit> void each_scatter(Visit&& add) {
  add(ScatterRow<Add, Scattering::onto>{}, "index_add");
  add(ScatterRow<Max, Scattering::onto>{}, "index_max");
  add(ScatterRow<Min, Scattering::onto>{}, "index_min");
  add(ScatterRow<Set, Scattering::onto>{}, "index_set");
  add(ScatterRow<Add, Scattering::into>{}, "scatter_add");
  add(ScatterRow<Add, Scattering::along>{}, "along_axis_add");
  add(ScatterRow<Add, Scattering::segments>{}, "segment_sum");
  add(ScatterRow<Max, Scattering::segments, Identity::lowest>{}, "segment_max");
  add(ScatterRow<Min, Scattering::segments, Identity::highest>{}, "segment_min");
}

// The row's entry for the bindings.
template <class R> Scatter entry(R, const char* name) {
  constexpr auto run = R::kScattering == Scattering::onto    ? index_write
                       : R::kScattering == Scattering::along ? along_axis_add
                                                             : scatter_write;
  return {{name, run, scatter_cost},
          R::kScattering,
          R::kIdentity,
          R::kScattering == Scattering::segments ? Negative::refused : Negative::from_end,
          counts_of([] { (void)typename R::Functor()(Counting(0.5), Counting(0.25)); })};
}

}  // namespace pb::kernels
