// Running sums, products, maxima and minima.
#include "families/cumulative.h"

#include "bindings/tables.h"

namespace pb {

void bind_cumulative(PyObject* module) {
  for (const kernels::Cumulative* op : kernels::cumulatives()) {
    const char* signature =
        op->wide ? "(any x[...], axis axis, flag from_end) -> wide y[...]" : "(any x[...], axis axis, flag from_end) -> y[...]";
    bind_row(module, {&op->kernel, signature, 2, nullptr, op});
  }
}

}  // namespace pb
