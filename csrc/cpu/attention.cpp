// Attention, and its tangent. A block of queries computes its scores with all keys, which stay in the L2 cache until they have become
// a part of the result. Threads share the heads.
#include "cpu/attention_heads.h"

namespace pb::cpu {
namespace {

using kernels::ForwardAttention;
using kernels::TangentAttention;

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
      const int64_t limit = a_.limit((end - 1) % a_.queries);
      multiply(m, a_.value_width, limit, s, pitch_, v.panels(), out, value_width_);
      this->leave_out_unseen(m, a_.value_width, limit, s, v, out);
      for (int64_t i = 0; i < m; ++i) {
        this->write(a_.y, a_.row(a_.y, task, r + i), a_.value_width, out + i * value_width_, inverse[i]);
      }
    }
  }
};

template <class C> class Tangent : Heads<C> {
  using Base = Heads<C>;
  using Base::a_, Base::keys_, Base::width_, Base::value_width_, Base::pitch_, Base::precision_;

  // The keys and values of a task, and their tangents, as factors.
  struct Factors {
    Panels<C> k, tk;
    Block<C> v, tv;
  };
  // What a block of queries computes: the exponentials s and the tangents ts of the scores, and the results.
  struct Buffers {
    C *q, *tq, *s, *ts, *more, *out, *by_values, *room;
    C inverse[kMostRows];
  };

 public:
  explicit Tangent(const TangentAttention& a) : Base(a), t_(a) {}

  // Computes rows [first, last) of a task.
  void run(int64_t task, int64_t first, int64_t last) const {
    Scratch scratch;
    const Factors f = factors(task, scratch);
    Buffers b{};
    b.q = scratch.take<C>(kMostRows * width_), b.tq = scratch.take<C>(kMostRows * width_);
    b.s = scratch.take<C>(kMostRows * pitch_), b.ts = scratch.take<C>(kMostRows * pitch_);
    b.more = scratch.take<C>(kMostRows * pitch_), b.room = scratch.take<C>(pitch_);
    b.out = scratch.take<C>(kMostRows * value_width_), b.by_values = scratch.take<C>(kMostRows * value_width_);
    for (int64_t r = first, end; r < last; r = end) {
      end = this->block_end(r, last);
      run_block(task, r, end - r, f, b);
    }
  }

 private:
  Factors factors(int64_t task, Scratch& scratch) const {
    const auto rows = [&](const View& of, int64_t ld) { return this->rows_of(of, task, scratch.take<C>(keys_ * ld)); };
    const auto turned = [&](const View& of) {
      return this->turned(rows(of, width_), a_.width, scratch.take<C>(this->turned_size(a_.width)));
    };
    Factors f{};
    f.k = turned(a_.k);
    if (t_.tk.data) f.tk = turned(t_.tk);
    if (t_.moves_scores()) f.v = rows(a_.v, value_width_);
    if (t_.tv.data) f.tv = rows(t_.tv, value_width_);
    return f;
  }

  void run_block(int64_t task, int64_t r, int64_t m, const Factors& f, Buffers& b) const {
    const int64_t n = a_.value_width, limit = a_.limit((r + m - 1) % a_.queries);
    const auto scale = [&](int64_t) { return C(a_.scale); };
    this->scaled(a_.q, task, r, m, b.q, scale);
    round_to(precision_, m * width_, b.q);
    this->weights(task, r, m, b.q, f.k, b.s, b.inverse, b.room);
    if (t_.moves_scores()) {
      if (t_.tq.data) this->scaled(t_.tq, task, r, m, b.tq, scale), round_to(precision_, m * width_, b.tq);
      move_scores(task, r, m, f, b);
      multiply(m, n, limit, b.ts, pitch_, f.v.panels(), b.out, value_width_);
      this->leave_out_unseen(m, n, limit, b.ts, f.v, b.out);
    }
    C* const by_values = t_.moves_scores() ? b.by_values : b.out;
    if (t_.tv.data) {
      multiply(m, n, limit, b.s, pitch_, f.tv.panels(), by_values, value_width_);
      this->leave_out_unseen(m, n, limit, b.s, f.tv, by_values);
    }
    for (int64_t i = 0; i < m; ++i) {
      C* const out = b.out + i * value_width_;
      if (t_.tv.data && t_.moves_scores())
        for (int64_t d = 0; d < n; ++d) out[d] = out[d] + by_values[i * value_width_ + d];
      this->write(a_.y, a_.row(a_.y, task, r + i), n, out, b.inverse[i]);
    }
  }

  // Computes the tangents of the scores of rows [r, r + m), minus their weighted mean and times the exponentials.
  void move_scores(int64_t task, int64_t r, int64_t m, const Factors& f, Buffers& b) const {
    const int64_t l = r % a_.queries, limit = a_.limit(l + m - 1);
    C* const by_keys = t_.tq.data ? b.more : b.ts;
    if (t_.tq.data) multiply(m, limit, a_.width, b.tq, width_, f.k, b.ts, pitch_);
    if (t_.tk.data) multiply(m, limit, a_.width, b.q, width_, f.tk, by_keys, pitch_);
    for (int64_t i = 0; i < m; ++i) {
      const int64_t n = a_.visible(l + i);
      C* const ts = b.ts + i * pitch_;
      const C* const weight = b.s + i * pitch_;
      if (t_.tq.data && t_.tk.data) add(n, ts, b.more + i * pitch_);
      if (t_.tm.data) {
        const C* const tm = this->read(t_.tm, a_.row(t_.tm, task, r + i), n, b.room);
        if (t_.score_terms() > 1) add(n, ts, tm);
        else std::copy_n(tm, n, ts);
      }
      const C sum = Loop{n}.template fold<sum_reduce>([=](int64_t j) { return product(weight[j], ts[j]); });
      const C mean = sum * b.inverse[i];
#pragma GCC ivdep
      for (int64_t j = 0; j < n; ++j) ts[j] = product(weight[j], C(ts[j] - mean));
      std::fill(ts + n, ts + whole<C>(limit), C(0));
      round_to(precision_, n, ts);
    }
  }
  static void add(int64_t n, C* to, const C* x) {
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) to[j] = to[j] + x[j];
  }
  // A weight of 0 gives 0, whatever x is.
  static C product(C weight, C x) { return m::select(weight == C(0), C(0), C(weight * x)); }

  const TangentAttention& t_;
};

