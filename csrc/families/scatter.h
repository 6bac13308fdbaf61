// Writing at indices along an axis. Every target takes its updates in the order of the indices. A target's float32 updates are added up
// in blocks of kSumBlock, and its blocks in float64: so the error of a sum does not grow with the number of updates.
#pragma once
#include <cstring>
#include <vector>

#include "families/index.h"
#include "math/convert.h"
#include "math/counting.h"
#include "math/scalar.h"

namespace pb::kernels {

enum class Identity { zero, lowest, highest };  // the value of a target before its updates, if there is no operand for it

// Updates of one target that are added up in float32. The stated work leaves the sums of the blocks out.
constexpr int64_t kSumBlock = 32;

// The ways of writing: onto an array, into zeros at indices that all rows share, into zeros at one index per element, and by
// segments.
enum class Scattering { onto, into, along, segments };

// An op of this family, as the bindings see it.
struct Scatter {
  Kernel kernel;
  Scattering how;
  Identity identity;
  Negative negative;
  Counts counts;  // the work of one update, measured by running the functor on the counting scalar
};

// Returns every op of the family; each backend defines this function.
const std::vector<const Scatter*>& scatters();

inline void scatter_cost(const Launch& launch, Cost& cost) {
  cost.add(static_cast<const Scatter*>(launch.table)->counts, launch.in(launch.inputs - 1).size());
}

// Returns the bits of the identity of updates to elements of `dtype`, as an element of dtype `stored`.
inline uint64_t identity_of(Identity identity, DType dtype, DType stored) {
  uint64_t bits = 0;
  if (identity == Identity::zero) return bits;
  visit(dtype, [&](auto t) {
    using A = acc_t<typename decltype(t)::type>;
    const A number = identity == Identity::lowest ? m::kLowest<A> : m::kHighest<A>;
    visit(stored, [&](auto s) {
      const auto value = m::narrow<typename decltype(s)::type>(number);
      std::memcpy(&bits, &value, sizeof value);
    });
  });
  return bits;
}

// Each backend defines these, in addition to scatters().
// out: x with the updates combined in along axis ints[0]. in: x, indices, updates.
void index_write(const Launch& launch);
// Like index_write, but into the identity. in: indices, updates.
void scatter_write(const Launch& launch);
// updates and indices have one shape: each element has its own index along the axis. in: indices, updates.
void along_axis_add(const Launch& launch);

struct Add {
  template <class A> PB_HD A operator()(A y, A u) const { return m::add(y, u); }
  PB_HD bool operator()(bool y, bool u) const { return y | u; }
};
struct Max {  // NaN if either argument is NaN
  template <class A> PB_HD A operator()(A y, A u) const { return u > y || u != u ? u : y; }
};
struct Min {
  template <class A> PB_HD A operator()(A y, A u) const { return u < y || u != u ? u : y; }
};
struct Set {  // moves bytes of any dtype
  template <class A> PB_HD A operator()(A, A u) const { return u; }
};

template <class Op, class C> constexpr bool kHasLongSums = std::is_same_v<Op, Add> && std::is_same_v<C, float>;

template <class Op, Scattering kHow, Identity kBefore = Identity::zero> struct ScatterEntry {
  using Functor = Op;
  static constexpr bool kMoves = std::is_same_v<Op, Set>;
  static constexpr Scattering kScattering = kHow;
  static constexpr Identity kIdentity = kBefore;
};

// Calls add(ScatterEntry<...>{}, name) for every op; a backend instantiates its kernels with it.
template <class Visit> void each_scatter(Visit&& add) {
  add(ScatterEntry<Add, Scattering::onto>{}, "index_add");
  add(ScatterEntry<Max, Scattering::onto>{}, "index_max");
  add(ScatterEntry<Min, Scattering::onto>{}, "index_min");
  add(ScatterEntry<Set, Scattering::onto>{}, "index_set");
  add(ScatterEntry<Add, Scattering::into>{}, "scatter_add");
  add(ScatterEntry<Add, Scattering::along>{}, "along_axis_add");
  add(ScatterEntry<Add, Scattering::segments>{}, "segment_sum");
  add(ScatterEntry<Max, Scattering::segments, Identity::lowest>{}, "segment_max");
  add(ScatterEntry<Min, Scattering::segments, Identity::highest>{}, "segment_min");
}

// Returns what the bindings read of an entry.
template <class R> Scatter scatter_of(R, const char* name) {
  constexpr auto run = R::kScattering == Scattering::onto    ? index_write
                       : R::kScattering == Scattering::along ? along_axis_add
                                                             : scatter_write;
  return {{name, run, scatter_cost},
          R::kScattering,
          R::kIdentity,
          R::kScattering == Scattering::segments ? Negative::refused : Negative::from_end,
          counts_of([] { (void)typename R::Functor()(CountingScalar(0.5), CountingScalar(0.25)); })};
}

}  // namespace pb::kernels
