// Sends products to kernels: to cuBLASLt, to one thread per element, or to tiles (gemm.cuh).
#include "cuda/gemm.cuh"

#include <algorithm>

#include "cuda/copy.cuh"
#include "cuda/cublaslt.h"
#include "cuda/product_tiny.h"

namespace pb::cuda {
namespace {

using kernels::Precision;

// The multiply-adds from which on cuBLASLt is faster, for products of at least kLargeSide rows and columns, in captured steps on an
// H100 on 2026-11-27. An activation and the pullback of one then need separate launches of 2 to 6 us, for which there is room here,
// and factors that are rounded to half precision a copy each.
constexpr int64_t kLargeSide = 32;
double work_of_library(DType dtype, Precision precision) {
  if (dtype == DType::f64) return 1 << 22;  // on tensor cores, which pullback's kernels do not use for float64
  if (is_half(dtype)) return 1 << 24;
  return precision == Precision::tf32 ? 1 << 25 : 1 << 27;
}

// The multiply-adds from which on rounding to tf32 for tensor cores is faster than exact products of float32. Measured likewise.
constexpr double kTf32Work = 1 << 25;

// The multiply-adds from which on a float32 product has its pullback and its sums in a separate launch, which takes 4 to 6 us. By
// the estimate of choice.cpp both products of a layer gain that much from 2^27 on.
constexpr int64_t kApartWork = int64_t{1} << 27;

static_assert(2 * kMostTiles <= kTickets);  // two products may share a launch

bool has_tensor_cores() {
  static int major[kMaxDevices] = {};
  int& known = major[current_device()];
  if (known == 0)
    check(cudaDeviceGetAttribute(&known, cudaDevAttrComputeCapabilityMajor, current_device()), "asking for the architecture");
  return known >= 8;
}

// Returns the factor as contiguous memory, along the contraction.
Factor gathered(const Factor& f, DType dtype, int64_t outers, int64_t depths, Scratch& scratch) {
  View from = flat_view(f.data, dtype, 0);
  from.ndim = 2, from.shape[0] = outers, from.shape[1] = depths, from.stride[0] = f.outer, from.stride[1] = f.depth;
  const View to = contiguous_view(scratch.take_bytes(size_t(from.bytes())), dtype, from);
  assign(to, from);
  return {to.data, to.stride[0], item_size(dtype)};
}

// The factor without the stride of an axis of length one, which may be anything.
Factor trimmed(Factor f, int64_t outers, int64_t depths) {
  if (outers == 1) f.outer = 0;
  if (depths == 1) f.depth = 0;
  return f;
}

Problem problem_of(const PlannedProduct& w, const Tile& tile, const Slicing& s, Scratch& scratch) {
  const Product& p = w.product;
  const int size = item_size(p.dtype), kept = p.dtype == DType::b8 ? 8 : std::max(4, size);
  Problem problem{};
  problem.m = int(p.m), problem.n = int(p.n);
  problem.k = p.k, problem.slice = s.slice, problem.slices = s.slices;
  problem.tiles = Divider(uint32_t(s.blocks));
  problem.tiles_each = Divider(uint32_t(s.blocks / w.batches));
  problem.tiles_down = Divider(uint32_t(ceil_div(p.m, tile.m)));
  problem.dtype = p.dtype, problem.size = size;
  problem.reading_a = w.reading[0], problem.reading_b = w.reading[1];
  problem.rounding = !w.cores && p.dtype == DType::f32 ? kernels::precision() : Precision::exact;
  problem.a = w.gathers[0] ? gathered(p.a, p.dtype, p.m, p.k, scratch) : trimmed(p.a, p.m, p.k);
  problem.b = w.gathers[1] ? gathered(p.b, p.dtype, p.n, p.k, scratch) : trimmed(p.b, p.n, p.k);
  problem.y = trimmed(p.y, p.m, p.k);
  problem.batch = Walk<2>(p.batch);
  problem.out = p.out, problem.pitch = w.pitch;
  problem.packs_out = p.n % 4 == 0 && w.pitch % 4 == 0 && reinterpret_cast<uintptr_t>(p.out) % unsigned(4 * size) == 0;
  problem.bias = p.bias, problem.bias_step = p.bias_step, problem.activation = p.activation;
  problem.adds = p.adds, problem.pulled = p.pulled, problem.sums = p.sums;
  if (s.slices > 1) {
    problem.partial = scratch.take<char>(s.slices * s.blocks * tile.m * tile.n * kept);
    if (p.sums) problem.partial_sums = scratch.take<char>(s.slices * p.m * kept);
  }
  return problem;
}

// The way and the end of a kernel for all products of a launch.
Way way_of(const PlannedProduct& w) {
  if (w.product.dtype != DType::f32 || kernels::precision() > Precision::tf32) return Way::generic;
  return w.staged ? Way::pulled : Way::direct;
}
End end_of(const PlannedProduct* planned, int count) {
  bool gradient = false, smooth = false;
  for (int i = 0; i < count; ++i) {
    const Product& p = planned[i].product;
    gradient = gradient || p.adds || p.sums || p.pulled;
    smooth = smooth || kernels::Activation(p.activation) > kernels::Activation::relu;
  }
  return smooth ? End::any : gradient ? End::gradient : End::layer;
}

Launcher kernel_of(const PlannedProduct& w, int tile, End end) {
  const DType dtype = w.product.dtype;
  if (w.cores) {
    if (dtype == DType::bf16) return core_kernel<Bf16, false>(tile, end);
    if (dtype == DType::f16) return core_kernel<F16, false>(tile, end);
    const Precision precision = kernels::precision();
    if (precision == Precision::tf32) return core_kernel<Tf32, true>(tile, end);
    return precision == Precision::bf16 ? core_kernel<Bf16, true>(tile, end) : core_kernel<F16, true>(tile, end);
  }
  const Way way = way_of(w);
  if (dtype <= DType::f32) return plain_kernel<DType::f32>(tile, way, end);
  if (dtype == DType::f64) return plain_kernel<DType::f64>(tile, way, end);
  return item_size(dtype) == 8 || dtype == DType::b8 ? plain_kernel<DType::i64>(tile, way, end)
                                                     : plain_kernel<DType::i32>(tile, way, end);
}

void launch_tiles(const PlannedProduct* planned, const Question& question, const Choice& choice) {
  const Tile& tile = tiles_of(question.set).tiles[choice.tile];
  Scratch scratch;
  Group group{};
  group.count = question.count;
  int64_t blocks = 0, tickets_used = 0;
  for (int i = 0; i < question.count; ++i) {
    const Slicing& slicing = choice.slicing[i];
    Problem& problem = group.problems[i] = problem_of(planned[i], tile, slicing, scratch);
    problem.first = unsigned(blocks);
    blocks += slicing.blocks * slicing.slices;
    if (slicing.slices > 1) problem.arrivals = tickets() + tickets_used, tickets_used += slicing.blocks;
  }
  kernel_of(planned[0], choice.tile, end_of(planned, question.count))(group, unsigned(blocks));
}

}  // namespace

bool by_tensor_cores(DType dtype, Precision precision, int64_t work) {
  if (kernels::everywhere() || !has_tensor_cores()) return false;
  if (dtype == DType::f32) return precision > Precision::tf32 || (precision == Precision::tf32 && work >= kTf32Work);
  return is_half(dtype);
}

bool is_large(DType dtype, Precision precision, int64_t m, int64_t n, int64_t k, int64_t batches) {
  return !kernels::everywhere() && is_float(dtype) && std::min(m, n) >= kLargeSide &&
         double(m) * double(n) * double(k) * double(batches) >= work_of_library(dtype, precision) && has_library();
}

bool is_worth_a_launch(int64_t m, int64_t n, int64_t k) { return double(m) * double(n) * double(k) > double(kApartWork); }

void multiply(const Product* products, int count) {
  PlannedProduct planned[2] = {PlannedProduct(products[0]), PlannedProduct(products[count - 1])};
  int own = 0;
  for (int i = 0; i < count; ++i) {
    const PlannedProduct w(products[i]);
    if (w.is_nothing() || (w.is_large() && multiply_by_library(w.product))) continue;
    if (count == 1 && w.is_tiny()) multiply_tiny(w.product);
    else planned[own++] = w;
  }
  if (own) each_launch(planned, own, launch_tiles);
}

}  // namespace pb::cuda
