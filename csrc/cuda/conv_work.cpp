// The products that a convolution consists of on a GPU, and the work of their tiles.
#include <algorithm>

#include "cuda/conv.h"
#include "families/executed.h"

namespace pb::cuda {
namespace {

using kernels::ConvShape;

int64_t whole(int64_t n, int64_t of) { return (n + of - 1) / of * of; }

// Sets the strides of a and of the result: those of w, or of an array like y, with the groups taken apart.
void set_out(ConvGemm& p, const View& out, int64_t rows, bool images_in_n) {
  p.out = out.data;
  p.out_row = images_in_n ? out.stride[1] : out.stride[0];
  p.out_group = rows * p.out_row;
  p.out_n[0] = images_in_n ? out.stride[0] : out.stride[1], p.out_n[1] = out.stride[2], p.out_n[2] = out.stride[3];
}

void set_source(ConvGemm& p, const View& x, int64_t channels, bool images_in_n) {
  p.b = x.data;
  p.b_group = channels * x.stride[1];
  p.b_n = images_in_n ? x.stride[0] : x.stride[1];
  p.b_k = images_in_n ? x.stride[1] : x.stride[0];
  for (int d = 0; d < 2; ++d) p.length[d] = x.shape[2 + d], p.stride[d] = x.stride[2 + d];
}

Counts work_of(const ConvGemm& p, DType dtype) {
  Counts work;
  const int64_t elements = p.groups * p.m * p.n.count;
  if (elements == 0) return work;
  const int64_t side = conv_tile(dtype), slices = std::max<int64_t>(1, (p.k.count + kConvSlice - 1) / kConvSlice);
  const int64_t padded = p.groups * whole(p.m, side) * whole(p.n.count, side);
  work.fmas = padded * whole(p.k.count, kConvStep);
  work.adds = padded * (std::max(slices, kernels::order_blocks(p.k.count)) - slices) + elements * (slices - 1);
  return work;
}

}  // namespace

ConvGemm gemm_of_convolution(const Launch& launch) {
  const View &y = launch.out(), &x = launch.in(0), &w = launch.in(1);
  const ConvShape s = kernels::shape_of_convolution(launch);
  ConvGemm p{};
  p.groups = s.groups, p.m = s.out;
  p.n = {s.images * s.pixels_of_y(), {s.axis[0].y, s.axis[1].y}};
  p.k = {s.in * s.taps(), {s.axis[0].w, s.axis[1].w}};
  p.a = w.data, p.a_row = w.stride[0], p.a_group = s.out * w.stride[0];
  for (int d = 0; d < 3; ++d) p.a_k[d] = w.stride[1 + d];
  set_source(p, x, s.in, true);
  for (int d = 0; d < 2; ++d) p.at[d] = -s.axis[d].padding, p.by_n[d] = s.axis[d].stride, p.by_k[d] = s.axis[d].dilation;
  set_out(p, y, s.out, true);
  if (launch.inputs == 3) p.bias = launch.in(2).data, p.bias_step = launch.in(2).stride[0];
  return p;
}

std::vector<ConvGemm> gemms_of_convolution_input(const Launch& launch) {
  const View &gx = launch.out(), &g = launch.in(0), &w = launch.in(1);
  const ConvShape s = kernels::shape_of_convolution_input(launch);
  std::vector<ConvGemm> found;
  if (gx.size() == 0) return found;
  const std::vector<kernels::InputTaps> taps[2] = {kernels::input_taps(s.axis[0]), kernels::input_taps(s.axis[1])};
  for (size_t i = 0; i < taps[0].size(); ++i)
    for (size_t j = 0; j < taps[1].size(); ++j) {
      const size_t r[2] = {i, j};
      ConvGemm p{};
      p.groups = s.groups, p.m = s.in;
      set_source(p, g, s.out, true);
      set_out(p, gx, s.in, true);
      p.a = w.data, p.a_row = w.stride[1], p.a_group = s.out * w.stride[0], p.a_k[0] = w.stride[0];
      p.n.count = s.images, p.k.count = s.out;
      for (int d = 0; d < 2; ++d) {
        const kernels::InputTaps& m = taps[d][r[d]];
        p.n.length[d] = m.elements, p.k.length[d] = m.count;
        p.n.count *= p.n.length[d], p.k.count *= m.count;
        p.at[d] = m.at, p.by_n[d] = 1, p.by_k[d] = m.move;
        p.a += m.first * w.stride[2 + d], p.a_k[1 + d] = m.step * w.stride[2 + d];
        p.out += int64_t(r[d]) * gx.stride[2 + d], p.out_n[1 + d] *= s.axis[d].stride;
      }
      found.push_back(p);
    }
  return found;
}

ConvGemm gemm_of_convolution_weight(const Launch& launch) {
  const View &gw = launch.out(), &x = launch.in(0), &g = launch.in(1);
  const ConvShape s = kernels::shape_of_convolution_weight(launch);
  ConvGemm p{};
  p.groups = s.groups, p.m = s.out;
  p.n = {s.in * s.taps(), {s.axis[0].w, s.axis[1].w}};
  p.k = {s.images * s.pixels_of_y(), {s.axis[0].y, s.axis[1].y}};
  p.a = g.data, p.a_row = g.stride[1], p.a_group = s.out * g.stride[1];
  p.a_k[0] = g.stride[0], p.a_k[1] = g.stride[2], p.a_k[2] = g.stride[3];
  set_source(p, x, s.in, false);
  for (int d = 0; d < 2; ++d) p.at[d] = -s.axis[d].padding, p.by_n[d] = s.axis[d].dilation, p.by_k[d] = s.axis[d].stride;
  set_out(p, gw, s.out, false);
  return p;
}

}  // namespace pb::cuda

namespace pb::kernels {

void executed_convolution(const Launch& launch, Counts& work) {
  const Counts product = cuda::work_of(cuda::gemm_of_convolution(launch), launch.out().dtype);
  work.fmas = product.fmas, work.adds += product.adds;
}
void executed_convolution_input(const Launch& launch, Counts& work) {
  work = {};
  for (const cuda::ConvGemm& p : cuda::gemms_of_convolution_input(launch)) work.add(cuda::work_of(p, launch.out().dtype));
}
void executed_convolution_weight(const Launch& launch, Counts& work) {
  work = cuda::work_of(cuda::gemm_of_convolution_weight(launch), launch.out().dtype);
}

}  // namespace pb::kernels
