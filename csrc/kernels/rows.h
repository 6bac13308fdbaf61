// Ops that own a row: softmax and its relatives, the norms, cross entropy. A row is the last axis of an operand.
#pragma once
#include "launch/door.h"

namespace pb::kernels {

// All operands have the rows of x; those of one value a row have a last axis of length one. Float, of one dtype, any strides;
// outputs are contiguous.
// softmax, log_softmax: out: y. in: x.         logsumexp: out: y, one value a row. in: x.
// softmax_pullback, log_softmax_pullback: out: gx. in: g, y.
// logsumexp_pullback: out: gx. in: g and y, one value a row each, in between x.
extern const Kernel softmax, log_softmax, logsumexp;
extern const Kernel softmax_pullback, log_softmax_pullback, logsumexp_pullback;

// reals[0]: eps. ints: whether there is a weight, and a bias, (n,) each.
// out: y. in: x, weight, bias; or out: gx, gweight, gbias. in: g, x, weight. Without gbias for rms_norm.
extern const Kernel layer_norm, layer_norm_pullback, rms_norm, rms_norm_pullback;

// out: the loss of each row. in: logits (rows, classes), labels (rows,) of any integer dtype. The pullback: out: glogits.
// in: g, logits, labels. Both at once, with the same bits: out: loss, glogits. in: g, logits, labels.
// ints[0]: the label of rows to be left out. reals[0]: the share of the target that is spread over all classes.
// Throw OutOfRange; on a GPU later, and then the loss of such a row is 0, its gradient too.
extern const Kernel cross_entropy, cross_entropy_pullback, cross_entropy_with_gradient;

// out: in(0), of one value for each row of the labels, divided by how many of these are not ints[0]. in: x, labels of any integer
// dtype.
void divide_by_count(const Launch& launch);
void divide_by_count_cost(const Launch& launch, Cost& cost);

// What a backend brings.
void run_softmax(const Launch& launch);
void run_log_softmax(const Launch& launch);
void run_logsumexp(const Launch& launch);
void run_softmax_pullback(const Launch& launch);
void run_log_softmax_pullback(const Launch& launch);
void run_logsumexp_pullback(const Launch& launch);
void run_layer_norm(const Launch& launch);
void run_layer_norm_pullback(const Launch& launch);
void run_rms_norm(const Launch& launch);
void run_rms_norm_pullback(const Launch& launch);
void run_cross_entropy(const Launch& launch);
void run_cross_entropy_pullback(const Launch& launch);
void run_cross_entropy_with_gradient(const Launch& launch);

inline int64_t row_length(const View& v) { return v.shape[v.ndim - 1]; }
inline int64_t row_count(const View& v) {
  int64_t rows = 1;
  for (int d = 0; d + 1 < v.ndim; ++d) rows *= v.shape[d];
  return rows;
}

}  // namespace pb::kernels
