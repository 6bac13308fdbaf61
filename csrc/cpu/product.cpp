// One product: chooses its kernel, and cuts a long contraction into slices, which are combined in the order of families/order.h.
#include <algorithm>
#include <cstring>

#include "cpu/blas.h"
#include "cpu/dot.h"
#include "cpu/large_product.h"
#include "cpu/matmul.h"
#include "cpu/pool.h"
#include "cpu/small_product.h"
#include "families/matmul.h"

namespace pb::cpu {
namespace {

constexpr int64_t kAddGrain = 16 * 1024;  // the fewest elements per thread when two results are added: about 5 us

bool is_dot(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b) {
  const bool along = (!a.transposed || a.ld == 1) && (b.transposed || b.ld == 1);
  return m == 1 && n == 1 && k > kernels::kOrderBlock && along && kernels::everywhere();
}

// Computes a product whose k is a compile-time constant, because loop overhead would dominate if the loop over k were not unrolled.
template <int k, class T> void product_tiny(int64_t m, int64_t n, const Matrix& a, const Matrix& b, T* out, bool add) {
  const int64_t down = a.transposed ? 1 : a.ld, across = a.transposed ? a.ld : 1;
  const int64_t down_b = b.transposed ? 1 : b.ld, across_b = b.transposed ? b.ld : 1;
  const T* left = reinterpret_cast<const T*>(a.data);
  for (int64_t i = 0; i < m; ++i, left += down) {
    const T* right = reinterpret_cast<const T*>(b.data);
    for (int64_t j = 0; j < n; ++j, right += across_b) {
      T sum = 0;
      for (int l = 0; l < k; ++l) sum = multiply_add_number(left[l * across], right[l * down_b], sum);
      *out = add ? *out + sum : sum;
      ++out;
    }
  }
}

// Computes a tiny product. Returns false and does nothing if the product is not tiny.
template <class T>
bool product_tiny(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, T* out, bool add) {
  if (!is_tiny_product(m, n, k)) return false;
  switch (k) {
    case 1: return product_tiny<1>(m, n, a, b, out, add), true;
    case 2: return product_tiny<2>(m, n, a, b, out, add), true;
    case 3: return product_tiny<3>(m, n, a, b, out, add), true;
    case 4: return product_tiny<4>(m, n, a, b, out, add), true;
    default: return false;
  }
}

// Computes a product of two contiguous vectors, for which the other kernels would use one lane. Returns false and does nothing if BLAS
// is faster, or if the product is not of this kind.
template <class T>
bool product_dot(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, T* out, bool add) {
  if (!is_dot(m, n, k, a, b)) return false;
  Scratch scratch;
  const T sum =
      dot(k, reinterpret_cast<const T*>(a.data), reinterpret_cast<const T*>(b.data), scratch.take<T>(kernels::order_blocks(k)));
  *out = add ? *out + sum : sum;
  return true;
}

// Returns the matrix without the first `l` of the lines along the contraction, which are the columns of a and the rows of b.
template <class T> Matrix from_column(Matrix a, int64_t l) {
  a.data += l * (a.transposed ? a.ld : 1) * int64_t(sizeof(T));
  return a;
}
template <class T> Matrix from_row(const Matrix& b, int64_t l) { return from_column<T>(b.flipped(), l).flipped(); }

template <class T> void add_to(T* to, const T* from, int64_t n) {
  parallel_for(n, kAddGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] += from[i];
  });
}

// A product whose contraction is cut into slices of `depth` elements. A slice is a power of two of blocks, so the sums of slices
// are combined like those of blocks: in pairs of neighbours.
template <class T> struct Sliced {
  int64_t m, n, k, depth;
  Matrix a, b;

  int64_t slices() const { return (k + depth - 1) / depth; }
  // Computes the sum of slices [first, first + count). `rooms` has room for a result per halving of count.
  void sum(int64_t first, int64_t count, T* out, T* rooms) const {
    if (count == 1) return one(first, out, false);
    const int64_t half = kernels::upper_half(count);
    sum(first, half, out, rooms);
    if (count - half == 1) return one(first + half, out, true);
    sum(first + half, count - half, rooms, rooms + m * n);
    add_to(out, rooms, m * n);
  }
  static constexpr DType dtype() { return sizeof(T) == 4 ? DType::f32 : DType::f64; }
  void one(int64_t slice, T* out, bool add) const {
    const int64_t l = slice * depth;
    product(dtype(), m, n, std::min(depth, k - l), from_column<T>(a, l), from_row<T>(b, l), reinterpret_cast<char*>(out), add);
  }
  static int64_t rooms_for(int64_t count) {
    int64_t rooms = 0;
    for (; count > 2; count = kernels::upper_half(count)) ++rooms;
    return rooms;
  }

  // Threads share each slice if it is large enough. Otherwise each thread takes runs of slices. Returns the slices in a run.
  int64_t run_length() const {
    if (m * n * depth >= kSharedProduct) return slices();
    int64_t each = kernels::upper_half(slices() + 1);
    while (each > 1 && (slices() + each - 1) / each < 2 * thread_count() && m * n * depth * each > kSharedProduct / 4)
      each /= 2;
    return each;
  }

  // Returns the work of sum().
  Counts work_of_sum(int64_t first, int64_t count, bool add = false) const {
    if (count == 1) {
      const int64_t l = first * depth;
      return product_work(dtype(), m, n, std::min(depth, k - l), from_column<T>(a, l), from_row<T>(b, l), false, add);
    }
    const int64_t half = kernels::upper_half(count);
    Counts work = work_of_sum(first, half);
    work.add(work_of_sum(first + half, count - half, count - half == 1));
    if (count - half > 1) work.adds += m * n;
    return work;
  }
  // Returns the work of run() without `add`.
  Counts work() const {
    const int64_t each = run_length(), runs = (slices() + each - 1) / each;
    Counts work;
    for (int64_t r = 0; r < runs; ++r) work.add(work_of_sum(r * each, std::min(each, slices() - r * each)));
    work.adds += (runs - 1) * m * n;
    return work;
  }
};

