// On a GPU, factorisations and linear systems run in CuPy: the table has no kernels yet.
#include "families/linalg.h"

namespace pb::kernels {

const Linalg& linalg() {
  static const Linalg table{};
  return table;
}

}  // namespace pb::kernels
