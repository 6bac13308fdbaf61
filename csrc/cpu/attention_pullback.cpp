// The pullback of attention. A block of queries computes its weights again, and adds what it contributes to the gradients of the keys
// and the values that its heads share.
#include "cpu/attention_heads.h"

namespace pb::cpu {
namespace {

using kernels::BackwardAttention;

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
      if (b_.gk.data) add_rows(m, limit, a_.width, gs, Block<C>{q, width_}, gk);
      if (b_.gv.data) add_rows(m, limit, a_.value_width, s, Block<C>{g, value_width_}, gv);
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
      for (int64_t j = 0; j < visible; ++j) row[j] = m::select(weight[j] == C(0), C(0), C(weight[j] * (row[j] - sum)));
      std::fill(row + visible, row + whole<C>(limit), C(0));
      round_to(precision_, visible, row);
    }
  }
  void queries(int64_t task, int64_t r, int64_t m, const C* gs, C* room) const {
    const int64_t limit = a_.limit((r + m - 1) % a_.queries);
    multiply(m, a_.width, limit, gs, pitch_, k_.panels(), room, width_);
    this->leave_out_unseen(m, a_.width, limit, gs, k_, room);
    for (int64_t i = 0; i < m; ++i) {
      this->write(b_.gq, a_.row(b_.gq, task, r + i), a_.width, room + i * width_, C(a_.scale));
    }
  }
  // Adds to the gradient (limit, n) what m rows x contribute with their weights (m, limit).
  void add_rows(int64_t m, int64_t limit, int64_t n, const C* weights, Block<C> x, C* out) const {
    const bool finite = holds_for_all<C>(m * x.ld, [=](int64_t i) { return m::isfinite(x.data[i]); });
    if (finite) return accumulate(limit, n, m, weights, pitch_, x, out, x.ld);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < limit; ++j)
        for (int64_t d = 0; d < n; ++d)
          out[j * x.ld + d] = Base::add_seen(weights[i * pitch_ + j], x.data[i * x.ld + d], out[j * x.ld + d]);
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

// Adds the padding of the products of all rows, and the blocks of long contractions.
template <class C> void add_tiles(const Attention& a, bool gq, bool gk, bool gv, Counts& work) {
  const int64_t tasks = a.tasks();
  Counts each;
  for (int64_t l = 0; l < a.queries; ++l) {
    const int64_t n = a.limit(l);
    add_product<C>(1, n, a.width, each);
    if (gq || gk) add_product<C>(1, n, a.value_width, each);
    if (gq) add_product<C>(1, a.width, n, each);
    each.fmas += n * ((gk ? whole<C>(a.width) : 0) + (gv ? whole<C>(a.value_width) : 0));
  }
  work.add(each, a.all_heads());
  const int64_t combined = (gk ? whole<C>(a.width) : 0) + (gv ? whole<C>(a.value_width) : 0);
  work.adds += tasks * (kernels::order_blocks(a.rows()) - 1) * a.seen_keys() * combined;
  add_padding<C>(a, work);
}

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

void run_attention_pullback(const Launch& launch) {
  const BackwardAttention a(launch);
  if (a.unseen()) {
    for (int k = 0; k < launch.outputs; ++k)
      if (launch.out(k).data && launch.out(k).size() != 0) cpu::assign_number(launch.out(k), 0);
    return;
  }
  cpu::visit_row(a.q, [&](auto zero) {
    const cpu::Backward<decltype(zero)> prepared(a);
    cpu::parallel_for(a.tasks(), cpu::kAttentionGrain / (2 * cpu::work_per_task(a)) + 1, [&](int64_t begin, int64_t end) {
      cpu::Backward<decltype(zero)> backward = prepared;
      for (; begin < end; ++begin) backward.run(begin);
    });
  });
}

void executed_attention_pullback(const Launch& launch, Counts& work) {
  const BackwardAttention a(launch);
  if (a.unseen()) return;
  const int64_t rows = a.all_rows(), scores = a.all_scores();
  work.fmas = 0, work.special += scores + rows;
  work.adds += scores + scores - rows + (a.adds_mask() ? scores : 0);
  if (!a.gk.data) work.multiplies += rows * a.width;
  cpu::visit_row(a.q, [&](auto zero) { cpu::add_tiles<decltype(zero)>(a, a.gq.data, a.gk.data, a.gv.data, work); });
}

}  // namespace pb::kernels
