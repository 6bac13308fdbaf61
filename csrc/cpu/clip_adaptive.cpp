// Adaptive clipping: the gradient of each unit is scaled to at most a share of the norm of the unit's weights.
#include <algorithm>

#include "cpu/pool.h"
#include "cpu/reduce.h"
#include "cpu/scratch.h"
#include "cpu/squares.h"
#include "cpu/stream.h"
#include "families/update.h"

namespace pb::kernels {
namespace {

using namespace cpu;

constexpr int64_t kGrain = 32 * 1024;  // the fewest elements per thread

// The units of one tensor. Its pieces are what is staged at once: several whole units, or a block of one long unit. Blocks of kBlock
// elements can be summed independently by the order of families/order.h.
struct Units {
  View gradient, weights, out;
  int64_t count, length, blocks;        // blocks: of one unit
  int64_t together;                     // the number of units in a piece
  int64_t first, pieces;                // the number of the first piece, and how many there are
  double *weight_sums, *gradient_sums;  // of the blocks of long units
  Compute compute;

  bool is_long() const { return blocks > 1; }
};

// The weights and the gradient of one tensor, block by block. The blocks are staged in the same memory, as a Reader needs.
class Blocks {
 public:
  explicit Blocks(const Units& units)
      : weights_(flat_view(units.weights.data, units.weights.dtype, units.weights.size()), units.compute),
        gradient_(units.gradient, units.compute) {}
  const void* weights(int64_t i, int64_t n) { return weights_.block(i, n, staged_[0]); }
  const void* gradient(int64_t i, int64_t n) { return gradient_.block(i, n, staged_[1]); }

 private:
  Reader weights_, gradient_;
  alignas(64) char staged_[2][kBlockBytes];
};

class Clipping {
 public:
  explicit Clipping(const Launch& launch)
      : scale_(launch.in(launch.inputs - 2).as<Setting>()[kGradientScale]),
        share_(launch.in(launch.inputs - 1).as<Setting>()[0]) {
    const int entries = int(launch.ints[0]);
    tensors_ = scratch_.take<Units>(std::max(1, entries));
    int64_t sums = 0;
    for (int t = 0; t < entries; ++t) {
      if (!launch.in(t).data) continue;
      Units& units = *new (tensors_ + used_++) Units{};
      units.gradient = launch.in(t), units.weights = launch.in(entries + t), units.out = launch.out(t);
      units.count = units.weights.shape[0], units.length = units.weights.shape[1];
      units.compute = compute_type(units.weights.dtype);
      units.blocks = (units.length + kBlock - 1) / kBlock;
      units.together = std::max<int64_t>(1, kBlock / units.length);
      units.first = pieces_;
      units.pieces = units.is_long() ? units.count * units.blocks : (units.count + units.together - 1) / units.together;
      pieces_ += units.pieces;
      if (units.is_long()) sums += 2 * units.pieces;
    }
    double* at = scratch_.take<double>(std::max<int64_t>(1, sums));
    for (int t = 0; t < used_; ++t) {
      Units& units = tensors_[t];
      if (!units.is_long()) continue;
      units.weight_sums = at, units.gradient_sums = at + units.pieces;
      at += 2 * units.pieces;
      has_long_ = true;
    }
  }

  void run() const {
    each_piece(false, [&](const Units& units, Blocks& blocks, int64_t piece) {
      if (units.is_long()) add_up(units, blocks, piece);
      else clip_short(units, blocks, piece);
    });
    if (!has_long_) return;
    for (int t = 0; t < used_; ++t)
      if (tensors_[t].is_long()) find_factors(tensors_[t]);
    each_piece(true, [&](const Units& units, Blocks& blocks, int64_t piece) {
      const int64_t i = start_of(units, piece), n = end_of(units, piece) - i;
      scale(units, i, n, units.weight_sums[piece / units.blocks * units.blocks], blocks.gradient(i, n));
    });
  }

