// Batches of products with few elements each. Tiles would be mostly padding, so each thread computes one element.
#include "cuda/product_tiny.h"

#include "cuda/gemm_plain.cuh"

namespace pb::cuda {
namespace {

constexpr int64_t kMostElements = 256, kMostTinyDepth = 64, kLeastBatch = 32;

struct Tiny {
  DType dtype;
  int k;
  uint32_t elements;  // elements of all results
  Divider columns, each;
  Factor a, b;
  char* out;
  int size;
};

// A thread reads a row of a and a column of b, 2 k numbers for k multiply-adds, and writes one number. Neighbours share rows and
// columns, which the L1 cache holds: both matrices of a product have at most 16,384 numbers. T is the type in memory, or void if only
// the dtype tells.
template <class C, class T>
__global__ void __launch_bounds__(kThreads)
    multiply_elements(const __grid_constant__ Tiny t, const __grid_constant__ Walk<2> batch) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= t.elements) return;
  const uint32_t which = t.each.divide(i), rest = i - which * t.each.divisor;
  const uint32_t row = t.columns.divide(rest), column = rest - row * t.columns.divisor;
  const Offsets offset = offsets_of(batch, which);
  const char *a = t.a.data + offset.a + row * t.a.outer, *b = t.b.data + offset.b + column * t.b.outer;
  C sum = 0;
#pragma unroll 4
  for (int k = 0; k < t.k; ++k, a += t.a.depth, b += t.b.depth)
    multiply_add(sum, load_element<C, T>(t.dtype, a), load_element<C, T>(t.dtype, b));
  store_element<C, T>(t.dtype, t.out + int64_t(i) * t.size, sum);
}

template <class C, class T> void launch(const Tiny& tiny, const Walk<2>& batch) {
  start(multiply_elements<C, T>, blocks_for(tiny.elements), kThreads, 0, tiny, batch);
}

}  // namespace

bool is_tiny(const Product& p) {
  const int64_t batches = p.batch[0].size(), elements = batches * p.m * p.n;
  if (p.m * p.n > kMostElements || p.k > kMostTinyDepth || batches < kLeastBatch || elements > kMaxWalk) return false;
  return !(p.bias || p.activation || p.pulled || p.sums || p.adds);
}

void multiply_tiny(const Product& p) {
  const int64_t elements = p.batch[0].size() * p.m * p.n;
  const int size = item_size(p.dtype);
  Tiny tiny{};
  tiny.dtype = p.dtype, tiny.k = int(p.k), tiny.elements = uint32_t(elements);
  tiny.columns = Divider(uint32_t(p.n)), tiny.each = Divider(uint32_t(p.m * p.n));
  tiny.a = p.a, tiny.b = p.b, tiny.out = p.out, tiny.size = size;
  const Walk<2> batch(p.batch);
  if (p.dtype == DType::f32) launch<float, float>(tiny, batch);
  else if (is_half(p.dtype)) launch<float, void>(tiny, batch);
  else if (p.dtype == DType::f64) launch<double, double>(tiny, batch);
  else if (size == 8 || p.dtype == DType::b8) launch<uint64_t, void>(tiny, batch);
  else launch<uint32_t, void>(tiny, batch);
}

}  // namespace pb::cuda
