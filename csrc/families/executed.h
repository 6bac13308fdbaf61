// What kernels do beyond the formulas of their cost: padding, sums in parts, threads that repeat each other. Each backend brings
// these. They know no values: where the work depends on them, they say what is done at least.
#pragma once
#include "launch/door.h"

namespace pb::kernels {

// From the work of the formula to what is done; see the kernels' own headers for the launches.
void executed_elements(const Launch& launch, Counts& work);
void executed_dropout(const Launch& launch, Counts& work);
void executed_reduction(const Launch& launch, Counts& work);
void executed_cumulative(const Launch& launch, Counts& work);
void executed_matmul(const Launch& launch, Counts& work);
void executed_linear(const Launch& launch, Counts& work);
void executed_linear_pullback(const Launch& launch, Counts& work);
void executed_update(const Launch& launch, Counts& work);
void executed_clip_norm(const Launch& launch, Counts& work);

// How rows are walked: by a thread or a lane each, or one by several threads. Walks are alike that have so many elements each, and
// combine so often in each fold.
struct Walks {
  struct Alike {
    int64_t walks, elements, combines;
  };
  Alike alike[2];
  int64_t changes;      // elements that are changed on their own, of all rows (see families/rows.h)
  bool affine = false;  // norms have a weight and a bias where none is given, too
};
// The rows of x in a launch of softmax and its like or of cross entropy; of a norm; of its pullback.
Walks walks_of(const Launch& launch, const View& x);
Walks walks_of_norm(const Launch& launch);
Walks walks_of_norm_pullback(const Launch& launch);
// Beside the last: what becomes of the sums of the gradients of weight and bias, `sums` of them.
void executed_sums(const Launch& launch, int sums, Counts& work);

}  // namespace pb::kernels
