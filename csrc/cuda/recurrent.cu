// Recurrent layers. Each step is one product of the hidden states, and one launch of the cells. States are kept in the type that is
// computed in, so that half precision is rounded only when it is written.
#include "families/recurrent.h"

#include <algorithm>

#include "cuda/copy.cuh"
#include "cuda/gemm.h"
#include "cuda/operand.cuh"
#include "families/executed.h"

namespace pb::cuda {
namespace {

using kernels::BackwardRecurrence;
using kernels::ForwardRecurrence;
using kernels::Recurrence;

int64_t length(const Recurrence& r) { return r.gates * r.hidden; }

// One step of all rows. Pointers are those of the step, but `kept` numbers lie `apart` elements apart.
template <class T> struct ForwardStep {
  using C = acc_t<T>;
  const T* x;
  const C *p, *bias;
  C *h, *c;  // the states before the step, which it replaces; c is h unless the cell is an LSTM
  T* y;
  int64_t apart;
  Divider hidden;
};
template <class T> struct BackwardStep {
  using C = acc_t<T>;
  const T *g, *y, *state;  // state: what the cell reads of the step before
  const C* later;
  C *carry, *z;  // z: the cotangents of the hidden product
  T *gx, *gp;    // gp: null unless it differs from gx
  int64_t apart;
  Divider hidden;
};

// Returns element k of gate 0 of a thread's element i, in rows of kGates * hidden.
template <int kGates> __device__ inline int64_t first_gate(const Divider& hidden, uint32_t i) {
  return int64_t(hidden.divide(i)) * (kGates - 1) * hidden.divisor + i;
}

template <class Cell, class T> __global__ void __launch_bounds__(kThreads)
    step_forward(const __grid_constant__ ForwardStep<T> f, uint32_t n) {
  using C = acc_t<T>;
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t gate = first_gate<Cell::kGates>(f.hidden, i);
  const uint32_t column = i - f.hidden.divide(i) * f.hidden.divisor;
  C x[Cell::kGates], p[Cell::kGates], y[Cell::kKept];
#pragma unroll
  for (int k = 0; k < Cell::kGates; ++k) {
    x[k] = C(f.x[gate + k * int64_t(f.hidden.divisor)]), p[k] = f.p[gate + k * int64_t(f.hidden.divisor)];
    if (f.bias) p[k] = p[k] + f.bias[column + k * int64_t(f.hidden.divisor)];
  }
  Cell::template forward<C>(x, p, f.c[i], y);
#pragma unroll
  for (int k = 0; k < Cell::kKept; ++k) f.y[i + k * f.apart] = T(y[k]);
  f.h[i] = y[0];
  if constexpr (Cell::kKept == LstmCell::kKept) f.c[i] = y[1];
}

template <class Cell, class T> __global__ void __launch_bounds__(kThreads)
    step_backward(const __grid_constant__ BackwardStep<T> f, uint32_t n) {
  using C = acc_t<T>;
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t gate = first_gate<Cell::kGates>(f.hidden, i);
  C g[Cell::kKept], y[Cell::kKept], x[Cell::kGates], p[Cell::kGates];
#pragma unroll
  for (int k = 0; k < Cell::kKept; ++k) {
    g[k] = C(f.g[i + k * f.apart]);
    y[k] = Cell::kCarries && k == 0 ? C(0) : C(f.y[i + k * f.apart]);
  }
  const C state = Cell::kCarries ? C(f.state[i]) : C(0), carry = Cell::kCarries ? f.carry[i] : C(0);
  const C rest = Cell::template pull<C>(g, f.later[i], carry, y, state, x, p);
  if constexpr (Cell::kCarries) f.carry[i] = rest;
#pragma unroll
  for (int k = 0; k < Cell::kGates; ++k) {
    const int64_t at = gate + k * int64_t(f.hidden.divisor);
    f.gx[at] = T(x[k]), f.z[at] = p[k];
    if constexpr (Cell::kSplits) f.gp[at] = T(p[k]);
  }
}

// Writes the cotangent of h before the first step: `later`, and for a GRU what the first step passes on directly.
template <class T> __global__ void __launch_bounds__(kThreads)
    write_state(T* out, const acc_t<T>* later, const acc_t<T>* carry, uint32_t n) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i < n) out[i] = T(carry ? later[i] + carry[i] : later[i]);
}

// The product of each step: rows (rows, H) with the weight, transposed, or in the backward pass rows (rows, G H) with the weight.
template <class C> Product step_product(const Recurrence& r, bool forward, const C* weight, const C* rows, C* out) {
  const int64_t size = sizeof(C), n = forward ? length(r) : r.hidden, k = forward ? r.hidden : length(r);
  Product p(storage_of(compute_of<C>), r.rows, n, k, reinterpret_cast<char*>(out));
  p.a = {reinterpret_cast<const char*>(rows), k * size, size};
  p.b = {reinterpret_cast<const char*>(weight), forward ? r.hidden * size : size, forward ? size : r.hidden * size};
  return p;
}

template <class C> C* copied(const View& from, Scratch& scratch) {
  C* const to = scratch.take<C>(from.size());
  assign(contiguous_view(to, storage_of(compute_of<C>), from), from);
  return to;
}
template <class C> C* zeros(int64_t n, Scratch& scratch) {
  C* const to = scratch.take<C>(n);
  assign_number(flat_view(to, storage_of(compute_of<C>), n), 0);
  return to;
}

