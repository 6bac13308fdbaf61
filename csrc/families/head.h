// The head of a classifier: its last linear layer, the cross entropy of all rows together, and the gradient of the logits. Plans
// use it in place of the launches that were recorded (see fusions.h), and it has their bits.
#pragma once
#include "launch/door.h"

namespace pb::kernels {

constexpr int64_t kMostHeadClasses = 32;

// out: the loss, which is one number; the gradient of the logits; the logits (rows, classes). in: g, which is one number; labels
// (rows,); x (rows, k), w (classes, k) and, if there is a fifth input, bias (classes,). There are at most kMostHeadClasses classes.
// ints and reals: those of cross_entropy_total.
extern const Kernel head;

void run_head(const Launch& launch);  // each backend defines it

// The launches that a head stands for. They use the operands that `views` holds.
struct HeadParts {
  View of_layer[4], of_loss[5];
  Launch layer, loss;
  explicit HeadParts(const Launch& head);
};

}  // namespace pb::kernels
