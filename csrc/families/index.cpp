// The kernel of one_hot.
#include "families/index.h"

#include "launch/signature.h"

namespace pb::kernels {

static const Kernel of_one_hot{"one_hot", one_hot, one_hot_cost};
static const KernelRows table{
    {&of_one_hot, "(int indices[...], length depth, any dtype) -> y[..., depth]", 1},
};

}  // namespace pb::kernels
