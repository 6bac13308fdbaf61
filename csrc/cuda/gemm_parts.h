// A product on its way to kernels: the facts about it that decide the choice, and its cutting into launches. Pure host code.
#pragma once
#include "cuda/choice.h"
#include "cuda/gemm.h"
#include "families/matmul.h"

namespace pb::cuda {

// The axis of a factor whose elements lie closest together. In *_packs, runs of contiguous elements also begin at a multiple of a
// pack and are a multiple of a pack long.
enum class Reading : uint8_t { depth, outer, depth_packs, outer_packs };
constexpr bool in_packs(Reading reading) { return reading >= Reading::depth_packs; }

struct PlannedProduct {
  Product product;
  int64_t batches, pitch;  // pitch: elements from row to row of the result
  bool cores;              // on tensor cores, which need packs
  bool staged;             // factors pass through registers, where they are converted, rounded and pulled back
  bool gathers[2];         // a or b is copied into contiguous memory first
  Reading reading[2];      // of a and y, and of b, once they are copied

  explicit PlannedProduct(const Product& product);
  PlannedProduct(const Product& product, int64_t batches, int64_t pitch);
  bool is_nothing() const { return product.m == 0 || batches == 0 || (product.n == 0 && !product.sums); }
  bool is_large() const {
    return cuda::is_large(product.dtype, kernels::precision(), product.m, product.n, product.k, batches);
  }
  // True if one thread per element is the fastest way (product_tiny.cu).
  bool is_tiny() const;
  ProductShape shape() const { return {product.m, product.n, product.k, batches}; }
  // Finds out how the factors can be read, with or without tensor cores.
  void read(bool by_cores);
};

// What choose() is asked for products that share a launch. If one of them is staged, all are; on tensor cores are all or none.
Question question_of(PlannedProduct* planned, int count);

// Returns false if a launch can take the products. Otherwise cuts them in two: one product each, or the halves of one.
bool cut(const PlannedProduct* planned, const Question& question, const Choice& choice, PlannedProduct (&parts)[2]);

// Calls f(planned, question, choice) for each launch. Only products beyond the limits of a launch, which are rare, have several.
template <class F> void each_launch(PlannedProduct* planned, int count, F&& f) {
  const Question question = question_of(planned, count);
  const Choice choice = choose(question);
  PlannedProduct parts[2] = {planned[0], planned[count - 1]};
  if (!cut(planned, question, choice, parts)) return f(planned, question, choice);
  for (PlannedProduct& part : parts) each_launch(&part, 1, f);
}

}  // namespace pb::cuda