 private:
  // Calls f(units, their blocks, piece) for all pieces, or for those of long units.
  template <class F> void each_piece(bool long_only, const F& f) const {
    parallel_for(pieces_, kGrain / kBlock, [&](int64_t begin, int64_t end) {
      for (int t = 0; t < used_; ++t) {
        const Units& units = tensors_[t];
        const int64_t from = std::max(begin, units.first), to = std::min(end, units.first + units.pieces);
        if (from >= to || (long_only && !units.is_long())) continue;
        Blocks blocks(units);
        for (int64_t piece = from; piece < to; ++piece) f(units, blocks, piece - units.first);
      }
    });
  }

  static int64_t start_of(const Units& units, int64_t piece) {
    if (!units.is_long()) return piece * units.together * units.length;
    return piece / units.blocks * units.length + piece % units.blocks * kBlock;
  }
  static int64_t end_of(const Units& units, int64_t piece) {
    if (!units.is_long()) return std::min(units.count, (piece + 1) * units.together) * units.length;
    return std::min((piece / units.blocks + 1) * units.length, start_of(units, piece) + kBlock);
  }

  static void add_up(const Units& units, Blocks& blocks, int64_t piece) {
    const int64_t i = start_of(units, piece), n = end_of(units, piece) - i;
    units.weight_sums[piece] = sum_of_squares(units.compute, n, blocks.weights(i, n));
    units.gradient_sums[piece] = sum_of_squares(units.compute, n, blocks.gradient(i, n));
  }

  void clip_short(const Units& units, Blocks& blocks, int64_t piece) const {
    const int64_t start = start_of(units, piece), n = end_of(units, piece) - start, size = compute_size(units.compute);
    const char* p = static_cast<const char*>(blocks.weights(start, n));
    const char* g = static_cast<const char*>(blocks.gradient(start, n));
    for (int64_t i = 0; i < n; i += units.length) {
      const double of_weights = sum_of_squares(units.compute, units.length, p + i * size);
      const double of_gradient = sum_of_squares(units.compute, units.length, g + i * size);
      scale(units, start + i, units.length, factor(of_weights, of_gradient), g + i * size);
    }
  }

  // Writes the factor of each long unit in the place of its first sum.
  void find_factors(const Units& units) const {
    parallel_for(units.count, std::max<int64_t>(1, kGrain / units.blocks), [&](int64_t begin, int64_t end) {
      for (int64_t u = begin; u < end; ++u) {
        double *of_weights = units.weight_sums + u * units.blocks, *of_gradient = units.gradient_sums + u * units.blocks;
        reduce_pairs<sum_reduce>(units.blocks, 1, of_weights);
        reduce_pairs<sum_reduce>(units.blocks, 1, of_gradient);
        *of_weights = factor(*of_weights, *of_gradient);
      }
    });
  }

  double factor(double weights, double gradient) const {
    return unit_factor<double>(weights, gradient, double(scale_), double(share_));
  }

  // Writes n elements of the scaled gradient from element i on.
  static void scale(const Units& units, int64_t i, int64_t n, double factor, const void* g) {
    const auto each = [&](auto zero) {
      using C = decltype(zero);
      const C* __restrict x = static_cast<const C*>(g);
      const C by = C(factor);
      const bool direct = units.out.dtype == storage_of(units.compute);
      alignas(64) C buffer[kBlock];
      char* const target = units.out.data + i * item_size(units.out.dtype);
      C* __restrict y = direct ? reinterpret_cast<C*>(target) : buffer;
      for (int64_t k = 0; k < n; ++k) y[k] = x[k] * by;
      if (!direct) store(units.compute, units.out.dtype, buffer, n, target, item_size(units.out.dtype));
    };
    if (units.compute == Compute::f32) each(float{});
    else each(double{});
  }

  const Setting scale_, share_;
  Scratch scratch_;
  Units* tensors_;
  int used_ = 0;
  int64_t pieces_ = 0;
  bool has_long_ = false;
};

}  // namespace

void clip_adaptive(const Launch& launch) { Clipping(launch).run(); }

// For each unit one addition less than there are squares.
void executed_clip_adaptive(const Launch& launch, Counts& work) {
  const int entries = int(launch.ints[0]);
  for (int t = 0; t < entries; ++t)
    if (launch.in(t).data) work.adds -= 2 * launch.in(entries + t).shape[0];
}

}  // namespace pb::kernels
