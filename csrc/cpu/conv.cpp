// Convolutions: the products that each op consists of, and the layouts and dtypes of its operands.
#include "cpu/conv.h"

#include "cpu/copy.h"
#include "cpu/index.h"
#include "cpu/matmul.h"
#include "cpu/pool.h"
#include "families/executed.h"

namespace pb::cpu {
namespace {

using kernels::ConvAxis;
using kernels::ConvShape;

// Returns the elements in `wide`, contiguous, and rounded to the precision of this thread's products.
View factor(const View& v, DType wide, Scratch& scratch) { return contiguous_as(wide, rounded(v, scratch), scratch); }

// Returns the part of the weights that a product of convolution_input needs, as (groups, in, out, taps of the product).
template <class T> const T* turned(const ConvShape& s, const ConvProduct& p, const T* w, Scratch& scratch) {
  T* const all = scratch.take<T>(std::max<int64_t>(1, s.groups * s.in * p.depth()));
  parallel_for(s.groups * s.in, 16384 / (p.depth() + 1) + 1, [&](int64_t begin, int64_t end) {
    T* to = all + begin * p.depth();
    for (int64_t row = begin; row < end; ++row)
      for (int64_t o = 0; o < s.out; ++o) {
        const T* from = w + ((row / s.in * s.out + o) * s.in + row % s.in) * s.taps();
        for (const int64_t i : p.taps_at[0])
          for (const int64_t j : p.taps_at[1]) *to++ = from[i * s.axis[1].w + j];
      }
  });
  return all;
}

// Calls f(product, the first element) for each product of convolution_input.
template <class F> void each_input_product(const ConvShape& s, const F& f) {
  const std::vector<kernels::InputTaps> down = kernels::input_taps(s.axis[0]), across = kernels::input_taps(s.axis[1]);
  for (size_t i = 0; i < down.size(); ++i)
    for (size_t j = 0; j < across.size(); ++j) f(input_product(s, down[i], across[j]), int64_t(i) * s.axis[1].x + int64_t(j));
}

// Calls run(the contiguous result) in the dtype of sums, and rounds the result once if it is of half precision.
template <class T, class F> void into(const View& out, Scratch& scratch, const F& run) {
  const DType wide = storage_of(compute_of<T>);
  if (out.dtype == wide) return run(out.as<T>());
  T* const sums = scratch.take<T>(out.size());
  run(sums);
  assign(flat_view(out.data, out.dtype, out.size()), flat_view(sums, wide, out.size()));
}

template <class T> void forward(const Launch& launch) {
  const View& out = launch.out();
  if (out.size() == 0) return;
  const ConvShape s = kernels::shape_of_convolution(launch);
  const DType wide = storage_of(compute_of<T>);
  Scratch scratch;
  const T* x = factor(launch.in(0), wide, scratch).template as<T>();
  const T* w = factor(launch.in(1), wide, scratch).template as<T>();
  const T* bias = launch.inputs == 3 ? contiguous_as(wide, launch.in(2), scratch).template as<T>() : nullptr;
  into<T>(out, scratch, [&](T* y) { run_product(forward_product(s), x, w, bias, y); });
}

template <class T> void input(const Launch& launch) {
  const View& out = launch.out();
  if (out.size() == 0) return;
  const ConvShape s = kernels::shape_of_convolution_input(launch);
  const DType wide = storage_of(compute_of<T>);
  Scratch scratch;
  const T* g = factor(launch.in(0), wide, scratch).template as<T>();
  const T* w = factor(launch.in(1), wide, scratch).template as<T>();
  into<T>(out, scratch, [&](T* gx) {
    each_input_product(s, [&](const ConvProduct& p, int64_t first) {
      Scratch near;
      run_product<T>(p, g, turned(s, p, w, near), nullptr, gx + first);
    });
  });
}

template <class T> void weight(const Launch& launch) {
  const View& out = launch.out();
  if (out.size() == 0) return;
  const DType wide = storage_of(compute_of<T>);
  Scratch scratch;
  const T* x = factor(launch.in(0), wide, scratch).template as<T>();
  const T* g = factor(launch.in(1), wide, scratch).template as<T>();
  into<T>(out, scratch, [&](T* gw) { run_weight(kernels::shape_of_convolution_weight(launch), x, g, gw); });
}

// Returns the positions along an axis, and makes their least offset 0. A tap that meets only zeros outside the source is moved: near
// to the source it meets zeros too, and a patch has no room for what lies between.
TapPositions positions(int64_t count, int64_t step, int64_t origin, int64_t length, std::vector<int64_t>& offsets) {
  TapPositions found{count, step, origin, length, {}, 0};
  if (offsets.empty()) return found;
  const int64_t before = -origin - std::max<int64_t>(0, count - 1) * step - 1, after = length - origin;
  for (int64_t& at : offsets) at = std::clamp(at, before, after);
  const int64_t least = *std::min_element(offsets.begin(), offsets.end());
  found.origin += least;
  for (int64_t& at : offsets) {
    at -= least;
    found.phases.push_back(at % step), found.reach = std::max(found.reach, at / step);
  }
  std::sort(found.phases.begin(), found.phases.end());
  found.phases.erase(std::unique(found.phases.begin(), found.phases.end()), found.phases.end());
  return found;
}

bool in_single(const Launch& launch) { return compute_type(launch.out().dtype) == Compute::f32; }

ConvProduct product_of(const ConvShape& s, bool forward) {
  ConvProduct p{s.images, s.groups, forward ? s.in : s.out, forward ? s.out : s.in, {}, {}, {}, {}};
  const ConvAxis &y = s.axis[0], &x = s.axis[1];
  const int64_t height = forward ? y.y : y.x, width = forward ? x.y : x.x, area = height * width;
  p.out = {s.groups * p.rows * area, p.rows * area, area, forward ? width : y.stride * width, forward ? 1 : x.stride};
  return p;
}

}  // namespace

ConvProduct forward_product(const ConvShape& s) {
  ConvProduct p = product_of(s, true);
  for (int d = 0; d < 2; ++d) {
    const ConvAxis& a = s.axis[d];
    for (int64_t i = 0; i < a.w; ++i) p.taps_at[d].push_back(i), p.offsets[d].push_back(i * a.dilation);
    p.axis[d] = positions(a.y, a.stride, -a.padding, a.x, p.offsets[d]);
  }
  return p;
}

ConvProduct input_product(const ConvShape& s, const kernels::InputTaps& down, const kernels::InputTaps& across) {
  ConvProduct p = product_of(s, false);
  for (int d = 0; d < 2; ++d) {
    const kernels::InputTaps& taps = d == 0 ? down : across;
    for (int64_t i = 0; i < taps.count; ++i)
      p.taps_at[d].push_back(taps.first + i * taps.step), p.offsets[d].push_back(taps.at + i * taps.move);
    p.axis[d] = positions(taps.elements, 1, 0, s.axis[d].y, p.offsets[d]);
  }
  return p;
}

}  // namespace pb::cpu

