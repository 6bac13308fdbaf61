// The sizes of warps, blocks and grids of threads. Without device code, so that formulas and choices can be plain C++.
#pragma once
#include <cstdint>

namespace pb::cuda {

constexpr unsigned kWarp = 32, kFull = 0xffffffffu;
constexpr unsigned kThreads = 256;  // threads per block, unless a kernel chooses otherwise
constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 1;

// Threads that a multiprocessor runs at once: on Turing 1,024, on every later GPU 1,536 at least.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr unsigned kMostResident = 1024;
#else
constexpr unsigned kMostResident = 1536;
#endif

// Returns the number of blocks of `threads` threads for __launch_bounds__, at most `wanted`. The compiler ignores a number of blocks
// that do not fit on a multiprocessor, and then a thread may get so many registers that fewer blocks run than would fit.
constexpr unsigned resident_blocks(unsigned wanted, unsigned threads) {
  const unsigned fit = kMostResident / threads;
  return wanted < fit ? wanted : fit;
}

}  // namespace pb::cuda
