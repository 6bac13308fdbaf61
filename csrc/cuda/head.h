// Which heads of classifiers (families/head.h) the kernel for them takes.
#pragma once
#include <cstdint>

namespace pb::cuda {

bool is_head(int64_t rows, int64_t classes, int64_t k);

}  // namespace pb::cuda
