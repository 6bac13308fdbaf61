// Facts about products that decide their kernels, and the cutting of products that are too large for one launch.
#include "cuda/gemm_parts.h"

#include <cstdlib>

#include "cuda/product_tiny.h"

namespace pb::cuda {
namespace {

using kernels::Precision;

TileSet set_of(const PlannedProduct& w) {
  const DType dtype = w.product.dtype;
  if (w.cores) return dtype == DType::f32 && kernels::precision() == Precision::tf32 ? TileSet::tf32 : TileSet::words16;
  if (dtype <= DType::f32) return w.staged ? TileSet::f32_staged : TileSet::f32;
  if (dtype == DType::f64) return TileSet::f64;
  return item_size(dtype) == 8 || dtype == DType::b8 ? TileSet::i64 : TileSet::i32;
}

// From this number of multiply-adds on, a factor that is contiguous along neither axis is copied first.
constexpr int64_t kCopyWork = int64_t{1} << 27;

bool divides(int64_t pack, const Factor& f, int64_t stride, const View& steps) {
  bool all = (reinterpret_cast<uintptr_t>(f.data) | uintptr_t(stride)) % uint64_t(pack) == 0;
  for (int d = 0; d < steps.ndim; ++d) all = all && steps.stride[d] % pack == 0;
  return all;
}

Reading reading_of(const PlannedProduct& w, const Factor& f, int64_t outers, const View& steps) {
  const Product& p = w.product;
  const int size = item_size(p.dtype);
  const bool narrow = w.cores && (size == 2 || kernels::precision() != Precision::tf32);  // two numbers per register
  const bool down = outers == 1 || (p.k > 1 && std::abs(f.depth) < std::abs(f.outer));
  if (down) {
    const bool packs =
        w.cores && f.depth == size && p.k % (narrow ? 8 : 4) == 0 && divides(16, f, outers > 1 ? f.outer : 0, steps);
    return packs ? Reading::depth_packs : Reading::depth;
  }
  const int64_t pack = w.cores ? 4 * size : 16;
  const bool packs = f.outer == size && outers % (pack / size) == 0 && divides(pack, f, p.k > 1 ? f.depth : 0, steps);
  return packs ? Reading::outer_packs : Reading::outer;
}

// Halves a product that is larger than one tile: its batch, its rows or its columns.
void halve(const PlannedProduct& w, const Tile& tile, PlannedProduct (&halves)[2]) {
  halves[0] = halves[1] = w;
  Product &first = halves[0].product, &second = halves[1].product;
  const int64_t size = item_size(first.dtype);
  const auto at = [](char* data, int64_t bytes) { return data ? data + bytes : nullptr; };
  if (w.batches > 1) {  // collapsed axes are longer than one
    const int64_t length = first.batch[0].shape[0], half = length / 2, inner = w.batches / length;
    halves[0].batches = half * inner, halves[1].batches = (length - half) * inner;
    for (int i = 0; i < 2; ++i) first.batch[i].shape[0] = half, second.batch[i].shape[0] = length - half;
    second.a.data += half * second.batch[0].stride[0], second.b.data += half * second.batch[1].stride[0];
    second.out = at(second.out, half * inner * first.m * w.pitch * size);
  } else if (first.m > tile.m && (first.m >= first.n || first.n <= tile.n)) {
    const int64_t half = first.m / 2;
    first.m = half, second.m -= half;
    second.a.data += half * second.a.outer, second.y.data += half * second.y.outer;
    second.out = at(second.out, half * w.pitch * size), second.sums = at(second.sums, half * size);
  } else {
    const int64_t half = first.n / 2;
    first.n = half, second.n -= half;
    second.b.data += half * second.b.outer, second.out = at(second.out, half * size);
    if (second.bias) second.bias += half * second.bias_step;
    second.sums = nullptr;
  }
  for (PlannedProduct& half : halves) half = PlannedProduct(half.product, half.batches, half.pitch);
}

}  // namespace

PlannedProduct::PlannedProduct(const Product& p) : PlannedProduct(p, p.batch[0].size(), p.n) {}

PlannedProduct::PlannedProduct(const Product& p, int64_t batches_, int64_t pitch_)
    : product(p), batches(batches_), pitch(pitch_) {
  staged = p.pulled || is_half(p.dtype) || (p.dtype == DType::f32 && kernels::precision() > Precision::tf32);
  read(by_tensor_cores(p.dtype, kernels::precision(), p.m * p.n * p.k * batches));
  if (cores && !(in_packs(reading[0]) && in_packs(reading[1]))) read(false);
}

void PlannedProduct::read(bool by_cores) {
  cores = by_cores;
  const Product& p = product;
  const int64_t size = item_size(p.dtype), outers[] = {p.m, p.n};
  for (int i = 0; i < 2; ++i) {
    Factor f = i ? p.b : p.a;
    gathers[i] = batches == 1 && p.m * p.n * p.k >= kCopyWork && f.outer != size && f.depth != size;
    if (gathers[i]) f = {nullptr, p.k * size, size};
    reading[i] = reading_of(*this, f, outers[i], p.batch[i]);
  }
  if (p.pulled && in_packs(reading[0]) && reading_of(*this, p.y, p.m, p.batch[0]) != reading[0])
    reading[0] = reading[0] == Reading::depth_packs ? Reading::depth : Reading::outer;
}

bool PlannedProduct::is_tiny() const {
  return (product.dtype != DType::f32 || kernels::precision() <= Precision::tf32) && cuda::is_tiny(product);
}

Question question_of(PlannedProduct* planned, int count) {
  bool staged = false, sums = false;
  for (int i = 0; i < count; ++i) staged = staged || planned[i].staged, sums = sums || planned[i].product.sums;
  const bool cores = planned[0].cores && planned[count - 1].cores;
  for (int i = 0; i < count; ++i) {
    planned[i].staged = staged;
    if (planned[i].cores && !cores) planned[i].read(false);
  }
  const PlannedProduct &first = planned[0], &last = planned[count - 1];
  const bool in_order = kernels::everywhere() && is_float(first.product.dtype);
  return {set_of(first), in_order, sums, count, {first.shape(), last.shape()}};
}

bool cut(const PlannedProduct* planned, const Question& question, const Choice& choice, PlannedProduct (&parts)[2]) {
  const Tile& tile = tiles_of(question.set).tiles[choice.tile];
  bool fits = true;
  for (int i = 0; i < question.count; ++i) {
    fits = fits && fits_launch(choice.slicing[i], question.products[i], tile, question.set);
    parts[i] = planned[i];
  }
  if (!fits && question.count == 1) halve(planned[0], tile, parts);
  return !fits;
}

}  // namespace pb::cuda
