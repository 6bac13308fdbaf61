// Attention. A block of queries computes its scores with all keys, which stay in the L2 cache until they have become a part of the
// result or of the gradients. Threads share the heads.
#include "families/attention.h"

#include "cpu/attention_product.h"
#include "cpu/copy.h"
#include "cpu/rows.h"
#include "cpu/strips.h"
#include "families/matmul.h"

namespace pb::cpu {
namespace {

using kernels::Attention;
using kernels::BackwardAttention;
using kernels::ForwardAttention;
using kernels::kCausalRows;

constexpr int64_t kGrain = 200000;          // the fewest multiply-adds per thread
constexpr int64_t kScoreBytes = 36 * 1024;  // of the scores of a block of queries
constexpr int64_t kFewestRows = 12, kMostRows = 48;

// What the forward and the backward pass share: the factors of a head, and its weights.
template <class C> class Heads {
 public:
  explicit Heads(const Attention& a)
      : a_(a),
        keys_(a.seen_keys()),
        width_(whole<C>(a.width)),
        value_width_(whole<C>(a.value_width)),
        pitch_(whole<C>(a.keys)),
        block_(std::clamp<int64_t>(kScoreBytes / std::max<int64_t>(1, pitch_ * int64_t(sizeof(C))), kFewestRows, kMostRows)),
        precision_(kernels::precision()) {
    if (a.causal) block_ = kCausalRows;
  }

  // Returns the end of the block of rows that begins at r. The queries of a block belong to one head, and to one tile if they are
  // causal; their rows, to one block of families/order.h.
  int64_t block_end(int64_t r, int64_t last) const {
    const int64_t l = r % a_.queries, head = a_.queries - l, order = kOrderBlock - r % kOrderBlock;
    const int64_t rows = a_.causal ? kCausalRows - l % kCausalRows : block_;
    return std::min(last, r + std::min({rows, head, order}));
  }

 protected:
  // True if rows of the operand are contiguous numbers of the type C.
  static bool is_plain(const View& of) {
    return of.dtype == storage_of(compute_of<C>) &&
           (of.stride[of.ndim - 1] == int64_t(sizeof(C)) || of.shape[of.ndim - 1] <= 1);
  }
  // Returns a row in the type C: in place if possible, otherwise in `room`.
  static const C* read(const View& of, const char* row, int64_t n, C* room) {
    if (is_plain(of)) return reinterpret_cast<const C*>(row);
    load(of.dtype, compute_of<C>, row, of.stride[of.ndim - 1], n, room);
    return room;
  }
  // Writes a row times a factor. May change `from`.
  static void write(const View& of, char* row, int64_t n, C* from, C factor) {
    C* const to = is_plain(of) ? reinterpret_cast<C*>(row) : from;
#pragma GCC ivdep
    for (int64_t d = 0; d < n; ++d) to[d] = from[d] * factor;
    if (to == from) store(compute_of<C>, of.dtype, from, n, row, of.stride[of.ndim - 1]);
  }

  // Returns the keys or the values of a task, in place if they can be read as whole vectors, otherwise copied to `room`.
  Block<C> rows_of(const View& of, int64_t task, C* room) const {
    const int64_t n = of.shape[of.ndim - 1], ld = whole<C>(n), down = of.stride[of.ndim - 2];
    if (of.dtype == storage_of(compute_of<C>) && !rounds<C>(precision_) && ld == n &&
        of.stride[of.ndim - 1] == int64_t(sizeof(C)) && down % int64_t(sizeof(C)) == 0)
      return {reinterpret_cast<const C*>(a_.key(of, task, 0)), down / int64_t(sizeof(C))};
    for (int64_t j = 0; j < keys_; ++j) {
      C* const to = room + j * ld;
      const C* const from = read(of, a_.key(of, task, j), n, to);
      if (from != to) std::copy_n(from, n, to);
      std::fill(to + n, to + ld, C(0));
    }
    round_to(precision_, keys_ * ld, room);
    return {room, ld};
  }
  // Packs rows (keys, n) into panels of columns (n, keys).
  Panels<C> turned(Block<C> from, int64_t n, C* to) const {
    constexpr int64_t kPanel = 2 * kWidth<C>;
    for (int64_t j = 0; j < keys_; j += kWidth<C>)
      turn_strip(std::min<int64_t>(kWidth<C>, keys_ - j), n, from.data + j * from.ld, from.ld,
                 to + j / kPanel * kPanel * n + j % kPanel, kPanel);
    return {to, kPanel, kPanel * n};
  }
  int64_t turned_size(int64_t n) const { return (keys_ + 2 * kWidth<C> - 1) / (2 * kWidth<C>)*2 * kWidth<C> * n; }

  // Reads rows [r, r + m) of an operand, times factor(i) for row r + i, with zeros up to whole vectors.
  template <class F> void scaled(const View& of, int64_t task, int64_t r, int64_t m, C* to, const F& factor) const {
    const int64_t n = of.shape[of.ndim - 1], ld = whole<C>(n);
    for (int64_t i = 0; i < m; ++i) {
      C* const row = to + i * ld;
      const C* const from = read(of, a_.row(of, task, r + i), n, row);
      const C by = factor(i);
#pragma GCC ivdep
      for (int64_t d = 0; d < n; ++d) row[d] = from[d] * by;
      std::fill(row + n, row + ld, C(0));
    }
  }

  void add_mask(const char* row, int64_t n, C* s, C* room) const {
    const int64_t step = a_.mask.stride[a_.mask.ndim - 1];
    if (a_.mask.dtype == DType::b8) {
      for (int64_t j = 0; j < n; ++j)
        if (!*reinterpret_cast<const bool*>(row + j * step)) s[j] = m::lowest<C>();
    } else {
      const C* const added = read(a_.mask, row, n, room);
      for (int64_t j = 0; j < n; ++j) s[j] = s[j] + added[j];
    }
  }
  // Returns the largest score. It may ignore NaN, because the sum of exponentials is NaN anyway.
  static C largest(int64_t n, const C* s) {
    constexpr int64_t kLanes = 4 * kWidth<C>;
    C top[kLanes];
    std::fill_n(top, kLanes, m::lowest<C>());
    int64_t j = 0;
    for (; j + kLanes <= n; j += kLanes)
      for (int64_t l = 0; l < kLanes; ++l) top[l] = kernels::largest::combine(top[l], s[j + l]);
    for (; j < n; ++j) top[0] = kernels::largest::combine(top[0], s[j]);
    for (int64_t l = 1; l < kLanes; ++l) top[0] = kernels::largest::combine(top[0], top[l]);
    return top[0];
  }
  // Turns the scores of a query into exponentials, and those beyond n, up to `limit`, into zeros. Returns one over their sum.
  static C exponentials(int64_t n, int64_t limit, C* s) {
    C top = largest(n, s);
    top = m::select(top == m::lowest<C>(), C(0), top);
    const C sum = Loop{n}.fold<sum_reduce>([=](int64_t j) { return s[j] = m::exp_nonpositive(C(s[j] - top)); });
    std::fill(s + n, s + limit, C(0));
    const C scale = C(1) / sum;
    return m::select(sum == C(0), C(0), scale);
  }
  // Computes the exponentials of rows [r, r + m), and one over the sum of each row. q: the queries times the scale.
  void weights(int64_t task, int64_t r, int64_t m, const C* q, Panels<C> k, C* s, C* inverse, C* room) const {
    const int64_t l = r % a_.queries, limit = a_.limit(l + m - 1);
    multiply(m, limit, a_.width, q, width_, k, s, pitch_);
    for (int64_t i = 0; i < m; ++i) {
      const int64_t n = a_.visible(l + i);
      if (a_.mask.data) add_mask(a_.row(a_.mask, task, r + i), n, s + i * pitch_, room);
      inverse[i] = exponentials(n, whole<C>(limit), s + i * pitch_);
      round_to(precision_, n, s + i * pitch_);
    }
  }

  const Attention& a_;
  const int64_t keys_, width_, value_width_, pitch_;  // the last three in whole vectors
  int64_t block_;
  const Precision precision_;
};

template <class C> class Forward : Heads<C> {
  using Base = Heads<C>;
  using Base::a_, Base::keys_, Base::width_, Base::value_width_, Base::pitch_, Base::precision_;

 public:
  explicit Forward(const ForwardAttention& a) : Base(a) {}

  // Computes rows [first, last) of a task.
  void run(int64_t task, int64_t first, int64_t last) const {
    Scratch scratch;
    const Block<C> k = this->rows_of(a_.k, task, scratch.take<C>(keys_ * width_));
    const Block<C> v = this->rows_of(a_.v, task, scratch.take<C>(keys_ * value_width_));
    const Panels<C> columns = this->turned(k, a_.width, scratch.take<C>(this->turned_size(a_.width)));
    C* const q = scratch.take<C>(kMostRows * width_);
    C* const out = scratch.take<C>(kMostRows * value_width_);
    C* const s = scratch.take<C>(kMostRows * pitch_);
    C* const room = scratch.take<C>(pitch_);
    C inverse[kMostRows];
    for (int64_t r = first, end; r < last; r = end) {
      end = this->block_end(r, last);
      const int64_t m = end - r;
      this->scaled(a_.q, task, r, m, q, [&](int64_t) { return C(a_.scale); });
      round_to(precision_, m * width_, q);
      this->weights(task, r, m, q, columns, s, inverse, room);
      multiply(m, a_.value_width, a_.limit((end - 1) % a_.queries), s, pitch_, v.panels(), out, value_width_);
      for (int64_t i = 0; i < m; ++i) {
        this->write(a_.y, a_.row(a_.y, task, r + i), a_.value_width, out + i * value_width_, inverse[i]);
      }
    }
  }
};

template <class C> class Backward : Heads<C> {
  using Base = Heads<C>;
  using Base::a_, Base::keys_, Base::width_, Base::value_width_, Base::pitch_, Base::precision_;

 public:
  explicit Backward(const BackwardAttention& a) : Base(a), b_(a) {}

  void run(int64_t task) {
    Scratch scratch;
    k_ = this->rows_of(a_.k, task, scratch.take<C>(keys_ * width_));
    columns_ = this->turned(k_, a_.width, scratch.take<C>(this->turned_size(a_.width)));
    if (to_scores()) {
      const Block<C> v = this->rows_of(a_.v, task, scratch.take<C>(keys_ * value_width_));
      values_ = this->turned(v, a_.value_width, scratch.take<C>(this->turned_size(a_.value_width)));
    }
    C* const gk = scratch.take<C>(keys_ * width_);
    C* const gv = scratch.take<C>(keys_ * value_width_);
    run_blocks(task, 0, kernels::order_blocks(a_.rows()), gk, gv);
    if (b_.gk.data) write_keys(b_.gk, task, gk, width_);
    if (b_.gv.data) write_keys(b_.gv, task, gv, value_width_);
  }

 private:
  bool to_scores() const { return b_.gq.data || b_.gk.data; }

  // Sets gk and gv to what `count` blocks of rows contribute, combined in the order of families/order.h.
  void run_blocks(int64_t task, int64_t first, int64_t count, C* gk, C* gv) const {
    if (count == 1) return run_block(task, first * kOrderBlock, std::min((first + 1) * kOrderBlock, a_.rows()), gk, gv);
    const int64_t half = kernels::upper_half(count);
    Scratch scratch;
    C* const more_k = scratch.take<C>(keys_ * width_);
    C* const more_v = scratch.take<C>(keys_ * value_width_);
    run_blocks(task, first, half, gk, gv);
    run_blocks(task, first + half, count - half, more_k, more_v);
    if (b_.gk.data)
      for (int64_t i = 0; i < keys_ * width_; ++i) gk[i] = gk[i] + more_k[i];
    if (b_.gv.data)
      for (int64_t i = 0; i < keys_ * value_width_; ++i) gv[i] = gv[i] + more_v[i];
  }

  void run_block(int64_t task, int64_t first, int64_t last, C* gk, C* gv) const {
    Scratch scratch;
    C* const q = scratch.take<C>(kMostRows * width_);
    C* const g = scratch.take<C>(kMostRows * value_width_);
    C* const s = scratch.take<C>(kMostRows * pitch_);
    C* const gs = scratch.take<C>(kMostRows * pitch_);
    C* const room = scratch.take<C>(std::max({pitch_, value_width_, kMostRows * width_}));
    C inverse[kMostRows], along[kMostRows];
    std::fill_n(gk, keys_ * width_, C(0)), std::fill_n(gv, keys_ * value_width_, C(0));
    for (int64_t r = first, end; r < last; r = end) {
      end = this->block_end(r, last);
      const int64_t m = end - r, limit = a_.limit((end - 1) % a_.queries);
      this->scaled(a_.q, task, r, m, q, [&](int64_t) { return C(a_.scale); });
      round_to(precision_, m * width_, q);
      this->weights(task, r, m, q, columns_, s, inverse, room);
      this->scaled(b_.g, task, r, m, g, [&](int64_t i) { return inverse[i]; });
      if (to_scores()) scores(task, r, m, g, s, gs, along, room);
      round_to(precision_, m * value_width_, g);
      if (b_.gq.data) queries(task, r, m, gs, room);
      if (b_.gk.data) accumulate(limit, a_.width, m, gs, pitch_, Block<C>{q, width_}, gk, width_);
      if (b_.gv.data) accumulate(limit, a_.value_width, m, s, pitch_, Block<C>{g, value_width_}, gv, value_width_);
    }
  }

  // Computes the cotangents gs of the scores of rows [r, r + m). g: the cotangents of y over the sums of the exponentials s.
  void scores(int64_t task, int64_t r, int64_t m, C* g, const C* s, C* gs, C* along, C* room) const {
    const int64_t n = a_.value_width, l = r % a_.queries, limit = a_.limit(l + m - 1);
    for (int64_t i = 0; i < m; ++i) {
      const C* const y = this->read(a_.y, a_.row(a_.y, task, r + i), n, room);
      const C* const row = g + i * value_width_;
      along[i] = Loop{n}.template fold<sum_reduce>([=](int64_t d) { return C(row[d] * y[d]); });
    }
    round_to(precision_, m * value_width_, g);
    multiply(m, limit, n, g, value_width_, values_, gs, pitch_);
    for (int64_t i = 0; i < m; ++i) {
      const int64_t visible = a_.visible(l + i);
      const C* const weight = s + i * pitch_;
      C* const row = gs + i * pitch_;
      const C sum = along[i];
#pragma GCC ivdep
      for (int64_t j = 0; j < visible; ++j) row[j] = weight[j] * (row[j] - sum);
      std::fill(row + visible, row + whole<C>(limit), C(0));
      round_to(precision_, visible, row);
    }
  }
  void queries(int64_t task, int64_t r, int64_t m, const C* gs, C* room) const {
    multiply(m, a_.width, a_.limit((r + m - 1) % a_.queries), gs, pitch_, k_.panels(), room, width_);
    for (int64_t i = 0; i < m; ++i) {
      this->write(b_.gq, a_.row(b_.gq, task, r + i), a_.width, room + i * width_, C(a_.scale));
    }
  }
  // Writes the gradients of the keys or the values; those that no query sees are 0.
  void write_keys(const View& to, int64_t task, C* from, int64_t ld) const {
    const int64_t n = to.shape[to.ndim - 1];
    for (int64_t j = 0; j < a_.keys; ++j) {
      if (j == keys_) std::fill_n(from, ld, C(0));
      store(compute_of<C>, to.dtype, from + (j < keys_ ? j * ld : 0), n, a_.key(to, task, j), to.stride[to.ndim - 1]);
    }
  }

  const BackwardAttention& b_;
  Block<C> k_;
  Panels<C> columns_, values_;
};

int64_t work_per_task(const Attention& a) { return std::max<int64_t>(1, a.rows() * a.keys * (a.width + a.value_width + 16)); }

// Adds the work of a product in tiles of n columns, rounded up to whole vectors, with sums of k products each, for m rows.
template <class C> void add_product(int64_t m, int64_t n, int64_t k, Counts& work) {
  work.fmas += m * whole<C>(n) * k, work.adds += m * whole<C>(n) * (kernels::order_blocks(k) - 1);
}

// Adds the padding of the products of all rows, and the blocks of long contractions.
template <class C> void add_tiles(const Attention& a, bool forward, bool gq, bool gk, bool gv, Counts& work) {
  const int64_t tasks = a.tasks();
  Counts each;
  for (int64_t l = 0; l < a.queries; ++l) {
    const int64_t n = a.limit(l);
    add_product<C>(1, n, a.width, each);
    if (forward) add_product<C>(1, a.value_width, n, each);
    if (gq || gk) add_product<C>(1, n, a.value_width, each);
    if (gq) add_product<C>(1, a.width, n, each);
    each.fmas += n * ((gk ? whole<C>(a.width) : 0) + (gv ? whole<C>(a.value_width) : 0));
  }
  work.add(each, a.all_heads());
  const int64_t combined = (gk ? whole<C>(a.width) : 0) + (gv ? whole<C>(a.value_width) : 0);
  work.adds += tasks * (kernels::order_blocks(a.rows()) - 1) * a.seen_keys() * combined;
}

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

bool fits_attention(int64_t, int64_t, int64_t, int64_t) { return true; }

void run_attention(const Launch& launch) {
  const ForwardAttention a(launch);
  if (a.empty() || a.value_width == 0) return;
  if (a.keys == 0) return cpu::assign_number(a.y, 0);
  const int64_t threads = cpu::thread_count(), tasks = a.tasks();
  const int64_t parts = tasks >= threads ? 1 : std::min((threads + tasks - 1) / tasks, order_blocks(4 * a.rows()));
  const int64_t rows = (a.rows() + parts - 1) / parts;
  cpu::visit_row(a.q, [&](auto zero) {
    const cpu::Forward<decltype(zero)> forward(a);
    cpu::parallel_for(tasks * parts, cpu::kGrain / (cpu::work_per_task(a) / parts + 1) + 1, [&](int64_t begin, int64_t end) {
      for (; begin < end; ++begin) {
        const int64_t first = begin % parts * rows;
        forward.run(begin / parts, first, std::min(first + rows, a.rows()));
      }
    });
  });
}

void run_attention_pullback(const Launch& launch) {
  const BackwardAttention a(launch);
  if (a.unseen()) {
    for (int k = 0; k < launch.outputs; ++k)
      if (launch.out(k).data && launch.out(k).size() != 0) cpu::assign_number(launch.out(k), 0);
    return;
  }
  cpu::visit_row(a.q, [&](auto zero) {
    const cpu::Backward<decltype(zero)> prepared(a);
    cpu::parallel_for(a.tasks(), cpu::kGrain / (2 * cpu::work_per_task(a)) + 1, [&](int64_t begin, int64_t end) {
      cpu::Backward<decltype(zero)> backward = prepared;
      for (; begin < end; ++begin) backward.run(begin);
    });
  });
}

void executed_attention(const Launch& launch, Counts& work) {
  const ForwardAttention a(launch);
  if (a.unseen()) return;
  work.fmas = 0;
  cpu::visit_row(a.q, [&](auto zero) { cpu::add_tiles<decltype(zero)>(a, true, false, false, false, work); });
}

void executed_attention_pullback(const Launch& launch, Counts& work) {
  const BackwardAttention a(launch);
  if (a.unseen()) return;
  const int64_t rows = a.all_rows(), scores = a.all_scores();
  work.fmas = 0, work.special += scores + rows;
  work.adds += scores + scores - rows + (a.adds_mask() ? scores : 0);
  if (!a.gk.data) work.multiplies += rows * a.width;
  cpu::visit_row(a.q, [&](auto zero) { cpu::add_tiles<decltype(zero)>(a, false, a.gq.data, a.gk.data, a.gv.data, work); });
}

}  // namespace pb::kernels
