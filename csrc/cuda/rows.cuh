// Walks over rows on a GPU, for the formulas of families/rows.h: the threads that share a row, and where they hold its elements.
#pragma once
#include "cuda/fold.cuh"
#include "cuda/operand.cuh"
#include "families/rows.h"

namespace pb::cuda {

constexpr int kMaxTeam = 512;  // threads that share a row

// ---- operands

template <class T> constexpr int kPackOf = int(16 / sizeof(T));

// A row of an operand: its address, the bytes from element to element, and whether it can be read in packs of 16 bytes.
struct Line {
  char* data = nullptr;
  int64_t step = 0;
  bool packs = false;

  Line() = default;
  // The rows of v, which may be a single one.
  explicit Line(const View& v) : data(v.data), step(v.stride[v.ndim - 1]) {
    const int64_t n = v.shape[v.ndim - 1];
    packs = step == item_size(v.dtype) && n * item_size(v.dtype) % 16 == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
    for (int d = 0; d + 1 < v.ndim; ++d) packs = packs && (v.stride[d] % 16 == 0 || v.shape[d] == 1);
  }
  template <class T> __device__ T& at(int64_t k) const { return *reinterpret_cast<T*>(data + k * step); }
};

// Goes through uint4, because the compiler reads a struct of elements one element at a time.
template <class T> __device__ __forceinline__ void load_pack(const char* p, acc_t<T>* x) {
  const uint4 bits = *reinterpret_cast<const uint4*>(p);
  T element[kPackOf<T>];
  memcpy(static_cast<void*>(element), &bits, sizeof bits);
#pragma unroll
  for (int k = 0; k < kPackOf<T>; ++k) x[k] = acc_t<T>(element[k]);
}
template <class T> __device__ __forceinline__ void store_pack(char* p, const acc_t<T>* x) {
  T element[kPackOf<T>];
#pragma unroll
  for (int k = 0; k < kPackOf<T>; ++k) element[k] = T(x[k]);
  uint4 bits;
  memcpy(&bits, static_cast<const void*>(element), sizeof bits);
  *reinterpret_cast<uint4*>(p) = bits;
}

// The position of an element in a walk: its number among the elements of the thread, and its column in the row.
template <class I> struct ElementPosition {
  int slot;
  I column;
};

// A row in memory that is read in place, one pack at a time. If there is no row, reads give `otherwise`.
template <class T, class I> struct MemoryRow {
  using C = acc_t<T>;
  Line line;
  I n, apart;
  C otherwise;
  mutable C pack[kPackOf<T>];

  __device__ __forceinline__ C operator[](ElementPosition<I> i) const {
    if (i.slot % kPackOf<T> == 0) fill(i.column);
    return pack[i.slot % kPackOf<T>];
  }
  __device__ __forceinline__ void fill(I column) const {
    if (line.packs) return load_pack<T>(line.data + int64_t(column) * int(sizeof(T)), pack);
#pragma unroll
    for (int k = 0; k < kPackOf<T>; ++k)
      pack[k] = line.data && column + k * apart < n ? C(line.at<const T>(column + k * apart)) : otherwise;
  }
};

// ---- the threads that share a row

// A team is a power of two of lanes in a warp, or the threads of a block, whose number is a multiple of the warp size.
template <bool kBlock> struct Team {
  unsigned rank, size;
  mutable unsigned turn = 0;

  template <class R, class C> __device__ __forceinline__ C fold(C a) const {
    if constexpr (kBlock) {
      // Double-buffered. A warp that overwrites a buffer has passed the other buffer's barrier, which every thread reaches only
      // after reading this one.
      __shared__ C partial[2][kMaxTeam / kWarp];
      C* const now = partial[turn++ % 2];
      a = fold_warp<R>(a);
      if (threadIdx.x % kWarp == 0) now[threadIdx.x / kWarp] = a;
      __syncthreads();
      const unsigned k = threadIdx.x % (kMaxTeam / kWarp);
      return fold_warp<R, kMaxTeam / int(kWarp)>(k < size / kWarp ? now[k] : R::template identity<C>());
    } else {
#pragma unroll
      for (unsigned half = kWarp / 2; half > 0; half /= 2)
        if (half < size) a = R::combine(a, shuffle_xor(a, int(half)));
      return a;
    }
  }
  __device__ bool any(bool b) const { return kBlock ? b : __any_sync(kFull, b) != 0; }
};

// Distributes the n elements of a row over a team, round robin: in packs of neighbours if n is a multiple of the pack, else one by
// one. Every thread gets `whole` elements, and the first `rest` threads one unit more. The distribution depends on n and the type
// alone.
struct RowPartition {
  int n, unit, whole, rest;
  unsigned team, shift = 0;  // the team has 2^shift threads, unless it is a block

