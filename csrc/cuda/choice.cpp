// The estimate of time by which a tile and slices are chosen, and its constants.
#include "cuda/choice.h"

#include <algorithm>
#include <iterator>
#include <memory>

#include "families/order.h"

namespace pb::cuda {
namespace {

// ---- the constants of the estimate
//
// Those of f32, tf32 and words16 were fitted to the times of 26 shapes in each tile and number of slices, measured on an H100 on
// 2026-11-27 in captured steps. With them the choice takes 0.4 to 0.7 % longer than the fastest one, 6 to 14 % at worst. The other
// sets were not measured; their constants are in proportion to those of f32.

// m, n, depth, groups, sums, latency, throughput
constexpr Tile kF32[] = {{16, 16, 64, 4, true, 14.4f, 17.3f},
                         {32, 32, 32, 4, true, 30.9f, 28.6f},
                         {64, 64, 16, 1, true, 104, 73},
                         {128, 128, 8, 1, false, 242, 274}};
constexpr Tile kF32Staged[] = {{16, 16, 64, 4, true, 17, 21}, {32, 32, 32, 4, true, 39, 37}, {64, 64, 16, 1, true, 130, 97}};
constexpr Tile kF64[] = {{16, 16, 64, 4, true, 35, 42}, {32, 32, 32, 4, true, 77, 74}, {64, 64, 16, 1, true, 260, 195}};
constexpr Tile kI32[] = {{16, 16, 64, 4, true, 29, 35}, {32, 32, 32, 4, true, 64, 61}};
constexpr Tile kI64[] = {{16, 16, 64, 4, true, 58, 83}};
constexpr Tile kTf32[] = {
    {32, 32, 16, 1, false, 35, 13.8f}, {64, 64, 16, 1, false, 61, 25.4f}, {128, 128, 16, 1, false, 97, 101}};
constexpr Tile kWords16[] = {
    {32, 32, 32, 1, true, 27, 8.3f}, {64, 64, 32, 1, true, 44, 15.6f}, {128, 128, 32, 1, true, 61, 62}};
constexpr Fold kPlainFold{186, 312, 14}, kCoreFold{800, 30, 10.5f};

constexpr double kDevice = 128;  // multiprocessors
constexpr int kSlices[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
constexpr int64_t kLeastSlice = 48;  // the fewest elements of the contraction per slice

// ---- the estimate

// A slicing with its cost in cycles: of the block that finishes last, if it is alone on its multiprocessor, and of all blocks, if
// they shared one multiprocessor.
struct Estimate {
  Slicing slicing;
  double alone, busy;
};

int64_t partial_bytes(const Tile& tile, TileSet set) {
  return int64_t{tile.m} * tile.n * (set == TileSet::f64 || set == TileSet::i64 ? 8 : 4);
}

Estimate estimate(int64_t blocks, int64_t k, int64_t slice, const Tile& tile, TileSet set) {
  const int slices = int(std::max<int64_t>(1, ceil_div(k, slice)));
  Estimate e{{blocks, slice, slices}, double(slice) * tile.latency, double(blocks * slices * slice) * tile.throughput};
  if (slices > 1) {
    const Fold fold = tiles_of(set).fold;
    const double moved = double(partial_bytes(tile, set)) / fold.bytes;
    e.alone += fold.first + moved + slices * (fold.slice + moved);
    e.busy += 2 * double(blocks * slices) * moved;
  }
  return e;
}

double time_of(const Estimate& e) {
  const double blocks = double(e.slicing.blocks * e.slicing.slices),
               waves = double(ceil_div(int64_t(blocks), int64_t(kDevice)));
  return std::max(e.alone, blocks > 0 ? waves * e.busy / blocks : 0);
}

// True if a launch, which another product may share, has enough counters and working memory for the slices.
bool has_memory(const Slicing& s, const Tile& tile, TileSet set) {
  return s.slices <= 1 || (s.blocks <= kMostTiles && s.slices * s.blocks * partial_bytes(tile, set) <= kMostPartialBytes);
}

int64_t blocks_of(const ProductShape& p, const Tile& tile) {
  return ceil_div(p.m, tile.m) * std::max<int64_t>(1, ceil_div(p.n, tile.n)) * p.batches;
}

Estimate sliced(const Question& question, const ProductShape& p, const Tile& tile) {
  const int64_t blocks = blocks_of(p, tile);
  if (question.in_order) {
    const int64_t piece = tile.depth / tile.groups, all = round_up(std::max<int64_t>(1, p.k), piece);
    return estimate(blocks, p.k, tile.groups * std::min(kernels::kOrderBlock, all), tile, question.set);
  }
  Estimate best{};
  for (const int wanted : kSlices) {
    const int64_t slice = std::max<int64_t>(tile.depth, round_up(ceil_div(p.k, wanted), tile.depth));
    if (slice > kMostDepth) continue;
    const Estimate e = estimate(blocks, p.k, slice, tile, question.set);
    const bool first = best.slicing.slices == 0, same = e.slicing.slices == best.slicing.slices;
    if (!first && (same || slice < kLeastSlice || !has_memory(e.slicing, tile, question.set))) break;
    if (first || time_of(e) < time_of(best)) best = e;
    if (blocks >= 8 * int64_t(kDevice)) break;  // there are enough blocks to keep the device busy without more slices
  }
  return best;
}

Choice best_of(const Question& question) {
  const Tiles tiles = tiles_of(question.set);
  Choice best;
  double least = 0;
  for (int t = 0; t < tiles.count; ++t) {
    const Tile& tile = tiles.tiles[t];
    if (question.sums && !tile.sums) continue;
    Choice choice;
    choice.tile = t;
    double alone = 0, busy = 0;
    for (int i = 0; i < question.count; ++i) {
      const Estimate e = sliced(question, question.products[i], tile);
      choice.slicing[i] = e.slicing;
      alone = std::max(alone, e.alone), busy += e.busy;
    }
    const double time = std::max(alone, busy / kDevice);
    if (best.tile >= 0 && time >= least) continue;
    least = time, best = choice;
  }
  return best;
}

// ---- the memory of a thread

struct Known {
  Question question;
  Choice choice;
};
constexpr int kRemembered = 64;
thread_local std::unique_ptr<Known[]> memory;  // on the heap, because a module has little room for thread-local variables

bool same(const Question& a, const Question& b) {
  if (a.set != b.set || a.in_order != b.in_order || a.sums != b.sums || a.count != b.count) return false;
  return a.products[0] == b.products[0] && (a.count == 1 || a.products[1] == b.products[1]);
}

}  // namespace

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

Tiles tiles_of(TileSet set) {
  switch (set) {
    case TileSet::f32: return {kF32, int(std::size(kF32)), kPlainFold};
    case TileSet::f32_staged: return {kF32Staged, int(std::size(kF32Staged)), kPlainFold};
    case TileSet::f64: return {kF64, int(std::size(kF64)), kPlainFold};
    case TileSet::i32: return {kI32, int(std::size(kI32)), kPlainFold};
    case TileSet::i64: return {kI64, int(std::size(kI64)), kPlainFold};
    case TileSet::tf32: return {kTf32, int(std::size(kTf32)), kCoreFold};
    default: return {kWords16, int(std::size(kWords16)), kCoreFold};
  }
}

const Choice& choose(const Question& question) {
  uint64_t place = 0;
  for (int i = 0; i < question.count; ++i) {
    const ProductShape& p = question.products[i];
    for (const int64_t fact : {p.m, p.n, p.k, p.batches}) place = (place ^ uint64_t(fact)) * 0x9e3779b97f4a7c15u;
  }
  if (!memory) memory = std::make_unique<Known[]>(kRemembered);
  Known& known = memory[place >> 58];
  if (known.choice.tile < 0 || !same(known.question, question)) known = {question, best_of(question)};
  return known.choice;
}

bool fits_launch(const Slicing& slicing, const ProductShape& shape, const Tile& tile, TileSet set) {
  if (shape.batches == 1 && shape.m <= tile.m && shape.n <= tile.n) return true;  // a single tile cannot be cut
  constexpr int64_t kMostBlocks = int64_t{1} << 29;
  return shape.m <= kMostSide && shape.n <= kMostSide && slicing.blocks * slicing.slices <= kMostBlocks &&
         has_memory(slicing, tile, set);
}

}  // namespace pb::cuda
