// Batch, group and instance norm on the CPU: layer norm of rows that are gathered from their pieces, if they are not contiguous.
#include "families/channel_norm.h"

#include <algorithm>

#include "cpu/copy.h"
#include "cpu/index.h"
#include "cpu/rows.h"
#include "families/norm_rows.h"
#include "families/reduce.h"

namespace pb::cpu {
namespace {

using kernels::ChannelRows;

// Reads and writes rows of a contiguous (N, C, S). The rows of groups are contiguous too, so they are used in place.
template <class C> class ChannelRow {
 public:
  ChannelRow(const ChannelRows& r, C* all, Scratch& scratch)
      : r_(r), all_(all), buffer_(r.groups || !all ? nullptr : scratch.take<C>(r.length())) {}

  C* open(int64_t row) const { return buffer_ ? buffer_ : all_ + row * r_.length(); }
  C* read(int64_t row) const {
    if (buffer_) each_piece(row, [&](C* piece, C* near) { std::copy_n(piece, r_.space, near); });
    return open(row);
  }
  void close(int64_t row) const {
    if (buffer_) each_piece(row, [&](C* piece, C* near) { std::copy_n(near, r_.space, piece); });
  }

 private:
  template <class F> void each_piece(int64_t row, const F& f) const {
    for (int64_t p = 0; p < r_.pieces(); ++p) f(all_ + r_.start(row, p), buffer_ + p * r_.space);
  }

  ChannelRows r_;
  C *all_, *buffer_;
};

// A vector with a number for each channel, repeated for the elements of a row. Without a vector, read() returns null.
template <class C> class ChannelVector {
 public:
  ChannelVector(const ChannelRows& r, const C* of_channels, Scratch& scratch)
      : r_(r), of_channels_(of_channels), buffer_(of_channels ? scratch.take<C>(r.length()) : nullptr) {}
  const C* read(int64_t row) const {
    if (buffer_)
      for (int64_t p = 0; p < r_.pieces(); ++p) std::fill_n(buffer_ + p * r_.space, r_.space, of_channels_[r_.channel(row, p)]);
    return buffer_;
  }

 private:
  ChannelRows r_;
  const C* of_channels_;
  C* buffer_;
};

// Calls f(w), or f(none()) if w is null.
template <class C, class F> void call_given(const C* w, const F& f) {
  if (w) f(w);
  else f(kernels::none());
}

template <class C> C* contiguous(const View& v, Scratch& scratch) {
  return contiguous_as(storage_of(compute_of<C>), v, scratch).template as<C>();
}
template <class C> C* target(const View& out, Scratch& scratch) {
  return out.dtype == storage_of(compute_of<C>) ? out.as<C>() : scratch.take<C>(out.size());
}
template <class C> void finish(const View& out, C* computed) {
  const DType wide = storage_of(compute_of<C>);
  if (out.dtype != wide) assign(out, contiguous_view(computed, wide, out));
}

template <class Body> void each_row(const ChannelRows& r, const Body& body) {
  parallel_for(r.rows(), std::max<int64_t>(1, kRowGrain / std::max<int64_t>(1, r.length())), body);
}

// The running values of batch_norm as numbers of the compute type. Its rows are the channels.
template <class C> class RunningValues {
 public:
  RunningValues(const Launch& launch, int64_t number, Scratch& scratch)
      : by_(launch.reals[1], launch.reals[2], launch.reals[3], launch.ints[3] ? number : 0),
        mean_out_(launch.out(1)),
        variance_out_(launch.out(2)),
        mean_(opened(mean_out_, scratch)),
        variance_(opened(variance_out_, scratch)) {}

  void move(int64_t channel, C mean, C variance) const {
    if (mean_) mean_[channel] = by_.mean(mean_[channel], mean);
    if (variance_) variance_[channel] = by_.variance(variance_[channel], variance);
  }
  void close() const {
    if (mean_) finish(mean_out_, mean_);
    if (variance_) finish(variance_out_, variance_);
  }

 private:
  static C* opened(const View& v, Scratch& scratch) { return v.size() ? contiguous<C>(v, scratch) : nullptr; }

  kernels::Movement<C> by_;
  const View &mean_out_, &variance_out_;
  C *mean_, *variance_;
};

// visit(row, mean, variance) is called for each row, before it is written.
template <class C, class Visit> void norm(const Launch& launch, Scratch& scratch, const Visit& visit) {
  const ChannelRows r(launch.in(), launch.ints[2]);
  int next = 1;
  C* x = contiguous<C>(launch.in(), scratch);
  const C* weight = launch.ints[0] ? contiguous<C>(launch.in(next++), scratch) : nullptr;
  const C* bias = launch.ints[1] ? contiguous<C>(launch.in(next), scratch) : nullptr;
  C* y = target<C>(launch.out(), scratch);
  each_row(r, [&](int64_t begin, int64_t end) {
    Scratch near;
    const ChannelRow<C> in(r, x, near), out(r, y, near);
    const ChannelVector<C> weights(r, weight, near), biases(r, bias, near);
    for (int64_t k = begin; k < end; ++k) {
      call_given(weights.read(k), [&](auto w) {
        call_given(biases.read(k), [&](auto b) {
          kernels::Norm<true>()(Loop{r.length()}, Row<C>(in.read(k)), w, b, C(launch.reals[0]), out.open(k),
                                [&](C mean, C variance) { visit(k, mean, variance); });
        });
      });
      out.close(k);
    }
  });
  finish(launch.out(), y);
}

// Takes the place of a sum in the formula of the pullback, and stores the terms.
template <class C> struct Terms {
  C* to;
  struct Cell {
    C& term;
    void operator+=(C a) const { term = a; }
  };
  Cell operator[](int64_t i) const { return {to[i]}; }
};

template <class C> void sum_channels(const View& out, C* terms, const View& like, Scratch& scratch) {
  const DType wide = storage_of(compute_of<C>);
  C* sums = target<C>(out, scratch);
  kernels::sum_over(contiguous_view(sums, wide, out), contiguous_view(terms, wide, like), 5);
  finish(out, sums);
}

// The rows are groups: each element has the weight of its channel, and the gradients of channels are sums over rows.
template <class C> void group_pullback(const Launch& launch, const ChannelRows& r, C* g, C* x, const C* weight, C* gx,
                                       Scratch& scratch) {
  const View& x_view = launch.in(1);
  C* const terms = scratch.take<C>(x_view.size());
  each_row(r, [&](int64_t begin, int64_t end) {
    Scratch near;
    const ChannelVector<C> weights(r, weight, near);
    C* unused = near.take<C>(r.length());
    for (int64_t k = begin; k < end; ++k) {
      const int64_t first = k * r.length();
      call_given(weights.read(k), [&](auto w) {
        kernels::NormPullback<true>()(Loop{r.length()}, Row<C>(g + first), Row<C>(x + first), w, C(launch.reals[0]), gx + first,
                                      Terms<C>{terms + first}, Terms<C>{unused});
      });
    }
  });
  sum_channels(launch.out(1), terms, x_view, scratch);
  sum_channels(launch.out(2), g, x_view, scratch);
}

// The rows are channels, which have one weight each, and the sums over which are the gradients of weight and bias.
template <class C>
void channel_pullback(const Launch& launch, const ChannelRows& r, C* g, C* x, const C* weight, C* gx, Scratch& scratch) {
  C *const gweight = target<C>(launch.out(1), scratch), *const gbias = target<C>(launch.out(2), scratch);
  each_row(r, [&](int64_t begin, int64_t end) {
    Scratch near;
    const ChannelRow<C> g_rows(r, g, near), x_rows(r, x, near), gx_rows(r, gx, near);
    for (int64_t k = begin; k < end; ++k) {
      const auto pull_back = [&](auto w) {
        kernels::NormPullback<true>()(Loop{r.length()}, Row<C>(g_rows.read(k)), Row<C>(x_rows.read(k)), w, C(launch.reals[0]),
                                      gx_rows.open(k), kernels::Total<C>{gweight + k}, kernels::Total<C>{gbias + k});
      };
      if (weight) pull_back(kernels::Same<C>{weight[k]});
      else pull_back(kernels::none());
      gx_rows.close(k);
    }
  });
  finish(launch.out(1), gweight);
  finish(launch.out(2), gbias);
}

template <class C> void norm_pullback(const Launch& launch) {
  const View& x_view = launch.in(1);
  const ChannelRows r(x_view, launch.ints[1]);
  Scratch scratch;
  C *g = contiguous<C>(launch.in(0), scratch), *x = contiguous<C>(x_view, scratch);
  const C* weight = launch.ints[0] ? contiguous<C>(launch.in(2), scratch) : nullptr;
  C* gx = target<C>(launch.out(), scratch);
  (r.groups ? group_pullback<C> : channel_pullback<C>)(launch, r, g, x, weight, gx, scratch);
  finish(launch.out(), gx);
}

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

void run_channel_norm(const Launch& launch) {
  if (launch.in().size() == 0) return;
  cpu::visit_row(launch.in(), [&](auto tag) {
    cpu::Scratch scratch;
    cpu::norm<decltype(tag)>(launch, scratch, [](auto...) {});
  });
}
void run_batch_norm(const Launch& launch) {
  int64_t* const batches = launch.out(3).size() ? launch.out(3).as<int64_t>() : nullptr;
  const int64_t number = batches ? ++*batches : 0;
  if (launch.in().size() == 0) return;
  cpu::visit_row(launch.in(), [&](auto tag) {
    using C = decltype(tag);
    cpu::Scratch scratch;
    const cpu::RunningValues<C> running(launch, number, scratch);
    cpu::norm<C>(launch, scratch, [&](int64_t row, C mean, C variance) { running.move(row, mean, variance); });
    running.close();
  });
}
void run_channel_norm_pullback(const Launch& launch) {
  if (launch.in().size() == 0) return cpu::assign_number(launch.out(1), 0), cpu::assign_number(launch.out(2), 0);
  cpu::visit_row(launch.in(), [&](auto tag) { cpu::norm_pullback<decltype(tag)>(launch); });
}

void executed_channel_norm(const Launch&, Counts&) {}
void executed_batch_norm(const Launch&, Counts&) {}
// The sums over a channel compute their terms again, and a weight of a channel multiplies in each of three passes.
void executed_channel_norm_pullback(const Launch& launch, Counts& work) {
  if (launch.ints[1]) return;
  const int64_t size = launch.in().size();
  work.adds += size, work.multiplies += size * (launch.ints[0] ? 3 : 1);
}

}  // namespace pb::kernels
