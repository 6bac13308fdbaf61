// Products in float, exact.
#include "cuda/gemm_plain.cuh"

namespace pb::cuda {

Tiles float_tiles(bool staged) {
  static const Tile direct[] = {plain_tile<float, Smallest, false>(10, 5), plain_tile<float, Small, false>(24, 14),
                                plain_tile<float, Medium, false>(60, 45), plain_tile<float, Large, false>(150, 142)};
  static const Tile converting[] = {plain_tile<float, Smallest, true>(12, 6), plain_tile<float, Small, true>(30, 18),
                                    plain_tile<float, Medium, true>(75, 60)};
  return staged ? Tiles{converting, 3} : Tiles{direct, 4};
}

}  // namespace pb::cuda
