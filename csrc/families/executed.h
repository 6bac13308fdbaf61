// The work that kernels do beyond their cost formulas: padding, partial sums, redundant threads. Each backend defines these
// functions. They see shapes, not values: work that depends on values is reported as a lower bound.
#pragma once
#include "launch/door.h"

namespace pb::kernels {

// Each function turns the work of the formula into the work that the kernel does. The headers of the families describe the
// launches.
void executed_elements(const Launch& launch, Counts& work);
void executed_length(const Launch& launch, Counts& work);
void executed_length_pullback(const Launch& launch, Counts& work);
void executed_dropout(const Launch& launch, Counts& work);
void executed_cumulative(const Launch& launch, Counts& work);
void executed_matmul(const Launch& launch, Counts& work);
void executed_linear(const Launch& launch, Counts& work);
void executed_linear_pullback(const Launch& launch, Counts& work);
void executed_update(const Launch& launch, Counts& work);
void executed_measure(const Launch& launch, Counts& work);
void executed_clip_norm(const Launch& launch, Counts& work);
void executed_clip_adaptive(const Launch& launch, Counts& work);
void executed_project(const Launch& launch, Counts& work);
void executed_convolution(const Launch& launch, Counts& work);
void executed_convolution_input(const Launch& launch, Counts& work);
void executed_convolution_weight(const Launch& launch, Counts& work);

// What walks over rows do, in all rows together.
struct Walks {
  int64_t walks;        // threads or lanes that walk over a row, or over their part of it
  int64_t elements;     // of all walks
  int64_t combines;     // combinations of two elements or partial results, for one reduction of each row
  int64_t changes;      // single elements that are changed (see families/rows.h)
  bool affine = false;  // norms work as if a weight and a bias were always given
};
// The walks over the rows of x: in softmax, its relatives and cross entropy; in a norm; and in a norm's pullback.
Walks walks_of(const Launch& launch, const View& x);
Walks walks_of_norm(const Launch& launch);
Walks walks_of_norm_pullback(const Launch& launch);
// Adds the work of a loss over all rows besides its walks over the rows of x: sums, and divisions by the number of rows that count.
void executed_total(const Launch& launch, const View& x, bool loss, bool gradient, Counts& work);
// Returns the work of the formula of a loss and its gradient, with label smoothing or without.
Counts work_of_loss_and_gradient(bool smooth, const Walks& walks);
void executed_head(const Launch& launch, Counts& work);
void executed_squared_error(const Launch& launch, bool loss, bool gradient, Counts& work);
// Adds a norm's pullback's work on the `sums` sums of the gradients of weight and bias.
void executed_sums(const Launch& launch, int sums, Counts& work);

}  // namespace pb::kernels
