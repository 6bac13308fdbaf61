// Tests of csrc/cuda/choice.h: every choice covers the product, keeps to the limits of a launch, and follows the order of sums.
#include "cuda/choice.h"

#include <cstdio>
#include <initializer_list>

using namespace pb::cuda;

namespace {

int failed = 0;

void expect(bool holds, const char* what, const Question& q) {
  if (holds) return;
  const ProductShape& p = q.products[0];
  std::printf("%s: set %d, in order %d, sums %d, %lld x %lld x %lld, %lld times\n", what, int(q.set), q.in_order, q.sums,
              (long long)p.m, (long long)p.n, (long long)p.k, (long long)p.batches);
  ++failed;
}

constexpr TileSet kSets[] = {TileSet::f32, TileSet::f32_staged, TileSet::f64,    TileSet::i32,
                             TileSet::i64, TileSet::tf32,       TileSet::words16};

const Tile& tile_of(const Question& q) { return tiles_of(q.set).tiles[choose(q).tile]; }

void check_slices(const Question& q) {
  const Choice choice = choose(q);
  const Tile& tile = tile_of(q);
  expect(!q.sums || tile.sums, "the tile's kernels cannot sum", q);
  for (int i = 0; i < q.count; ++i) {
    const ProductShape& p = q.products[i];
    const Slicing& s = choice.slicing[i];
    expect(s.slice > 0 && s.slice % tile.depth == 0, "a slice is no whole number of steps", q);
    expect(s.slices >= 1 && s.slices * s.slice >= p.k && (s.slices - 1) * s.slice <= p.k, "slices do not cover", q);
    expect(s.slices == 1 || (s.slices - 1) * s.slice < p.k, "the last slice is empty", q);
    const int64_t across = p.n ? ceil_div(p.n, tile.n) : 1;
    expect(s.blocks == ceil_div(p.m, tile.m) * across * p.batches, "tiles do not cover", q);
    if (q.in_order && p.k > 256) expect(s.slice == 256 * tile.groups, "a group has more or less than a block of 256", q);
    if (q.in_order && p.k <= 256) expect(s.slice / tile.groups >= p.k, "a block of the order is cut", q);
    if (!q.in_order) expect(s.slices <= 32 || s.slice == kMostDepth, "more than 32 slices", q);
  }
}

void check_all_shapes() {
  for (const TileSet set : kSets)
    for (const int64_t m : {1, 10, 64, 513, 5000})
      for (const int64_t n : {0, 1, 10, 129, 4096})
        for (const int64_t k : {0, 1, 7, 255, 256, 257, 784, 1025, 100000})
          for (const int64_t batches : {1, 40})
            for (const bool in_order : {false, true}) {
              const bool sums = batches == 1 && set != TileSet::tf32;
              check_slices({set, in_order, false, 1, {{m, n, k, batches}, {}}});
              if (sums) check_slices({set, in_order, true, 1, {{m, n, k, 1}, {}}});
              check_slices({set, in_order, false, 2, {{m, n, k, batches}, {n + 1, k + 1, m, batches}}});
            }
}

void check_known() {
  const Question large{TileSet::f32, false, false, 1, {{4096, 4096, 4096, 1}, {}}};
  expect(tile_of(large).m == 128 && choose(large).slicing[0].slices == 1, "a large product has large tiles and no slices",
         large);
  Question summed = large;
  summed.sums = true;
  expect(tile_of(summed).m == 64, "the largest tile cannot sum", summed);
  const Question deep{TileSet::f32, false, false, 1, {{20, 30, 50000, 1}, {}}};
  expect(choose(deep).slicing[0].slices > 4, "few tiles of a long contraction have slices", deep);
  const Question shallow{TileSet::f32, false, false, 1, {{20, 30, 60, 1}, {}}};
  expect(choose(shallow).slicing[0].slices == 1, "a short contraction has no slices", shallow);
  // The same shapes in another set, or in order, are another question, though they are remembered in the same place.
  for (const TileSet set : {TileSet::f32, TileSet::f64, TileSet::f32})
    for (const bool in_order : {false, true, false}) check_slices({set, in_order, false, 1, {{300, 300, 3000, 1}, {}}});
}

void check_limits() {
  const Question many{TileSet::f32, true, false, 1, {{100000, 100000, 4096, 1}, {}}};
  expect(!fits_launch(choose(many).slicing[0], many.products[0], tile_of(many), many.set), "partial results beyond memory",
         many);
  const Question one{TileSet::f32, true, false, 1, {{8, 8, int64_t{1} << 31, 1}, {}}};
  expect(fits_launch(choose(one).slicing[0], one.products[0], tile_of(one), one.set), "a single tile is always launched", one);
}

}  // namespace

int main() {
  check_all_shapes(), check_known(), check_limits();
  std::printf("%d failed\n", failed);
  return failed != 0;
}
