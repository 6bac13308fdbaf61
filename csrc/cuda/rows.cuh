// Walks over rows on a GPU, for the formulas of families/rows.h: the threads that share a row, and where they hold its elements.
// Elements are combined in the order of families/order.h: the lanes of a warp share a block of elements, eight elements each.
#pragma once
#include "cuda/operand.cuh"
#include "cuda/order.cuh"
#include "cuda/shares.h"
#include "families/rows.h"

namespace pb::cuda {

// ---- operands

// A row of an operand: its address, and the bytes from element to element.
//
// Neighbouring lanes read neighbouring elements, one at a time. Packs of several elements would not be read faster, because eight
// reads per lane are under way at once, and their sums would take a shuffle per element of the pack in each round.
struct Line {
  char* data = nullptr;
  int64_t step = 0;
  DType dtype = DType::f32;

  Line() = default;
  // The rows of v, which may be a single one.
  explicit Line(const View& v) : data(v.data), step(v.stride[v.ndim - 1]), dtype(v.dtype) {}
  template <class T> __device__ acc_t<T> load(int64_t k) const { return read<T>(dtype, data + k * step); }
  template <class T> __device__ void store(int64_t k, acc_t<T> x) const { write<T>(dtype, data + k * step, x); }
};

// The position of an element in a walk: its number among those that the thread has of a block, and its column in the row.
template <class I> struct ElementPosition {
  int slot;
  I column;
};

// A row in memory that is read in place. The thread reads its elements of a block together, when the first is asked for. If there
// is no row, reads give `otherwise`.
template <class T, class I> struct MemoryRow {
  using C = acc_t<T>;
  Line line;
  I n;
  int apart;
  C otherwise;
  mutable C held[kShare];

  __device__ __forceinline__ C operator[](ElementPosition<I> i) const {
    if (i.slot == 0) fill(i.column);
    return held[i.slot];
  }
  __device__ __forceinline__ void fill(I column) const {
    const char* at = line.data + column * line.step;
    const int64_t by = apart * line.step;
    const int left = line.data ? int(n - column < kOrderBlock ? n - column : kOrderBlock) : 0;
#pragma unroll
    for (int k = 0; k < kShare; ++k, at += by) held[k] = k * apart < left ? read<T>(line.dtype, at) : otherwise;
  }
};

// ---- the threads that share a row

// A team is a power of two of lanes in a warp, whose row has a single block of elements, or the threads of a block, in which each
// warp has other blocks of elements.
struct Team {
  unsigned rank, size;
  mutable unsigned turn = 0;

  __device__ __forceinline__ bool is_block() const { return size > kWarp; }
  __device__ __forceinline__ int lanes() const { return is_block() ? int(kWarp) : int(size); }
  __device__ __forceinline__ int lane() const { return int(rank % kWarp); }

