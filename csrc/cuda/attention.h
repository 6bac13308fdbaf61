// The sizes of tiles of attention on a GPU. Without device code, so that the executed work can be plain C++.
#pragma once
#include <cstdint>

namespace pb::cuda {

// The most keys and the most elements of a query, a key or a value for which the kernels have shared memory.
constexpr int64_t kAttentionKeys = 1024, kAttentionWidth = 128;

template <class C> constexpr int kQueryRows = 32 / int(sizeof(C));  // queries of a block of threads
template <class C> constexpr int kTangentRows = kQueryRows<C> / 2;  // the tangent keeps two numbers for each of their scores
template <class C> constexpr int kKeySide =
    64 / int(sizeof(C));  // keys of a block of threads, and rows that it reads at a time

}  // namespace pb::cuda
