// Layer norm and RMS norm, and their pullbacks.
#include "cpu/rows.h"

namespace pb::cpu {
namespace {

constexpr int64_t kRowsAtOnce = 64;  // rows whose gradients of weight and bias are added up one after the other

template <class A> struct Square {
  Row<A> x;
  A mean;
  A operator()(int64_t i) const {
    const A z = x[i] - mean;
    return z * z;
  }
};

// y = (x - mean) scale w + b; w and b may be null.
template <bool kCentred, bool kWeight, bool kBias, class A>
void affine_row(int64_t n, Row<A> x, A mean, A scale, const A* w, const A* b, A* y) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    A a = x[i];
    if constexpr (kCentred) a = a - mean;
    a = a * scale;
    if constexpr (kWeight) a = a * w[i];
    if constexpr (kBias) a = a + b[i];
    y[i] = a;
  }
}

// Two passes: the mean, then the squares of what is left of it. One pass would lose a small variance beside a large mean.
template <class A> void layer_norm_row(int64_t n, Row<A> x, const A* w, const A* b, A eps, A* y) {
  const A mean = mean_of(sum_of<A>(n, [x](int64_t i) { return x[i]; }, x.ahead()), n);
  const A r = m::rsqrt(A(mean_of(sum_of<A>(n, Square<A>{x, mean}), n) + eps));
  if (w && b) affine_row<true, true, true>(n, x, mean, r, w, b, y);
  else if (w) affine_row<true, true, false>(n, x, mean, r, w, b, y);
  else if (b) affine_row<true, false, true>(n, x, mean, r, w, b, y);
  else affine_row<true, false, false>(n, x, mean, r, w, b, y);
}

template <class A> void rms_norm_row(int64_t n, Row<A> x, const A* w, A eps, A* y) {
  const A square = mean_of(sum_of<A>(n, [x](int64_t i) { return x[i] * x[i]; }, x.ahead()), n);
  const A r = m::rsqrt(A(square + eps));
  if (w) affine_row<false, true, false>(n, x, A(0), r, w, w, y);
  else affine_row<false, false, false>(n, x, A(0), r, w, w, y);
}

// With h = g w and z = (x - mean) r: gx = r (h - mean(h) - z mean(h z)), gweight = g z, gbias = g.
template <class A>
void layer_norm_pullback_row(int64_t n, Row<A> g, Row<A> x, const A* __restrict w, A eps, A* __restrict gx, A* __restrict gw,
                             A* __restrict gb) {
  const A mean = mean_of(sum_of<A>(n, [x](int64_t i) { return x[i]; }, x.ahead()), n);
  const A variance = mean_of(sum_of<A>(n, Square<A>{x, mean}, g.ahead()), n);
  const A r = m::rsqrt(A(variance + eps));
  const A* h = w ? gx : g.data;
  const A total =
      w ? sum_of<A>(n, [g, w, gx](int64_t i) { return gx[i] = g[i] * w[i]; }) : sum_of<A>(n, [g](int64_t i) { return g[i]; });
  const A along = mean_of(total, n);
  const A across = mean_of(sum_of<A>(n, [h, x, mean, r](int64_t i) { return h[i] * ((x[i] - mean) * r); }), n);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const A z = (x[i] - mean) * r;
    gw[i] += g[i] * z;
    gb[i] += g[i];
    gx[i] = r * (h[i] - along - z * across);
  }
}

template <class A>
void rms_norm_pullback_row(int64_t n, Row<A> g, Row<A> x, const A* __restrict w, A eps, A* __restrict gx, A* __restrict gw) {
  const A square = mean_of(sum_of<A>(n, [x](int64_t i) { return x[i] * x[i]; }, x.ahead()), n);
  const A r = m::rsqrt(A(square + eps));
  const A* h = g.data;
  if (w) {
    for (int64_t i = 0; i < n; ++i) gx[i] = g[i] * w[i];
    h = gx;
  }
  const A across = mean_of(sum_of<A>(n, [h, x, r](int64_t i) { return h[i] * (x[i] * r); }, g.ahead()), n);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const A z = x[i] * r;
    gw[i] += g[i] * z;
    gx[i] = r * (h[i] - z * across);
  }
}

template <bool kCentred, class A>
void norm_row(int64_t n, Row<A> x, const A* w, [[maybe_unused]] const A* b, A eps, A* y) {
  if constexpr (kCentred) layer_norm_row(n, x, w, b, eps, y);
  else rms_norm_row(n, x, w, eps, y);
}
// The gradient of the weight lies at `gw`, that of the bias, where there is one, right after it.
template <bool kCentred, class A>
void norm_pullback_row(int64_t n, Row<A> g, Row<A> x, const A* w, A eps, A* gx, A* gw) {
  if constexpr (kCentred) layer_norm_pullback_row(n, g, x, w, eps, gx, gw, gw + n);
  else rms_norm_pullback_row(n, g, x, w, eps, gx, gw);
}