namespace pb::kernels {

void run_convolution(const Launch& launch) {
  if (cpu::in_single(launch)) cpu::forward<float>(launch);
  else cpu::forward<double>(launch);
}
void run_convolution_input(const Launch& launch) {
  if (cpu::in_single(launch)) cpu::input<float>(launch);
  else cpu::input<double>(launch);
}
void run_convolution_weight(const Launch& launch) {
  if (cpu::in_single(launch)) cpu::weight<float>(launch);
  else cpu::weight<double>(launch);
}

void executed_convolution(const Launch& launch, Counts& work) {
  const cpu::ConvProduct p = cpu::forward_product(shape_of_convolution(launch));
  const Counts product = cpu::in_single(launch) ? cpu::work_of_product<float>(p) : cpu::work_of_product<double>(p);
  work.fmas = product.fmas, work.adds += product.adds;
}
void executed_convolution_input(const Launch& launch, Counts& work) {
  work = {};
  if (launch.out().size() == 0) return;
  cpu::each_input_product(shape_of_convolution_input(launch), [&](const cpu::ConvProduct& p, int64_t) {
    work.add(cpu::in_single(launch) ? cpu::work_of_product<float>(p) : cpu::work_of_product<double>(p));
  });
}
void executed_convolution_weight(const Launch& launch, Counts& work) {
  const ConvShape s = shape_of_convolution_weight(launch);
  work = cpu::in_single(launch) ? cpu::work_of_weight<float>(s) : cpu::work_of_weight<double>(s);
}

}  // namespace pb::kernels
