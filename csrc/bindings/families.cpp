// Binds every family of kernels into a module. Every backend has the same families.
#include "bindings/tables.h"

namespace pb {

void bind_families(PyObject* module) {
  bind_signatures(module);
  bind_elementwise(module);
  bind_reduce(module);
  bind_channel_norm(module);
  bind_pool(module);
  bind_matmul(module);
  bind_conv(module);
  bind_copy(module);
  bind_index(module);
  bind_segment(module);
  bind_sort(module);
  bind_cumulative(module);
  bind_random(module);
  bind_update(module);
  bind_projection(module);
  bind_recurrent(module);
  bind_attention(module);
  bind_linalg(module);
  bind_ledger(module);
  bind_recorder(module);
  bind_facts(module);
}

}  // namespace pb