  // Combines the shares of the lanes that have a block of elements. All of them get the result.
  template <class R, class C> __device__ __forceinline__ C fold_lanes(C a) const {
#pragma unroll
    for (int half = kWarp / 2; half > 0; half /= 2) {
      const C other = shuffle_xor(a, half);  // outside of the condition, so that the compiler knows that all lanes take part
      if (half < lanes()) a = R::combine(a, other);
    }
    return a;
  }
  // Combines the results of the warps, in pairs of neighbours.
  template <class R, class C> __device__ __forceinline__ C fold_warps(C a) const {
    if (is_block()) {
      // Double-buffered. A warp that overwrites a buffer has passed the other buffer's barrier, which every thread reaches only
      // after reading this one.
      __shared__ C partial[2][kMaxWarps];
      C* const now = partial[turn++ % 2];
      if (threadIdx.x % kWarp == 0) now[threadIdx.x / kWarp] = a;
      __syncthreads();
      const unsigned k = threadIdx.x % kMaxWarps;
      a = fold_neighbours<R, kMaxWarps>(k < size / kWarp ? now[k] : no_term<R, C>());
    }
    return a;
  }
  __device__ bool any(bool b) const { return __any_sync(kFull, b) != 0; }
};

// Returns the number of this thread's team among those of all blocks.
__device__ inline uint32_t team_number(const RowPartition& partition) {
  return blockIdx.x * partition.teams + (partition.in_block() ? 0 : threadIdx.x >> partition.shift);
}

// A row in registers. Each thread holds kShare elements, which are as many columns apart as there are lanes.
template <class T> struct RegisterRow {
  using C = acc_t<T>;
  using Where = ElementPosition<int>;

  Team team;
  int n, first, slots;  // columns; this thread's first one; and how many it has
  bool active;          // true if there is such a row; threads without one stay in step with the rest of their warp

  __device__ RegisterRow(const RowPartition& partition, bool active)
      : team{partition.in_block() ? threadIdx.x : threadIdx.x & (partition.team - 1), partition.team},
        n(partition.n),
        active(active) {
    first = int(team.rank / kWarp * kOrderBlock) + team.lane();
    slots = (n - first + team.lanes() - 1) >> partition.shift;
  }

  __device__ __forceinline__ Where place(int slot) const { return {slot, first + slot * team.lanes()}; }
  __device__ __forceinline__ bool has(int slot) const { return slot < slots; }

  template <class R, class F, class... Rows> __device__ __forceinline__ C fold(const F& f, const Rows&...) const {
    C a[kShare];
#pragma unroll
    for (int s = 0; s < kShare; ++s) {
      a[s] = no_term<R, C>();
      if (has(s)) a[s] = f(place(s));
    }
    return team.template fold_warps<R>(team.template fold_lanes<R>(fold_share<R>(a)));
  }
  template <class F> __device__ __forceinline__ void each(const F& f) const {
#pragma unroll
    for (int s = 0; s < kShare; ++s)
      if (has(s)) f(place(s));
  }
  __device__ C mean(C sum) const { return sum / C(double(n)); }
  __device__ bool any(bool b) const { return team.any(b); }

  // The registers, read and written as a row.
  struct Kept {
    C* v;
    Line line;
    __device__ __forceinline__ C& operator[](Where i) const { return v[i.slot]; }
  };
  __device__ __forceinline__ C at(const Kept& x, int64_t k) const { return x.line.template load<T>(k); }
  template <class F> __device__ __forceinline__ void change(const Kept& y, int64_t k, const F& f) const {
#pragma unroll
    for (int s = 0; s < kShare; ++s)
      if (place(s).column == int(k)) y.v[s] = f(y.v[s]);
  }
  __device__ MemoryRow<T, int> memory_row(const Line& line, C otherwise) const {
    return {line, n, team.lanes(), otherwise, {}};
  }

  __device__ __forceinline__ Kept load(const Line& line, C (&x)[kShare]) const {
    const char* at = line.data + first * line.step;
#pragma unroll
    for (int s = 0; s < kShare; ++s, at += team.lanes() * line.step) x[s] = has(s) ? read<T>(line.dtype, at) : C(0);
    return {x, line};
  }
  __device__ __forceinline__ void store(const Line& line, const C (&x)[kShare]) const {
    if (!active) return;
    char* at = line.data + first * line.step;
#pragma unroll
    for (int s = 0; s < kShare; ++s, at += team.lanes() * line.step)
      if (has(s)) write<T>(line.dtype, at, x[s]);
  }
  __device__ C load_one(const Line& line) const { return line.load<T>(0); }
  __device__ void store_one(const Line& line, C y) const {
    if (active && team.rank == 0) line.store<T>(0, y);
  }
};

// A row too long for registers, processed by a block of threads. Every pass reads it again, usually from the L2 cache.
template <class T> struct Streamed {
  using C = acc_t<T>;
  using Where = ElementPosition<int64_t>;

  Team team;
  int64_t n, begin, end;  // the elements of this thread's warp are [begin, end)
  static constexpr bool active = true;

  __device__ Streamed(int64_t n, unsigned rank) : team{rank, kMaxTeam}, n(n) {
    const int64_t elements = elements_per_warp(n);
    // The number of the warp comes from a shuffle, so that the compiler knows that a warp's lanes stay together.
    begin = shuffle_from(rank / kWarp, 0) * elements;
    end = begin + elements < n ? begin + elements : n;
  }

  __device__ __forceinline__ Where place(int64_t block, int slot) const {
    return {slot, block + team.lane() + slot * team.lanes()};
  }

  // Returns the number of columns from this lane's first one in a block to the end of the block or of the row.
  __device__ __forceinline__ int left_of(int64_t block) const {
    return int(n - block < kOrderBlock ? n - block : kOrderBlock) - team.lane();
  }

  template <class R, class F, class... Rows> __device__ __forceinline__ C fold(const F& f, const Rows&...) const {
    Neighbours<R, C> results;
#pragma unroll 1
    for (int64_t block = begin; block < end; block += kOrderBlock) {
      C a[kShare];
      const int left = left_of(block);
#pragma unroll
      for (int s = 0; s < kShare; ++s) {
        a[s] = no_term<R, C>();
        if (s * int(kWarp) < left) a[s] = f(place(block, s));
      }
      results.add(team.template fold_lanes<R>(fold_share<R>(a)));
    }
    return team.template fold_warps<R>(results.combined());
  }
  template <class F> __device__ __forceinline__ void each(const F& f) const {
#pragma unroll 1
    for (int64_t block = begin; block < end; block += kOrderBlock) {
      const int left = left_of(block);
#pragma unroll
      for (int s = 0; s < kShare; ++s)
        if (s * int(kWarp) < left) f(place(block, s));
    }
  }
  __device__ C mean(C sum) const { return sum / C(double(n)); }
  __device__ bool any(bool b) const { return b; }
  __device__ C at(const MemoryRow<T, int64_t>& x, int64_t k) const { return x.line.template load<T>(k); }
  __device__ MemoryRow<T, int64_t> memory_row(const Line& line, C otherwise = C(0)) const {
    return {line, n, team.lanes(), otherwise, {}};
  }

  // A row that is written, in the order of each(): one element for each position.
  struct Written {
    Line line;
    int apart;
    mutable char* at;
    struct Cell {
      DType dtype;
      char* at;
      __device__ __forceinline__ void operator=(C value) const { write<T>(dtype, at, value); }
    };
    __device__ __forceinline__ Cell operator[](Where i) const {
      if (i.slot == 0) at = line.data + i.column * line.step;
      else at += apart * line.step;
      return {line.dtype, at};
    }
  };
  __device__ Written written(const Line& line) const { return {line, team.lanes(), nullptr}; }

  __device__ C load_one(const Line& line) const { return line.load<T>(0); }
  __device__ void store_one(const Line& line, C y) const {
    if (team.rank == 0) line.store<T>(0, y);
  }
};

// The largest element of a streamed row, and the sum of exp(x - top), where that of the largest is 1 also if it is infinite.
template <class C> struct Exponentials {
  C top, sum;
  __device__ __forceinline__ C of(C x) const { return m::exp_nonpositive(kernels::below(x, top, kernels::is_lone(sum, top))); }
};
template <class T> __device__ __forceinline__ auto exponentials(const Streamed<T>& over, const MemoryRow<T, int64_t>& x) {
  using C = acc_t<T>;
  const C top = kernels::largest_of(over, x);
  return Exponentials<C>{top, over.template fold<sum_reduce>([=](auto i) { return kernels::exp_below(C(x[i]), top); })};
}
template <class T, class C>
__device__ __forceinline__ C others_of(const Streamed<T>& over, const MemoryRow<T, int64_t>& x, const Exponentials<C>& e) {
  const C top = e.top;
  return kernels::others_of(over, e.sum, [=](auto i) { return kernels::exp_below(C(x[i]), top); });
}

}  // namespace pb::cuda
