// Row ops on short rows (up to kFewColumns elements): each SIMD lane processes one row, so several rows run at once.
#pragma once
// Included first: the formulas call m::log and m::select by qualified name, and such calls only see overloads that are declared
// before the template.
#include "cpu/lanes.h"
#include "cpu/rows.h"

namespace pb::cpu {

constexpr int64_t kFewColumns = 32;  // the longest rows for which transposing them pays
constexpr int64_t kFewRows = 3;      // the fewest rows for which it pays

// Calls f with n, as a constant if n is 1 or 2, so that the loops over such rows are unrolled away.
template <class F> PB_HD void call_with_length(int64_t n, const F& f) {
  if (n == 1) f(std::integral_constant<int64_t, 1>());
  else if (n == 2) f(std::integral_constant<int64_t, 2>());
  else f(n);
}

// Reads rows k, k + 1, ... of an operand (…, n), one per lane: row k + l lies in lane l of n vectors. Lanes beyond the last row
// are 0.
template <class C> class LaneRows : Rows<C> {
  static constexpr int kLanes = Lanes<C>::kCount;

 public:
  LaneRows(const View& v, Scratch& scratch)
      : Rows<C>(v, scratch), rows_(row_count(v)), even_(this->even()), turned_(scratch.take<Lanes<C>>(this->n_)) {}

  const Lanes<C>* read(int64_t k) const {
    const bool whole = rows_ - k >= kLanes;
    C* __restrict to = reinterpret_cast<C*>(turned_);
    call_with_length(this->n_, [&](auto n) {
      if (whole && even_.data) {
        const C* __restrict from = even_.data + k * even_.step;
        for (int64_t i = 0; i < n; ++i)
          for (int64_t l = 0; l < kLanes; ++l) to[i * kLanes + l] = from[l * even_.step + i];
        return;
      }
      if (!whole) std::fill_n(turned_, int64_t(n), Lanes<C>(C(0)));
      for (int64_t l = 0; l < std::min<int64_t>(kLanes, rows_ - k); ++l) {
        const C* row = Rows<C>::read(k + l).data;
        for (int64_t i = 0; i < n; ++i) to[i * kLanes + l] = row[i];
      }
    });
    return turned_;
  }

 private:
  int64_t rows_;
  typename Rows<C>::Even even_;
  Lanes<C>* turned_;
};

// Writes rows: open(k) returns the memory for rows k, k + 1, ..., and close(k) transposes them into the operand.
template <class C> class LaneRowsOut : RowsOut<C> {
  static constexpr int kLanes = Lanes<C>::kCount;

 public:
  LaneRowsOut(const View& v, Scratch& scratch, int64_t nontemporal)
      : RowsOut<C>(v, scratch, nontemporal),
        rows_(row_count(v)),
        n_(row_length(v)),
        even_(this->even()),
        turned_(scratch.take<Lanes<C>>(n_)) {}

  Lanes<C>* open(int64_t) const { return turned_; }
  void close(int64_t k) const {
    const int64_t count = std::min<int64_t>(kLanes, rows_ - k);
    const C* __restrict from = reinterpret_cast<const C*>(turned_);
    call_with_length(n_, [&](auto n) {
      if (even_.data) {
        C* __restrict to = even_.data + k * even_.step;
        if (count == kLanes)
          for (int64_t l = 0; l < kLanes; ++l)
            for (int64_t i = 0; i < n; ++i) to[l * even_.step + i] = from[i * kLanes + l];
        else
          for (int64_t l = 0; l < count; ++l)
            for (int64_t i = 0; i < n; ++i) to[l * even_.step + i] = from[i * kLanes + l];
        return;
      }
      for (int64_t l = 0; l < count; ++l) {
        C* row = RowsOut<C>::open(k + l);
        for (int64_t i = 0; i < n; ++i) row[i] = from[i * kLanes + l];
        RowsOut<C>::close(k + l);
      }
    });
  }

 private:
  int64_t rows_, n_;
  typename Rows<C>::Even even_;
  Lanes<C>* turned_;
};

// The walk of families/rows.h over one row per lane, of kColumns elements if that is not 0. Elements are combined in the same order
// as in SingleWalk.
template <class C, int kColumns> struct LaneWalk {
  using Number = Lanes<C>;
  using In = LaneRows<C>;
  using Out = LaneRowsOut<C>;
  using Mask = LaneMask<C>;
  using Label = Mask;
  using Int = std::make_signed_t<m::bits_t<C>>;
  static constexpr int kRows = Lanes<C>::kCount;
  int64_t length;

  PB_HD int64_t n() const { return kColumns ? kColumns : length; }
  template <class R, class F, class... Rows> PB_HD Number fold(const F& f, const Rows&...) const {
    Number acc[kColumns ? kColumns : kFewColumns];
    for (int64_t i = 0; i < n(); ++i) acc[i] = f(i);
    if constexpr (kColumns == 2) return R::combine(acc[0], acc[1]);
    int64_t half = 1, count = n();
    while (2 * half < count) half *= 2;
    for (; half; half /= 2) {
      for (int64_t i = 0; i + half < count; ++i) acc[i] = R::combine(acc[i], acc[i + half]);
      count = std::min(count, half);
    }
    return acc[0];
  }
  template <class F> PB_HD void each(const F& f) const {
    for (int64_t i = 0; i < n(); ++i) f(i);
  }
  PB_HD Number mean(Number sum) const { return sum / Number(C(double(n()))); }
  PB_HD bool any(Mask mask) const { return cpu::any(mask); }
  PB_HD bool all(Mask mask) const { return !cpu::any(Mask{mask.v == 0}); }
  PB_HD Number at(const Number* x, Label label) const {
    Number y = x[0];
    for (int64_t i = 1; i < n(); ++i) y = m::select(is(i, label), x[i], y);
    return y;
  }
  template <class F> PB_HD void change(Number* y, Label label, const F& f) const {
    for (int64_t i = 0; i < n(); ++i) y[i] = m::select(is(i, label), f(y[i]), y[i]);
  }
  PB_HD Label label(const int64_t* of_row) const {
    Label label;
    for (int l = 0; l < kRows; ++l) label.v[l] = Int(of_row[l]);
    return label;
  }
  PB_HD Mask is_negative(Label label) const { return {label.v < 0}; }

 private:
  PB_HD static Mask is(int64_t i, Label label) { return {label.v == Int(i)}; }
};

// A walk over one row at a time, with the interface of LaneWalk.
template <class C> struct SingleWalk : Loop {
  using Number = C;
  using In = Rows<C>;
  using Out = RowsOut<C>;
  using Label = int64_t;
  static constexpr int kRows = 1;

  bool all(bool b) const { return b; }
  Label label(const int64_t* of_row) const { return *of_row; }
  bool is_negative(Label label) const { return label < 0; }
};

template <class Many, class Body> void walk_lanes(const View& x, const Many& walk, int64_t work, const Body& body) {
  const int64_t rows = row_count(x), blocks = (rows + Many::kRows - 1) / Many::kRows;
  parallel_for(blocks, std::max<int64_t>(1, kRowGrain / (Many::kRows * walk.n() * work)),
               [&](int64_t begin, int64_t end) { body(walk, begin * Many::kRows, std::min(rows, end * Many::kRows)); });
}

// True if the rows of x are processed one per lane.
inline bool uses_lanes(const View& x) { return row_length(x) > 0 && row_length(x) <= kFewColumns && row_count(x) >= kFewRows; }

// Calls body(walk, begin, end) for all rows of x, in parallel; it processes walk.kRows rows at a time. The bits are the same for
// either walk.
template <class C, class Body> void walk_rows(const View& x, int64_t work, const Body& body) {
  const int64_t n = row_length(x);
  if (!uses_lanes(x)) for_rows(x, work, [&](int64_t begin, int64_t end) { body(SingleWalk<C>{{n}}, begin, end); });
  else if (n == 2) walk_lanes(x, LaneWalk<C, 2>{n}, work, body);
  else walk_lanes(x, LaneWalk<C, 0>{n}, work, body);
}

}  // namespace pb::cpu
