// The sizes of warps, blocks and grids of threads. Without device code, so that formulas and choices can be plain C++.
#pragma once
#include <cstdint>

namespace pb::cuda {

constexpr unsigned kWarp = 32, kFull = 0xffffffffu;
constexpr unsigned kThreads = 256;  // threads per block, unless a kernel chooses otherwise
constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 1;

}  // namespace pb::cuda
