// Chooses the kernel of a product, and the number of slices of its contraction, by an estimate of the time. The estimate uses only
// shapes and constants, so that the same product has the same bits on every device of a kind.
#include "cuda/gemm.cuh"

#include <algorithm>
#include <array>
#include <memory>

#include "cuda/copy.cuh"
#include "cuda/cublaslt.h"
#include "cuda/product_tiny.h"

namespace pb::cuda {
namespace {

using kernels::Precision;

// A product is large enough for the library if it has this many multiply-adds, and at least kLargeSide rows and columns. The
// library's better kernels then make up for the cost of calling it.
constexpr int64_t kLargeWork = int64_t{3} << 28, kLargeSide = 128;
// From this number of multiply-adds on, a factor that is contiguous along neither axis is copied first.
constexpr int64_t kCopyWork = int64_t{1} << 27;
// The most rows or columns of a launch; the most elements of the contraction per slice.
constexpr int64_t kMostSide = int64_t{1} << 30, kMostDepth = int64_t{1} << 30;

// Estimated cycles on a device with kDevice multiprocessors: kBegin for a launch; if there are slices, kFold to wait for them, and
// for each slice kFoldSlice plus one cycle per kFoldElements elements of the tile to add them up.
constexpr double kDevice = 128, kBegin = 1500, kFold = 1500, kFoldSlice = 150, kFoldElements = 64;
constexpr int kSlices[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
constexpr int64_t kLeastSlice = 48;           // the fewest elements of the contraction per slice
constexpr int64_t kPartialBytes = 128 << 20;  // the most working memory for partial sums

bool has_tensor_cores() {
  static int major[kMaxDevices] = {};
  int& known = major[current_device()];
  if (known == 0)
    check(cudaDeviceGetAttribute(&known, cudaDevAttrComputeCapabilityMajor, current_device()), "asking for the architecture");
  return known >= 8;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// A product, and the facts about it that do not depend on the tile.
struct Work {
  Product product;
  int64_t batches;
  bool cores, staged;

  explicit Work(const Product& p) : product(p), batches(p.batch[0].size()), cores(by_tensor_cores(p.dtype)) {
    const bool narrow = compute_type(p.dtype) == Compute::i64 && item_size(p.dtype) < 4;
    staged = p.pulled || is_half(p.dtype) || p.dtype == DType::b8 || narrow ||
             (p.dtype == DType::f32 && kernels::precision() > Precision::tf32);
  }
  bool is_nothing() const { return product.m == 0 || batches == 0 || (product.n == 0 && !product.sums); }
  bool is_large() const { return cuda::is_large(product.m, product.n, product.k, batches); }
  bool is_tiny() const {
    return (product.dtype != DType::f32 || kernels::precision() == Precision::exact) && cuda::is_tiny(product);
  }
};

struct Slicing {
  int64_t blocks, slice;  // the number of blocks for one slice of all tiles
  int slices;
  double alone, busy;  // cycles of one block alone, and of all blocks if they shared one multiprocessor
};

Slicing sliced(const Work& w, const Tile& tile) {
  const Product& p = w.product;
  Slicing best{};
  best.blocks = ceil_div(p.m, tile.m) * std::max<int64_t>(1, ceil_div(p.n, tile.n)) * w.batches;
  double least = 0;
  for (const int wanted : kSlices) {
    const int64_t slice = std::max<int64_t>(tile.depth, round_up(ceil_div(p.k, wanted), tile.depth));
    const int64_t slices = std::max<int64_t>(1, ceil_div(p.k, slice));
    if (slice > kMostDepth) continue;
    if (best.slices && (slices == best.slices || slice < kLeastSlice || best.blocks > kTickets / 2 ||
                        slices * best.blocks * tile.m * tile.n * std::max(4, item_size(p.dtype)) > kPartialBytes))
      break;
    double alone = double(slice) * tile.latency, busy = double(best.blocks * slices * slice) * tile.throughput;
    if (slices > 1) alone += kFold + double(slices) * (kFoldSlice + tile.m * tile.n / kFoldElements);
    const double waves = double(ceil_div(best.blocks * slices, int64_t(kDevice)));
    const double time = std::max(alone, waves * double(slice) * tile.throughput);
    if (best.slices && time >= least) continue;
    least = time;
    best.slice = slice, best.slices = int(slices), best.alone = alone, best.busy = busy;
    if (best.blocks >= 8 * int64_t(kDevice)) break;  // there are enough blocks to keep the device busy without more slices
  }
  return best;
}

Tiles tiles_for(const Work& w) {
  const DType dtype = w.product.dtype;
  if (w.cores) {
    if (dtype == DType::bf16) return core_tiles<Bf16, false>();
    if (dtype == DType::f16) return core_tiles<F16, false>();
    const Precision precision = kernels::precision();
    if (precision == Precision::tf32) return core_tiles<Tf32, true>();
    return precision == Precision::bf16 ? core_tiles<Bf16, true>() : core_tiles<F16, true>();
  }
  if (dtype <= DType::f32) return plain_tiles<DType::f32>(w.staged);
  if (dtype == DType::f64) return plain_tiles<DType::f64>(w.staged);
  return item_size(dtype) == 8 || dtype == DType::b8 ? plain_tiles<DType::i64>(w.staged) : plain_tiles<DType::i32>(w.staged);
}

struct Choice {
  const Tile* tile = nullptr;
  Slicing slicing[2]{};
};

Choice best_of(const Work* works, int count, bool sums, const Tiles& tiles) {
  Choice best;
  double least = 0;
  for (int t = 0; t < tiles.count; ++t) {
    const Tile& tile = tiles.tiles[t];
    if (sums && !tile.sums) continue;
    Choice choice{&tile, {}};
    double alone = 0, busy = 0;
    for (int i = 0; i < count; ++i) {
      const Slicing s = choice.slicing[i] = sliced(works[i], tile);
      alone = std::max(alone, s.alone), busy += s.busy;
    }
    const double time = kBegin + std::max(alone, busy / kDevice);
    if (best.tile && time >= least) continue;
    least = time, best = choice;
  }
  return best;
}

// A choice that this thread has made before. Choosing costs as much as a launch, and a program has few shapes.
struct Memory {
  std::array<int64_t, 11> shapes{};
  Choice choice;
};
constexpr int kRemembered = 64;
thread_local std::unique_ptr<Memory[]> memory;  // on the heap, because a module has little room for thread-local variables

const Choice& remembered(const Work* works, int count, bool sums, const Tiles& tiles) {
  std::array<int64_t, 11> shapes{};
  shapes[0] = int64_t(reinterpret_cast<intptr_t>(tiles.tiles)), shapes[1] = sums, shapes[2] = int(works[0].product.dtype);
  uint64_t place = 0;
  for (int i = 0; i < count; ++i) {
    const int64_t facts[] = {works[i].product.m, works[i].product.n, works[i].product.k, works[i].batches};
    for (int k = 0; k < 4; ++k) {
      shapes[size_t(3 + 4 * i + k)] = facts[k];
      place = (place ^ uint64_t(facts[k])) * 0x9e3779b97f4a7c15u;
    }
  }
  if (!memory) memory = std::make_unique<Memory[]>(kRemembered);
  Memory& m = memory[place >> 58];
  if (!m.choice.tile || m.shapes != shapes) m = {shapes, best_of(works, count, sums, tiles)};
  return m.choice;
}

bool divides(int64_t pack, const Factor& f, int64_t stride, const View& steps) {
  bool all = (reinterpret_cast<uintptr_t>(f.data) | uintptr_t(stride)) % uint64_t(pack) == 0;
  for (int d = 0; d < steps.ndim; ++d) all = all && steps.stride[d] % pack == 0;
  return all;
}

Reading reading_of(const Work& w, const Factor& f, int64_t outers, const View& steps) {
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

// Copies a factor that is contiguous along neither axis into contiguous memory, if it is read often enough.
void gather(Work& w, Factor& f, int64_t outers, Scratch& scratch) {
  const Product& p = w.product;
  const int64_t size = item_size(p.dtype);
  if (w.batches > 1 || p.m * p.n * p.k < kCopyWork || f.outer == size || f.depth == size) return;
  View from = flat_view(f.data, p.dtype, 0);
  from.ndim = 2, from.shape[0] = outers, from.shape[1] = p.k, from.stride[0] = f.outer, from.stride[1] = f.depth;
  const View to = contiguous_view(scratch.take_bytes(size_t(from.bytes())), p.dtype, from);
  assign(to, from);
  f = {to.data, to.stride[0], size};
}

Problem problem_of(const Work& w, const Tile& tile, const Slicing& s, Scratch& scratch) {
  const Product& p = w.product;
  const int kept = std::max(4, item_size(p.dtype)), wide = p.dtype == DType::b8 ? 8 : kept;
  Problem problem{int(p.m),
                  int(p.n),
                  p.k,
                  s.slice,
                  int(ceil_div(p.m, tile.m)),
                  s.slices,
                  unsigned(s.blocks),
                  0,
                  p.dtype,
                  item_size(p.dtype),
                  reading_of(w, p.a, p.m, p.batch[0]),
                  reading_of(w, p.b, p.n, p.batch[1]),
                  !w.cores && p.dtype == DType::f32 ? kernels::precision() : Precision::exact,
                  p.a,
                  p.b,
                  p.y,
                  Walk<2>(p.batch),
                  p.out,
                  p.n,
                  p.bias,
                  p.bias_step,
                  p.activation,
                  p.adds,
                  p.pulled,
                  p.sums,
                  nullptr,
                  nullptr,
                  nullptr};
  if (p.pulled) {
    const Reading beside = reading_of(w, p.y, p.m, p.batch[0]);
    if (beside != problem.reading_a)
      problem.reading_a = problem.reading_a == Reading::depth_packs   ? Reading::depth
                          : problem.reading_a == Reading::outer_packs ? Reading::outer
                                                                      : problem.reading_a;
  }
  if (s.slices > 1) {
    problem.partial = scratch.take<char>(s.slices * s.blocks * tile.m * tile.n * wide);
    if (p.sums) problem.partial_sums = scratch.take<char>(s.slices * p.m * wide);
  }
  return problem;
}

// Chooses the tile for products that share a launch. If one of them needs staging, all of them are staged.
Choice choose(Work* works, int count) {
  bool staged = false, sums = false;
  for (int i = 0; i < count; ++i) staged = staged || works[i].staged, sums = sums || works[i].product.sums;
  for (int i = 0; i < count; ++i) works[i].staged = staged;
  return remembered(works, count, sums, tiles_for(works[0]));
}

void launch_tiles(Work* works, int count) {
  Scratch scratch;
  for (int i = 0; i < count; ++i) {
    gather(works[i], works[i].product.a, works[i].product.m, scratch);
    gather(works[i], works[i].product.b, works[i].product.n, scratch);
  }
  const Choice choice = choose(works, count);
  Group group{};
  group.count = count;
  int64_t blocks = 0, tickets_used = 0;
  for (int i = 0; i < count; ++i) {
    Problem& problem = group.problems[i] = problem_of(works[i], *choice.tile, choice.slicing[i], scratch);
    problem.first = unsigned(blocks);
    const Slicing& slicing = choice.slicing[i];
    blocks += slicing.blocks * slicing.slices;
    if (slicing.slices > 1) problem.arrivals = tickets() + tickets_used, tickets_used += slicing.blocks;
  }
  choice.tile->launch(group, unsigned(blocks));
}

// ---- the work of a product

Counts formula_of(const Work& w) {
  const Product& p = w.product;
  const int64_t results = w.batches * p.m * p.n;
  Counts work;
  work.fmas = results * p.k, work.adds = results * ((p.bias != nullptr) + p.adds);
  work.add(kernels::linear_forward().counts[p.activation], results);
  return work;
}

// Tiles and steps of the contraction are multiplied whole, including their padding. The partial sums of groups of threads and of
// slices are added up. An activation computes four neighbouring elements at once, and every tile pulls back all elements of a that
// it reads.
Counts work_in_tiles(const Work& w, const Tile& tile, const Slicing& s) {
  const Product& p = w.product;
  const int64_t area = tile.m * tile.n, last = p.k - (s.slices - 1) * s.slice;
  const int64_t steps = (s.slices - 1) * (s.slice / tile.depth) + ceil_div(last, tile.depth), depth = steps * tile.depth;
  const int64_t results = w.batches * p.m * p.n;
  Counts work;
  work.fmas = s.blocks * area * depth;
  work.adds = s.blocks * area * (s.slices * (tile.groups - 1) + s.slices - 1) + results * ((p.bias != nullptr) + p.adds);
  work.add(kernels::linear_forward().counts[p.activation], w.batches * p.m * round_up(p.n, 4));
  work.add(kernels::linear_backward().counts[p.pulled], s.blocks * tile.m * depth);
  if (p.sums) {  // additions within each step, over the steps of a slice, and over the slices
    const int64_t each = additions_of_sum(p.dtype);
    work.adds += round_up(p.m, tile.m) * (depth + steps * each + s.slices);
    if (s.slices > 1) work.adds += p.m * (s.slices * each + 1);
  }
  return work;
}

// Launches the products. Products beyond the limits of a launch, which are rare, are halved until they fit.
void compute(Work* works, int count) {
  for (int i = 0; i < count; ++i) {
    const Work& w = works[i];
    const Product& p = w.product;
    const bool tall = p.m > kMostSide, wide = p.n > kMostSide;
    const int64_t most_blocks = ceil_div(p.m, 16) * std::max<int64_t>(1, ceil_div(p.n, 16)) * w.batches;
    if (!tall && !wide && most_blocks <= kMaxBlocks / 4) continue;
    if (count > 1) {
      for (int k = 0; k < count; ++k) compute(works + k, 1);
      return;
    }
    Work halves[2] = {w, w};
    if (w.batches > 1) {
      int axis = 0;  // collapsed axes are longer than one
      int64_t inner = 1;
      for (int d = 1; d < p.batch[0].ndim; ++d) inner *= p.batch[0].shape[d];
      const int64_t length = p.batch[0].shape[axis], half = length / 2;
      for (int k = 0; k < 2; ++k) {
        Product& part = halves[k].product;
        halves[k].batches = (k ? length - half : half) * inner;
        for (View& v : part.batch) v.shape[axis] = k ? length - half : half;
        if (k == 0) continue;
        part.a.data += half * part.batch[0].stride[axis], part.b.data += half * part.batch[1].stride[axis];
        part.out += half * inner * p.m * p.n * item_size(p.dtype);
      }
    } else {
      if (!(tall || p.m > 1) || p.pulled || p.sums) throw Failure("a product with too many columns for one launch");
      const int64_t half = p.m / 2;
      halves[0].product.m = half, halves[1].product.m = p.m - half;
      halves[1].product.a.data += half * p.a.outer, halves[1].product.out += half * p.n * item_size(p.dtype);
    }
    compute(&halves[0], 1), compute(&halves[1], 1);
    return;
  }
  launch_tiles(works, count);
}

}  // namespace

bool by_tensor_cores(DType dtype) {
  return has_tensor_cores() && (is_half(dtype) || (dtype == DType::f32 && kernels::precision() != Precision::exact));
}

bool is_large(int64_t m, int64_t n, int64_t k, int64_t batches) {
  return std::min(m, n) >= kLargeSide && double(m) * double(n) * double(k) * double(batches) >= double(kLargeWork);
}

void multiply(const Product* products, int count) {
  Work works[2] = {Work(products[0]), Work(products[count - 1])};
  int own = 0;
  for (int i = 0; i < count; ++i) {
    const Work w(products[i]);
    if (w.is_nothing() || (w.is_large() && multiply_by_library(w.product))) continue;
    if (count == 1 && w.is_tiny()) multiply_tiny(w.product);
    else works[own++] = w;
  }
  if (own) compute(works, own);
}

Counts work_of(const Product* products, int count) {
  Work works[2] = {Work(products[0]), Work(products[count - 1])};
  Counts all;
  int own = 0;
  for (int i = 0; i < count; ++i) {
    const Work w(products[i]);
    if (w.is_nothing()) continue;
    if ((w.is_large() && has_library()) || (count == 1 && w.is_tiny())) all.add(formula_of(w));
    else works[own++] = w;
  }
  if (own == 0) return all;
  const Choice choice = choose(works, own);
  for (int i = 0; i < own; ++i) all.add(work_in_tiles(works[i], *choice.tile, choice.slicing[i]));
  return all;
}

}  // namespace pb::cuda