template <class C> const C* read_all(const View& v, Scratch& scratch) { return Rows<C>(v, scratch).read(0).data; }

template <bool kCentred> void norm(const Launch& launch) {
  const View& x = launch.in();
  const int64_t n = row_length(x);
  if (n == 0) return;
  visit_row(x, [&](auto tag) {
    using C = decltype(tag);
    Scratch scratch;
    int next = 1;
    const C* w = launch.ints[0] ? read_all<C>(launch.in(next++), scratch) : nullptr;
    const C* b = launch.ints[1] ? read_all<C>(launch.in(next), scratch) : nullptr;
    for_rows(x, 1, [&](int64_t begin, int64_t end) {
      Scratch near;
      const Rows<C> in(x, near);
      const RowsOut<C> out(launch.out(), near, kFarBytes);
      for (int64_t k = begin; k < end; ++k) {
        norm_row<kCentred>(n, in.read(k), w, b, C(launch.reals[0]), out.open(k));
        out.close(k);
      }
    });
  });
}

// The gradients of weight and bias: a sum over every block of rows, then over the blocks, in an order of their own.
template <bool kCentred, class C> void norm_pullback_as(const Launch& launch) {
  constexpr int kSums = kCentred ? 2 : 1;
  const View &g = launch.in(0), &x = launch.in(1);
  const int64_t n = row_length(x), rows = row_count(x), blocks = (rows + kRowsAtOnce - 1) / kRowsAtOnce;
  Scratch scratch;
  const C* w = launch.ints[0] ? read_all<C>(launch.in(2), scratch) : nullptr;
  C* sums = scratch.take<C>(std::max<int64_t>(1, blocks) * kSums * n);
  std::fill_n(sums, kSums * n, C(0));
  parallel_for(blocks, std::max<int64_t>(1, kRowGrain / (kRowsAtOnce * n)), [&](int64_t begin, int64_t end) {
    Scratch near;
    const Rows<C> g_rows(g, near), x_rows(x, near);
    const RowsOut<C> gx_rows(launch.out(), near, kFarBytes);
    for (int64_t block = begin; block < end; ++block) {
      C* sum = sums + block * kSums * n;
      std::fill_n(sum, kSums * n, C(0));
      for (int64_t k = block * kRowsAtOnce; k < std::min(rows, (block + 1) * kRowsAtOnce); ++k) {
        norm_pullback_row<kCentred>(n, g_rows.read(k), x_rows.read(k), w, C(launch.reals[0]), gx_rows.open(k), sum);
        gx_rows.close(k);
      }
    }
  });
  fold_rows_in_place<sum_reduce>(blocks, kSums * n, sums);
  for (int s = 0; s < kSums; ++s) {
    const View& out = launch.out(1 + s);
    store(compute_type(out.dtype), out.dtype, sums + s * n, n, out.data, item_size(out.dtype));
  }
}

template <bool kCentred> void norm_pullback(const Launch& launch) {
  if (row_length(launch.in()) == 0) return;
  visit_row(launch.in(), [&](auto tag) { norm_pullback_as<kCentred, decltype(tag)>(launch); });
}

template <bool kCentred> RowCost measure_norm(bool weight, bool bias) {
  return measure_row([=](int64_t n) {
    const Counting x[16], ones[16];
    Counting y[16];
    norm_row<kCentred>(n, Row<Counting>(x), weight ? ones : nullptr, bias ? ones : nullptr, Counting(1), y);
  });
}
template <bool kCentred> RowCost measure_norm_pullback(bool weight) {
  return measure_row([=](int64_t n) {
    const Counting g[16], x[16], ones[16];
    Counting gx[16], sums[32];
    norm_pullback_row<kCentred>(n, Row<Counting>(g), Row<Counting>(x), weight ? ones : nullptr, Counting(1), gx, sums);
  });
}

template <bool kCentred> void norm_cost(const Launch& launch, Cost& cost) {
  add_rows(measure_norm<kCentred>(launch.ints[0], launch.ints[1]), launch.in(), cost);
}
template <bool kCentred> void norm_pullback_cost(const Launch& launch, Cost& cost) {
  add_rows(measure_norm_pullback<kCentred>(launch.ints[0]), launch.in(), cost);
}

}  // namespace

const Kernel layer_norm{"layer_norm", norm<true>, norm_cost<true>};
const Kernel layer_norm_pullback{"layer_norm_pullback", norm_pullback<true>, norm_pullback_cost<true>};
const Kernel rms_norm{"rms_norm", norm<false>, norm_cost<false>};
const Kernel rms_norm_pullback{"rms_norm_pullback", norm_pullback<false>, norm_pullback_cost<false>};

}  // namespace pb::cpu
