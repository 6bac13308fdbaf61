// Chooses the tile and the slices of a product on a GPU. Pure host code: shapes come in, numbers go out. gemm.cuh has the kernels.
//
// A block of threads computes one tile of a result, or one slice of that tile's contraction. The sums of all slices are then
// added up. The choice depends on shapes and on the constants of choice.cpp alone, so that the same product has the same bits on
// every device of a kind. In the mode "everywhere" sums follow families/order.h: a group of threads has one block of the
// contraction, so a tile decides the slices, and no choice changes a bit.
#pragma once
#include <cstdint>

namespace pb::cuda {

// The kernels that a product can have: by the type they compute in, and whether factors pass through registers (staged) or are
// copied straight to shared memory. `words16` are tensor cores that take words of two 16-bit numbers.
enum class TileSet : uint8_t { f32, f32_staged, f64, i32, i64, tf32, words16 };

// A size of tiles. A step of the contraction has `depth` elements, and `groups` groups of threads share a slice evenly. The costs
// are cycles per element of the contraction: `latency` of a block that is alone on its multiprocessor, and `throughput` of a
// fully occupied multiprocessor per block.
struct Tile {
  int m, n, depth, groups;
  bool sums;  // true if the kernels can also sum the rows of a
  float latency, throughput;
};

// What it costs to add up slices, in cycles: until the last slice has seen all others, and for each slice that it adds. The sums of a
// slice are written to working memory, and read back, at `bytes` bytes per cycle.
struct Fold {
  float first, slice, bytes;
};

// The tiles of a set, smallest first.
struct Tiles {
  const Tile* tiles;
  int count;
  Fold fold;
};
Tiles tiles_of(TileSet set);

struct ProductShape {
  int64_t m, n, k, batches;  // the results are (batches, m, n), and k is the length of the contraction
  bool operator==(const ProductShape& other) const {
    return m == other.m && n == other.n && k == other.k && batches == other.batches;
  }
};

// One or two products that share a launch, and so a tile.
struct Question {
  TileSet set;
  bool in_order;  // sums follow families/order.h
  bool sums;      // the rows of a are summed
  int count;
  ProductShape products[2];
};

struct Slicing {
  int64_t blocks = 0;  // for one slice of all tiles
  int64_t slice = 0;   // elements of the contraction per slice
  int slices = 0;
};

struct Choice {
  int tile = -1;  // its number in the set
  Slicing slicing[2];
};

// Returns the fastest choice, by the estimate. Each thread remembers its last choices: choosing costs as much as a launch, and a
// program has few shapes.
const Choice& choose(const Question& question);

// Limits of a launch. A product beyond them is cut into several.
constexpr int64_t kMostSide = int64_t{1} << 30;            // rows or columns
constexpr int64_t kMostDepth = int64_t{1} << 30;           // elements of the contraction per slice
constexpr int64_t kMostTiles = 1 << 15;                    // sliced tiles per product: each has a counter for its slices
constexpr int64_t kMostPartialBytes = int64_t{128} << 20;  // working memory for the sums of slices
bool fits_launch(const Slicing& slicing, const ProductShape& shape, const Tile& tile, TileSet set);

int64_t ceil_div(int64_t a, int64_t b);
int64_t round_up(int64_t a, int64_t b);

}  // namespace pb::cuda