template <class Cell, class T> void run_forward(const ForwardRecurrence& r) {
  using C = acc_t<T>;
  Scratch scratch;
  const DType wide = storage_of(compute_of<C>);
  const View x = contiguous_as(r.x.dtype, r.x, scratch);
  const C* const weight = contiguous_as(wide, r.w, scratch).template as<C>();
  ForwardStep<T> f{};
  f.bias = r.bias.data ? contiguous_as(wide, r.bias, scratch).template as<C>() : nullptr;
  f.h = copied<C>(r.h, scratch), f.c = r.c.data ? copied<C>(r.c, scratch) : f.h;
  C* const p = scratch.take<C>(r.rows * length(r));
  f.p = p, f.apart = r.elements(), f.hidden = Divider(uint32_t(r.hidden));
  const Product product = step_product(r, true, weight, f.h, p);
  for (int64_t step = 0; step < r.steps; ++step) {
    multiply(&product, 1);
    f.x = x.as<T>() + r.at(step) * r.rows * length(r), f.y = r.y.template as<T>() + r.at(step) * r.step_size();
    start(step_forward<Cell, T>, blocks_for(r.step_size()), dim3(kThreads), 0, f, uint32_t(r.step_size()));
  }
}

template <class Cell, class T> void run_backward(const BackwardRecurrence& r) {
  using C = acc_t<T>;
  constexpr bool kLong = Cell::kKept == LstmCell::kKept;
  Scratch scratch;
  const int64_t n = r.step_size();
  const View g = contiguous_as(r.g.dtype, r.g, scratch), &first = kLong ? r.c : r.h;
  const T* const first_state = Cell::kCarries ? contiguous_as(first.dtype, first, scratch).template as<T>() : nullptr;
  const C* const weight = contiguous_as(storage_of(compute_of<C>), r.w, scratch).template as<C>();
  C* const later = zeros<C>(n, scratch);
  BackwardStep<T> f{};
  f.later = later, f.carry = Cell::kCarries ? zeros<C>(n, scratch) : nullptr, f.z = scratch.take<C>(r.rows * length(r));
  f.apart = r.elements(), f.hidden = Divider(uint32_t(r.hidden));
  const Product product = step_product(r, false, weight, f.z, later);
  const T* const y = r.y.template as<T>();
  for (int64_t step = r.steps; step-- > 0;) {
    const int64_t t = r.at(step), before = r.before(step), at = t * r.rows * length(r);
    f.g = g.as<T>() + t * n, f.y = y + t * n;
    f.state = before < 0 ? first_state : y + kLong * r.elements() + before * n;
    f.gx = r.gx.template as<T>() + at, f.gp = Cell::kSplits ? r.gp.template as<T>() + at : nullptr;
    start(step_backward<Cell, T>, blocks_for(n), dim3(kThreads), 0, f, uint32_t(n));
    if (step || r.gh.data) multiply(&product, 1);
  }
  const bool adds = Cell::kCarries && !kLong;
  if (r.gh.data)
    start(write_state<T>, blocks_for(n), dim3(kThreads), 0, r.gh.template as<T>(), later, adds ? f.carry : nullptr,
          uint32_t(n));
  if (kLong) start(write_state<T>, blocks_for(n), dim3(kThreads), 0, r.gc.template as<T>(), f.carry, nullptr, uint32_t(n));
}

// Writes the gradients of a sequence without steps.
void clear(const BackwardRecurrence& r) {
  if (r.gh.data) assign_number(r.gh, 0);
  if (r.gc.data) assign_number(r.gc, 0);
}

void check_size(const Recurrence& r) {
  if (r.step_size() > kMaxWalk) throw Failure("a step of more elements than 32 bits can number");
}

void replace_products(const Recurrence& r, int64_t steps, bool forward, Counts& work) {
  if (steps * r.step_size() == 0) return;
  work.fmas -= steps * r.step_size() * length(r);
  const auto add = [&](auto zero) {
    using C = decltype(zero);
    const Product p = step_product<C>(r, forward, nullptr, nullptr, nullptr);
    work.add(work_of(&p, 1), steps);
  };
  if (r.w.dtype == DType::f64) add(double());
  else add(float());
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void run_recurrence(const Launch& launch) {
  const ForwardRecurrence r(launch);
  if (r.elements() == 0) return;
  cuda::check_size(r);
  visit_cell(r.kind, [&](auto cell) {
    cuda::visit_stored_float(r.w.dtype, [&](auto tag) { cuda::run_forward<decltype(cell), typename decltype(tag)::type>(r); });
  });
}

void run_recurrence_pullback(const Launch& launch) {
  const BackwardRecurrence r(launch);
  if (r.step_size() == 0) return;
  if (r.steps == 0) return cuda::clear(r);
  cuda::check_size(r);
  visit_cell(r.kind, [&](auto cell) {
    cuda::visit_stored_float(r.w.dtype, [&](auto tag) { cuda::run_backward<decltype(cell), typename decltype(tag)::type>(r); });
  });
}

void executed_recurrence(const Launch& launch, Counts& work) {
  const ForwardRecurrence r(launch);
  cuda::replace_products(r, r.steps, true, work);
}
void executed_recurrence_pullback(const Launch& launch, Counts& work) {
  const BackwardRecurrence r(launch);
  cuda::replace_products(r, r.products(), false, work);
}

}  // namespace pb::kernels
