// Products in double and of integers and bool.
#include "cuda/gemm_plain.cuh"

namespace pb::cuda {

Tiles number_tiles(DType dtype, bool staged) {
  static const Tile doubles[] = {plain_tile<double, Smallest, false>(20, 10), plain_tile<double, Small, false>(48, 28),
                                 plain_tile<double, Medium, false>(120, 90)};
  static const Tile pulled[] = {plain_tile<double, Smallest, true>(24, 12), plain_tile<double, Small, true>(60, 36),
                                plain_tile<double, Medium, true>(150, 120)};
  static const Tile words[] = {plain_tile<uint32_t, Smallest, false>(16, 8), plain_tile<uint32_t, Small, false>(40, 24)};
  static const Tile narrow[] = {plain_tile<uint32_t, Smallest, true>(20, 10), plain_tile<uint32_t, Small, true>(50, 30)};
  static const Tile longs[] = {plain_tile<uint64_t, Smallest, false>(40, 24)};
  static const Tile bits[] = {plain_tile<uint64_t, Smallest, true>(40, 24)};
  if (dtype == DType::f64) return staged ? Tiles{pulled, 3} : Tiles{doubles, 3};
  if (item_size(dtype) == 8) return {longs, 1};
  if (dtype == DType::b8) return {bits, 1};
  return staged ? Tiles{narrow, 2} : Tiles{words, 2};
}

}  // namespace pb::cuda