template <class T> void run(const Sliced<T>& p, T* out, bool add) {
  const int64_t slices = p.slices(), size = p.m * p.n;
  Scratch scratch;
  T* const total = add ? scratch.take<T>(size) : out;
  const int64_t each = p.run_length(), runs = (slices + each - 1) / each;
  if (runs == 1) {
    p.sum(0, slices, total, scratch.take<T>(size * p.rooms_for(slices)));
  } else {
    T* const sums = scratch.take<T>(size * runs);
    parallel_for(runs, 1, [&](int64_t begin, int64_t end) {
      Scratch near;
      T* const rooms = near.take<T>(size * p.rooms_for(each));
      for (int64_t r = begin; r < end; ++r) p.sum(r * each, std::min(each, slices - r * each), sums + r * size, rooms);
    });
    for (int64_t apart = 1; apart < runs; apart *= 2)
      for (int64_t r = 0; r + apart < runs; r += 2 * apart) add_to(sums + r * size, sums + (r + apart) * size, size);
    std::copy_n(sums, size, total);
  }
  if (add) add_to(out, total, size);
}

// Returns the depth of the slices that the contraction is cut into, or k if it is not cut.
template <class T> int64_t depth_of(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b) {
  if (suits_blas(m, n, k, a, b)) return k;
  Counts work;
  return std::min(k, large_product_work<T>(m, n, kLargeDepth<T>, 0, work) ? kLargeDepth<T> : kTileDepth);
}

}  // namespace

void product(DType dtype, int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, char* out, bool add) {
  if (k == 0) {
    if (!add) std::memset(out, 0, size_t(m * n * item_size(dtype)));
    return;
  }
  const auto call = [&](auto one) {
    using T = decltype(one);
    T* to = reinterpret_cast<T*>(out);
    if (product_tiny(m, n, k, a, b, to, add) || product_dot(m, n, k, a, b, to, add)) return;
    if (large_product<T>(m, n, k, a, b, nullptr, to, nullptr, add)) return;
    if (small_product<T>(m, n, k, a, b, nullptr, to, add)) return;
    if (const int64_t depth = depth_of<T>(m, n, k, a, b); depth < k) return run(Sliced<T>{m, n, k, depth, a, b}, to, add);
    gemm(a.transposed, b.transposed, m, n, k, one, reinterpret_cast<const T*>(a.data), a.ld, reinterpret_cast<const T*>(b.data),
         b.ld, T(add), to, n);
  };
  if (dtype == DType::f32) call(float(1));
  else call(double(1));
}

Counts product_work(DType dtype, int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, bool bias, bool add) {
  Counts work;
  if (m * n == 0) return work;
  const int terms = bias + add;  // that are added to each element
  const auto known = [&](auto one) {
    using T = decltype(one);
    if (is_dot(m, n, k, a, b)) return work.fmas = k, work.adds = kernels::order_blocks(k) - 1 + terms, true;
    if (large_product_work<T>(m, n, k, terms, work) || small_product_work<T>(m, n, k, a, b, bias, add, work)) return true;
    const int64_t depth = k ? depth_of<T>(m, n, k, a, b) : 0;
    if (depth == k) return false;
    work = Sliced<T>{m, n, k, depth, a, b}.work();
    work.adds += m * n * terms;
    return true;
  };
  if (!is_tiny_product(m, n, k) && (dtype == DType::f32 ? known(float(1)) : known(double(1)))) return work;
  work.adds = m * n * terms;
  work.fmas = m * n * k;
  return work;
}

}  // namespace pb::cpu
