// Chooses the kernel of a product, and the number of slices of its contraction, by an estimate of the time. The estimate uses only
// shapes and constants, so that the same product has the same bits on every device of a kind. In the mode "everywhere" sums follow
// families/order.h: a group of threads has one block of the contraction, so a tile decides the slices, and no choice changes a bit.
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
  int64_t batches, pitch;  // pitch: elements from row to row of the result
  bool cores, staged, in_order;

  explicit Work(const Product& p)
      : product(p),
        batches(p.batch[0].size()),
        pitch(p.n),
        cores(by_tensor_cores(p.dtype)),
        in_order(kernels::everywhere() && is_float(p.dtype)) {
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

// The slices of a contraction, with their cost in cycles: of one block alone, and of all blocks if they shared one multiprocessor.
struct Slicing {
  int64_t blocks, slice;  // the number of blocks for one slice of all tiles
  int slices;
  double alone, busy;

  Slicing() = default;
  Slicing(int64_t blocks_, int64_t k, int64_t slice_, const Tile& tile)
      : blocks(blocks_),
        slice(slice_),
        slices(int(std::max<int64_t>(1, ceil_div(k, slice)))),
        alone(double(slice) * tile.latency),
        busy(double(blocks * slices * slice) * tile.throughput) {
    if (slices > 1) alone += kFold + double(slices) * (kFoldSlice + tile.m * tile.n / kFoldElements);
  }
  double time(const Tile& tile) const {
    const double waves = double(ceil_div(blocks * slices, int64_t(kDevice)));
    return std::max(alone, waves * double(slice) * tile.throughput);
  }
  // True if a launch, which another product may share, has enough counters and working memory for the slices.
  bool fits(const Tile& tile, DType dtype) const {
    const int64_t bytes = slices * blocks * tile.m * tile.n * std::max(4, item_size(dtype));
    return slices <= 1 || (blocks <= kTickets / 2 && bytes <= kPartialBytes);
  }
};

Slicing sliced(const Work& w, const Tile& tile) {
  const Product& p = w.product;
  const int64_t blocks = ceil_div(p.m, tile.m) * std::max<int64_t>(1, ceil_div(p.n, tile.n)) * w.batches;
  if (w.in_order) {
    const int64_t piece = tile.depth / tile.groups, all = round_up(std::max<int64_t>(1, p.k), piece);
    return Slicing(blocks, p.k, tile.groups * std::min(kernels::kOrderBlock, all), tile);
  }
  Slicing best{};
  for (const int wanted : kSlices) {
    const int64_t slice = std::max<int64_t>(tile.depth, round_up(ceil_div(p.k, wanted), tile.depth));
    if (slice > kMostDepth) continue;
    const Slicing s(blocks, p.k, slice, tile);
    if (best.slices && (s.slices == best.slices || slice < kLeastSlice || !s.fits(tile, p.dtype))) break;
    if (best.slices == 0 || s.time(tile) < best.time(tile)) best = s;
    if (blocks >= 8 * int64_t(kDevice)) break;  // there are enough blocks to keep the device busy without more slices
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
  shapes[0] = int64_t(reinterpret_cast<intptr_t>(tiles.tiles)), shapes[1] = sums + 2 * works[0].in_order,
  shapes[2] = int(works[0].product.dtype);
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
                  w.pitch,
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

void launch_tiles(Work* works, int count, const Choice& choice) {
  Scratch scratch;
  for (int i = 0; i < count; ++i) {
    gather(works[i], works[i].product.a, works[i].product.m, scratch);
    gather(works[i], works[i].product.b, works[i].product.n, scratch);
  }
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

// All groups of threads multiply whole tiles and steps, including padding, also those without a share. The sums of groups with a share
// and of slices are added up. An activation computes four elements at once, and a tile pulls back all elements of a that it reads.
Counts work_in_tiles(const Work& w, const Tile& tile, const Slicing& s) {
  const Product& p = w.product;
  const int64_t area = tile.m * tile.n, results = w.batches * p.m * p.n;
  const int64_t piece = tile.depth / tile.groups, share = s.slice / tile.groups;
  int64_t shares = 0, read = 0;  // read: elements of the contraction per element of a tile
  const auto add_slices = [&](int64_t count, int64_t length) {
    const int64_t filled = std::max<int64_t>(1, ceil_div(length, share)), steps = ceil_div(std::min(length, share), piece);
    shares += count * filled, read += count * steps * tile.depth;
  };
  add_slices(s.slices - 1, s.slice), add_slices(1, p.k - (s.slices - 1) * s.slice);
  Counts work;
  work.fmas = s.blocks * area * read;
  work.adds = s.blocks * area * (shares - 1) + results * ((p.bias != nullptr) + p.adds);
  work.add(kernels::linear_forward().counts[p.activation], w.batches * p.m * round_up(p.n, 4));
  work.add(kernels::linear_backward().counts[p.pulled], s.blocks * tile.m * read);
  const int64_t summed = w.cores ? read : p.k;  // plain kernels do not sum padding
  if (p.sums) work.adds += round_up(p.m, tile.m) * (summed + shares - s.slices) + p.m * (s.slices - 1);
  return work;
}

// Halves a product that is larger than one tile: its batch, its rows or its columns.
void halve(const Work& w, const Tile& tile, Work (&halves)[2]) {
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
}

// Calls f(works, count, choice) for each launch. Products beyond the limits of a launch, which are rare, are halved until they fit.
template <class F> void each_launch(Work* works, int count, F&& f) {
  const Choice choice = choose(works, count);
  const Tile& tile = *choice.tile;
  for (int i = 0; i < count; ++i) {
    const Product& p = works[i].product;
    const Slicing& s = choice.slicing[i];
    const bool is_tile = works[i].batches == 1 && p.m <= tile.m && p.n <= tile.n;
    const bool fits = s.blocks * s.slices <= kMaxBlocks / 4 && s.fits(tile, p.dtype);
    if (is_tile || (fits && p.m <= kMostSide && p.n <= kMostSide)) continue;
    Work parts[2] = {works[0], works[count - 1]};
    if (count == 1) halve(works[0], tile, parts);
    for (Work& part : parts) each_launch(&part, 1, f);
    return;
  }
  f(works, count, choice);
}

}  // namespace

bool by_tensor_cores(DType dtype) {
  return !kernels::everywhere() && has_tensor_cores() &&
         (is_half(dtype) || (dtype == DType::f32 && kernels::precision() != Precision::exact));
}

bool is_large(int64_t m, int64_t n, int64_t k, int64_t batches) {
  return !kernels::everywhere() && std::min(m, n) >= kLargeSide &&
         double(m) * double(n) * double(k) * double(batches) >= double(kLargeWork);
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
  if (own) each_launch(works, own, launch_tiles);
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
  if (own)
    each_launch(works, own, [&](const Work* parts, int count, const Choice& choice) {
      for (int i = 0; i < count; ++i) all.add(work_in_tiles(parts[i], *choice.tile, choice.slicing[i]));
    });
  return all;
}

}  // namespace pb::cuda