  RowPartition(int n, unsigned team, int pack) : n(n), unit(n % pack ? 1 : pack), team(team) {
    while ((1u << shift) < team) ++shift;
    whole = n / unit / int(team) * unit, rest = n / unit % int(team);
  }
};

// A row in registers: each thread of the team holds up to kPer elements.
template <class T, int kPer, bool kBlock> struct RegisterRow {
  using C = acc_t<T>;
  using Where = ElementPosition<int>;
  static constexpr int kPack = kPackOf<T>;

  Team<kBlock> team;
  int n, count, first, apart, round;
  bool active;  // true if there is such a row; threads without one stay in step with the rest of their warp

  __device__ RegisterRow(const RowPartition& partition, unsigned rank, bool active)
      : team{rank, partition.team},
        n(partition.n),
        count(partition.whole + (int(rank) < partition.rest ? partition.unit : 0)),
        first(int(rank) * partition.unit),
        apart(partition.unit > 1 ? 1 : int(partition.team)),
        round(kPack * int(partition.team)),
        active(active) {}

  __device__ __forceinline__ Where place(int slot) const { return {slot, first + slot / kPack * round + slot % kPack * apart}; }

  template <class R, class F, class... Rows> __device__ __forceinline__ C fold(const F& f, const Rows&...) const {
    const C identity = R::template identity<C>();
    C a[kPack];
#pragma unroll
    for (int k = 0; k < kPack; ++k) a[k] = identity;
#pragma unroll
    for (int s = 0; s < kPer; s += kPack)
      if (s < count) {
#pragma unroll
        for (int k = 0; k < kPack; ++k) {
          const C value = f(place(s + k));
          a[k] = R::combine(a[k], s + k < count ? value : identity);
        }
      }
#pragma unroll
    for (int half = kPack / 2; half > 0; half /= 2)
#pragma unroll
      for (int k = 0; k < half; ++k) a[k] = R::combine(a[k], a[k + half]);
    return team.template fold<R>(a[0]);
  }
  template <class F> __device__ __forceinline__ void each(const F& f) const {
#pragma unroll
    for (int s = 0; s < kPer; s += kPack)
      if (s < count) {
#pragma unroll
        for (int k = 0; k < kPack; ++k) f(place(s + k));
      }
  }
  __device__ C mean(C sum) const { return sum / C(double(n)); }
  __device__ bool any(bool b) const { return team.any(b); }

  // The registers, read and written as a row.
  struct Kept {
    C* v;
    Line line;
    __device__ __forceinline__ C& operator[](Where i) const { return v[i.slot]; }
  };
  __device__ __forceinline__ C at(const Kept& x, int64_t k) const { return C(x.line.template at<const T>(k)); }
  template <class F> __device__ __forceinline__ void change(const Kept& y, int64_t k, const F& f) const {
#pragma unroll
    for (int s = 0; s < kPer; ++s)
      if (place(s).column == int(k)) y.v[s] = f(y.v[s]);
  }
  __device__ MemoryRow<T, int> memory_row(const Line& line, C otherwise) const { return {line, n, apart, otherwise, {}}; }

  __device__ __forceinline__ Kept load(const Line& line, C (&x)[kPer]) const {
    if (line.packs) {
#pragma unroll
      for (int s = 0; s < kPer; s += kPack) {
        if (s < count) load_pack<T>(line.data + int64_t(place(s).column) * int(sizeof(T)), x + s);
        else
#pragma unroll
          for (int k = 0; k < kPack; ++k) x[s + k] = C(0);
      }
    } else {
#pragma unroll
      for (int s = 0; s < kPer; ++s) x[s] = s < count ? C(line.at<const T>(place(s).column)) : C(0);
    }
    return {x, line};
  }
  __device__ __forceinline__ void store(const Line& line, const C (&x)[kPer]) const {
    if (!active) return;
    if (line.packs) {
#pragma unroll
      for (int s = 0; s < kPer; s += kPack)
        if (s < count) store_pack<T>(line.data + int64_t(place(s).column) * int(sizeof(T)), x + s);
    } else {
#pragma unroll
      for (int s = 0; s < kPer; ++s)
        if (s < count) line.at<T>(place(s).column) = T(x[s]);
    }
  }
  __device__ C load_one(const Line& line) const { return C(line.at<const T>(0)); }
  __device__ void store_one(const Line& line, C y) const {
    if (active && team.rank == 0) line.at<T>(0) = T(y);
  }
};

// A row too long for registers, processed by a block. Every pass reads it again, usually from the L2 cache.
template <class T> struct Streamed {
  using C = acc_t<T>;
  using Where = ElementPosition<int64_t>;
  static constexpr int kPack = kPackOf<T>;

  Team<true> team;
  int64_t n, first, apart, round;
  static constexpr bool active = true;

  __device__ Streamed(int64_t n, unsigned rank) : team{rank, kMaxTeam}, n(n), round(kPack * kMaxTeam) {
    apart = n % kPack ? kMaxTeam : 1;
    first = n % kPack ? rank : kPack * rank;
  }

  template <class R, class F, class... Rows> __device__ __forceinline__ C fold(const F& f, const Rows&...) const {
    const C identity = R::template identity<C>();
    C a[kPack];
#pragma unroll
    for (int k = 0; k < kPack; ++k) a[k] = identity;
    for (int64_t c = first; c < n; c += round) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const C value = f(Where{k, c + k * apart});
        a[k] = R::combine(a[k], c + k * apart < n ? value : identity);
      }
    }
#pragma unroll
    for (int half = kPack / 2; half > 0; half /= 2)
#pragma unroll
      for (int k = 0; k < half; ++k) a[k] = R::combine(a[k], a[k + half]);
    return team.template fold<R>(a[0]);
  }
  template <class F> __device__ __forceinline__ void each(const F& f) const {
    for (int64_t c = first; c < n; c += round) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) f(Where{k, c + k * apart});
    }
  }
  __device__ C mean(C sum) const { return sum / C(double(n)); }
  __device__ bool any(bool b) const { return b; }
  __device__ C at(const MemoryRow<T, int64_t>& x, int64_t k) const { return C(x.line.template at<const T>(k)); }
  __device__ MemoryRow<T, int64_t> memory_row(const Line& line, C otherwise = C(0)) const {
    return {line, n, apart, otherwise, {}};
  }

  // A row that is written once, from its first element on. Whole packs are stored at once.
  struct Written {
    Line line;
    int64_t n, apart;
    mutable C pack[kPack];
    struct Cell {
      const Written& row;
      Where i;
      __device__ __forceinline__ void operator=(C value) const {
        row.pack[i.slot] = value;
        if (i.slot == kPack - 1) row.flush(i.column - (kPack - 1) * row.apart);
      }
    };
    __device__ __forceinline__ Cell operator[](Where i) const { return {*this, i}; }
    __device__ __forceinline__ void flush(int64_t column) const {
      if (line.packs) return store_pack<T>(line.data + column * int(sizeof(T)), pack);
#pragma unroll
      for (int k = 0; k < kPack; ++k)
        if (column + k * apart < n) line.at<T>(column + k * apart) = T(pack[k]);
    }
  };
  __device__ Written written(const Line& line) const { return {line, n, apart, {}}; }

  // The largest element and the sum of exp(x - top), computed in one read: whenever a larger element appears, the sum so far is
  // rescaled. If top is infinite, the sum is meaningless, except that it is NaN if the row contains NaN.
  struct Exponentials {
    C top, sum;
  };
  __device__ __forceinline__ Exponentials exponentials(const MemoryRow<T, int64_t>& x) const {
    using kernels::largest;
    C top = m::lowest<C>(), sum = C(0);
    for (int64_t c = first; c < n; c += round) {
      C v[kPack], local = m::lowest<C>();
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        v[k] = x[Where{k, c + k * apart}];
        v[k] = c + k * apart < n ? v[k] : m::lowest<C>();
        local = largest::combine(local, v[k]);
      }
      if (local > top) {
        sum = sum * m::exp_nonpositive(C(top - local));
        top = local;
      }
      const C base = m::isinf(top) ? C(0) : top;
      C part[kPack];
#pragma unroll
      for (int k = 0; k < kPack; ++k) part[k] = m::exp_nonpositive(C(v[k] - base));
#pragma unroll
      for (int half = kPack / 2; half > 0; half /= 2)
#pragma unroll
        for (int k = 0; k < half; ++k) part[k] = part[k] + part[k + half];
      sum = sum + part[0];
    }
    const C all = team.template fold<largest>(top);
    const C base = m::isinf(all) ? C(0) : all;
    return {all, team.template fold<sum_reduce>(C(sum * m::exp_nonpositive(C(top - base))))};
  }
  __device__ __forceinline__ kernels::LogSum<C> log_sum_exp(const MemoryRow<T, int64_t>& x, const Exponentials& e) const {
    if (m::isinf(e.top)) return {C(0), m::log(kernels::ends_of(*this, x))};
    return {e.top, m::log(e.sum)};
  }

  __device__ C load_one(const Line& line) const { return C(line.at<const T>(0)); }
  __device__ void store_one(const Line& line, C y) const {
    if (team.rank == 0) line.at<T>(0) = T(y);
  }
};

}  // namespace pb::cuda
