// The work of linear recurrences.
#include "families/linear_recurrence.h"

#include "launch/signature.h"

namespace pb::kernels {
namespace {

void cost(const Launch& launch, Cost& cost) {
  const LinearRecurrence r(launch);
  if (r.y.size()) cost.fmas += r.y.size() - r.split.outer * r.split.inner;
}

}  // namespace

const Kernel linear_recurrence = {"linear_recurrence", run_linear_recurrence, cost};

static const KernelRows table{
    {&linear_recurrence, "(a[...], b[...], axis axis, flag from_end, flag late) -> y[...]", 3},
};

}  // namespace pb::kernels