int64_t work_of(const ForwardAttention& a) { return work_per_task(a); }
int64_t work_of(const TangentAttention& a) { return 3 * work_per_task(a); }

// Computes all rows by a Forward or a Tangent. Threads share the tasks, and the rows of a task if there are few tasks.
template <template <class> class Rows, class A> void run_queries(const A& a) {
  const int64_t threads = thread_count(), tasks = a.tasks();
  const int64_t parts = tasks >= threads ? 1 : std::min((threads + tasks - 1) / tasks, kernels::order_blocks(4 * a.rows()));
  const int64_t rows = (a.rows() + parts - 1) / parts;
  visit_row(a.q, [&](auto zero) {
    const Rows<decltype(zero)> prepared(a);
    parallel_for(tasks * parts, kAttentionGrain / (work_of(a) / parts + 1) + 1, [&](int64_t begin, int64_t end) {
      for (; begin < end; ++begin) {
        const int64_t first = begin % parts * rows;
        prepared.run(begin / parts, first, std::min(first + rows, a.rows()));
      }
    });
  });
}

// The padding of the products of all rows. scores, results: the numbers of products that give scores, and that give results.
template <class C> void add_tiles(const Attention& a, int64_t scores, int64_t results, Counts& work) {
  Counts each;
  for (int64_t l = 0; l < a.queries; ++l) {
    const int64_t n = a.limit(l);
    for (int64_t i = 0; i < scores; ++i) add_product<C>(1, n, a.width, each);
    for (int64_t i = 0; i < results; ++i) add_product<C>(1, a.value_width, n, each);
  }
  work.add(each, a.all_heads());
  add_padding<C>(a, work);
}

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

bool fits_attention(int64_t, int64_t, int64_t, int64_t) { return true; }

void run_attention(const Launch& launch) {
  const ForwardAttention a(launch);
  if (a.empty() || a.value_width == 0) return;
  if (a.keys == 0) return cpu::assign_number(a.y, 0);
  cpu::run_queries<cpu::Forward>(a);
}

void run_attention_tangent(const Launch& launch) {
  const TangentAttention a(launch);
  if (a.empty() || a.value_width == 0) return;
  if (a.keys == 0 || !a.moves()) return cpu::assign_number(a.y, 0);
  cpu::run_queries<cpu::Tangent>(a);
}

void executed_attention(const Launch& launch, Counts& work) {
  const ForwardAttention a(launch);
  if (a.unseen()) return;
  work.fmas = 0;
  cpu::visit_row(a.q, [&](auto zero) { cpu::add_tiles<decltype(zero)>(a, 1, 1, work); });
}

void executed_attention_tangent(const Launch& launch, Counts& work) {
  const TangentAttention a(launch);
  if (a.unseen() || !a.moves()) return;
  const int64_t rows = a.all_rows(), scores = a.all_scores();
  const int64_t of_scores = 1 + (a.tq.data != nullptr) + (a.tk.data != nullptr);
  const int64_t of_results = a.moves_scores() + (a.tv.data != nullptr);
  work.fmas = 0, work.special += scores + rows;
  work.adds += scores + scores - rows + (a.adds_mask() ? scores : 0);
  if (!a.tk.data) work.multiplies += rows * a.width;
  cpu::visit_row(a.q, [&](auto zero) { cpu::add_tiles<decltype(zero)>(a, of_scores, of_results, work); });
}

}  // namespace pb::kernels
