// The work that products do, by the formula of their family and in the tiles of their kernels (families/executed.h). The counting
// build compares it with what the kernels count.
#include <algorithm>

#include "cuda/gemm_parts.h"
#include "families/order.h"

namespace pb::cuda {
namespace {

Counts formula_of(const PlannedProduct& w) {
  const Product& p = w.product;
  const int64_t results = w.batches * p.m * p.n;
  Counts work;
  work.fmas = results * p.k, work.adds = results * ((p.bias != nullptr) + p.adds);
  work.add(kernels::linear_forward().counts[p.activation], results);
  return work;
}

// All groups of threads multiply whole tiles and steps, including padding, also those without a share. The sums of groups with a
// share and of slices are added up. An activation computes four elements at once, and a tile pulls back all elements of a that it
// reads.
Counts work_in_tiles(const PlannedProduct& w, const Tile& tile, const Slicing& s) {
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

}  // namespace

Counts work_of(const Product* products, int count) {
  PlannedProduct planned[2] = {PlannedProduct(products[0]), PlannedProduct(products[count - 1])};
  Counts all;
  int own = 0;
  for (int i = 0; i < count; ++i) {
    const PlannedProduct w(products[i]);
    if (w.is_nothing()) continue;
    if (w.is_large() || (count == 1 && w.is_tiny())) all.add(formula_of(w));
    else planned[own++] = w;
  }
  if (own)
    each_launch(planned, own, [&](const PlannedProduct* parts, const Question& question, const Choice& choice) {
      const Tile& tile = tiles_of(question.set).tiles[choice.tile];
      for (int i = 0; i < question.count; ++i) all.add(work_in_tiles(parts[i], tile, choice.slicing[i]));
    });
  return all;
}

// Each column takes an addition for every row, and then one for every chunk but one.
Counts work_of_columns(int64_t rows, int64_t n, int activation, bool sums) {
  Counts work;
  work.add(kernels::linear_backward().counts[activation], rows * n);
  if (sums) work.adds += n * (rows + std::max<int64_t>(1, kernels::order_blocks(rows)) - 1);
  return work;
}

}  // namespace pb::cuda
