// The matrix of a reduction: the addresses of its elements, and where the results of its blocks are stored.
#pragma once
#include "cuda/fold.cuh"
#include "cuda/operand.cuh"
#include "families/reduce.h"
#include "math/functors.h"

namespace pb::kernels {

constexpr int64_t kLanes = 64;               // neighbouring partial results, which are combined by halves at the end
constexpr int64_t kFoldBlock = 16 * kLanes;  // rows per block of a matrix of one column
constexpr int64_t kColumnDepth = 64;         // rows per lane of a block of a wider matrix

// The rows are cut into blocks, and each block yields one result per column. The results of all blocks are the rows of the next,
// smaller matrix, until one block is left. Within a block, rows r, r + groups, r + 2 groups, ... accumulate in the same lanes, so
// that a narrow matrix uses as many lanes as a wide one.
struct Cut {
  int64_t groups, block, blocks;
};
inline Cut cut(int64_t rows, int64_t width) {
  Cut c{1, 0, 1};
  const int64_t columns = width > 1 ? width : 1;
  while (c.groups * columns < kLanes) c.groups *= 2;
  c.block = width == 1 ? kFoldBlock : c.groups * kColumnDepth;
  if (rows > c.block) c.blocks = (rows + c.block - 1) / c.block;
  return c;
}

}  // namespace pb::kernels

namespace pb::cuda {

// Returns axes [begin, end) of an operand, collapsed.
inline View axes_of(const View& x, int begin, int end) {
  View v = x;
  v.ndim = 0;
  for (int d = begin; d < end; ++d) v.shape[v.ndim] = x.shape[d], v.stride[v.ndim++] = x.stride[d];
  collapse(&v, 1);
  return v;
}

// Byte offsets along some axes of an operand. They are computed once per cell or column, so plain divisions are fast enough.
struct Axes {
  int ndim;
  int64_t length[kMaxDims], stride[kMaxDims];  // bytes

  explicit Axes(const View& v) : ndim(v.ndim) {
    for (int d = 0; d < kMaxDims; ++d) length[d] = d < ndim ? v.shape[d] : 1, stride[d] = d < ndim ? v.stride[d] : 0;
  }
  __device__ int64_t offset(int64_t i) const {
    int64_t at = 0;
    for (int d = ndim - 1; d > 0; --d) {
      const int64_t next = i <= kMaxWalk ? int64_t(uint32_t(i) / uint32_t(length[d])) : i / length[d];
      at += (i - next * length[d]) * stride[d];
      i = next;
    }
    return at + i * stride[0];
  }
};

// Byte offsets along the rows, which are one axis, or two that do not collapse. They are computed for every element.
struct RowAxes {
  bool two;
  uint32_t length, multiplier, shift;  // the length of the second of two axes, as a Divider; for one axis the division gives 0
  int64_t along, apart;                // bytes from element to element of the last axis, and of the first of two axes

  explicit RowAxes(const View& v) : two(v.ndim == 2 && v.size() > 0), length(0), multiplier(0), shift(31), along(0), apart(0) {
    if (v.ndim > 0) along = v.stride[v.ndim - 1];
    if (!two) return;
    const Divider divider(uint32_t(v.shape[1]));
    length = divider.divisor, multiplier = divider.multiplier, shift = divider.shift, apart = v.stride[0];
  }
  static bool takes(const View& v) { return v.ndim <= 1 || (v.ndim == 2 && v.size() <= kMaxWalk); }
};
// The rows of one cell or column from row `first` on.
struct RowsFrom {
  const char* data;
  uint32_t start;
  const RowAxes& axes;

  __device__ RowsFrom(const char* cell, int64_t first, const RowAxes& rows)
      : data(rows.two ? cell : cell + first * rows.along), start(rows.two ? uint32_t(first) : 0), axes(rows) {}
  __device__ const char* at(int row) const {
    const uint32_t i = start + uint32_t(row);
#if defined(__CUDA_ARCH__)
    const uint32_t q = (__umulhi(i, axes.multiplier) + i) >> axes.shift;
#else
    const uint32_t q = uint32_t(((uint64_t(i) * axes.multiplier >> 32) + i) >> axes.shift);
#endif
    return data + int64_t(q) * axes.apart + int64_t(i - q * axes.length) * axes.along;
  }
};

// ---- elements

// Elements are loaded without conversion, and all loads are issued before the first element is converted: a conversion waits for
// its load.
template <class C> using Raw = std::conditional_t<std::is_same_v<C, float>, uint32_t, C>;
template <class C> __device__ inline Raw<C> load_raw(DType dtype, const char* p) {
  if constexpr (std::is_same_v<C, float>)
    return dtype == DType::f32 ? *reinterpret_cast<const uint32_t*>(p) : *reinterpret_cast<const uint16_t*>(p);
  else if constexpr (std::is_same_v<C, int64_t>)
    return dtype == DType::b8 ? *reinterpret_cast<const uint8_t*>(p) : load_as<C>(dtype, p);
  else return *reinterpret_cast<const C*>(p);
}
// A pack of four neighbouring elements.
template <class C> struct RawPack {
  Raw<C> v[4];  // half precision has two elements in each of the first two
};
template <class C> __device__ inline RawPack<C> load_raw_pack(DType dtype, const char* p) {
  RawPack<C> x;
  if constexpr (std::is_same_v<C, float>) {
    if (dtype == DType::f32) {
      const uint4 all = *reinterpret_cast<const uint4*>(p);
      x.v[0] = all.x, x.v[1] = all.y, x.v[2] = all.z, x.v[3] = all.w;
    } else {
      const uint2 all = *reinterpret_cast<const uint2*>(p);
      x.v[0] = all.x, x.v[1] = all.y;
    }
  } else {
    const auto pack = *reinterpret_cast<const Pack<C>*>(p);
    for (int k = 0; k < 4; ++k) x.v[k] = pack.v[k];
  }
  return x;
}
// T is the type that elements are stored as if C is float.
template <class C, class T> __device__ inline C from_raw(Raw<C> x) {
  if constexpr (!std::is_same_v<C, float>) return x;
  else if constexpr (std::is_same_v<T, float>) return m::from_bits<float>(x);
  else return float(T::from_bits(uint16_t(x)));
}
template <class C, class T> __device__ inline C from_raw(const RawPack<C>& x, int k) {
  if constexpr (!std::is_same_v<C, float>) return x.v[k];
  else if constexpr (std::is_same_v<T, float>) return m::from_bits<float>(x.v[k]);
  else return float(T::from_bits(uint16_t(x.v[k / 2] >> (16 * (k % 2)))));
}
// Calls f(Tag<T>{}) with the T that from_raw() needs for elements of this dtype.
template <class C, class F> __device__ inline void by_storage(DType dtype, F&& f) {
  if constexpr (!std::is_same_v<C, float>) {
    f(Tag<C>{});
  } else {
    if (dtype == DType::f32) f(Tag<float>{});
    else if (dtype == DType::f16) f(Tag<float16>{});
    else f(Tag<bfloat16>{});
  }
}
template <class C> constexpr bool kHasPacks = std::is_floating_point_v<C>;
// The number of elements that a thread loads before it uses them. For integers there are fewer, because each load branches on the
// dtype.
template <class C> constexpr int kAhead = std::is_same_v<C, int64_t> ? 4 : sizeof(C) == 4 ? 16 : 8;

// Reads an element that another block has written.
template <class A> __device__ inline A read_fresh(const A* p) {
  if constexpr (std::is_same_v<A, bool>) return __ldcg(reinterpret_cast<const unsigned char*>(p)) != 0;
  else return __ldcg(p);
}

// ---- results

// The matrices that follow one another: the results of the blocks of one level are the rows of the next level, see kernels::cut.
constexpr int kMaxLevels = 10;
struct Levels {
  int count = 0;
  int64_t width, groups, block;  // the same at every level; block: rows per block
  int64_t blocks[kMaxLevels];    // blocks per level; 1 at the last one
  int64_t partial[kMaxLevels];   // where the results of each level begin in the working memory, in elements
  int64_t ticket[kMaxLevels];    // the first ticket of each level, among the tickets of a unit
  int64_t partials = 0, tickets = 0;

  Levels(int64_t cells, int64_t rows, int64_t columns) : width(columns) {
    do {
      const kernels::Cut cut = kernels::cut(rows, columns);
      groups = cut.groups, block = cut.block;
      partial[count] = partials, ticket[count] = tickets, blocks[count] = cut.blocks;
      if (cut.blocks > 1) partials += cells * cut.blocks * columns;
      if (count > 0) tickets += cut.blocks;
      ++count;
      rows = cut.blocks;
    } while (rows > 1);
  }
};

// An order-reversing map that is exactly its own inverse.
template <class A> __device__ inline A mirrored(A x) {
  if constexpr (std::is_same_v<A, bool>) return !x;
  else if constexpr (std::is_integral_v<A>) return ~x;
  else return -x;
}

// Returns x, mirrored if the reduction is a minimum.
template <class R, class A> __device__ inline A mapped(A x, bool mirrors) {
  if constexpr (std::is_same_v<R, max_reduce>)
    if (mirrors) return mirrored(x);
  return x;
}

// The arguments of a reduction kernel. A unit is the cells or columns that some blocks of threads finish together: one cell, or a
// tile of cells or columns.
struct Folding {
  const char* data;
  DType dtype;
  int item;  // bytes
  Axes outer, inner;
  RowAxes reduced;
  int64_t cells, rows, width;
  Levels levels;
  void* partial = nullptr;
  char* out;
  DType out_dtype;
  int out_size;
  bool divides;
  bool mirrors = false;  // min(x) is computed as mirrored(max(mirrored(x))), which halves the number of kernels
  unsigned* tickets = nullptr;
  int64_t first_unit = 0;
  unsigned blocks_per_unit = 1;
  int teams = 1;      // teams that a block of threads is divided into
  int64_t tiles = 1;  // tiles of columns per cell

  Folding(const kernels::Matrix& m, const View& result, bool divided)
      : data(m.outer.data),
        dtype(m.outer.dtype),
        item(item_size(dtype)),
        outer(m.outer),
        inner(m.inner),
        reduced(m.reduced),
        cells(m.cells),
        rows(m.rows),
        width(m.width),
        levels(m.cells, m.rows, m.width),
        out(result.data),
        out_dtype(result.dtype),
        out_size(item_size(result.dtype)),
        divides(divided) {}

  template <class A> __device__ void finish(int64_t i, A a) const {
    if constexpr (std::is_floating_point_v<A>)
      if (divides) a = a / A(rows);
    if (mirrors) a = mirrored(a);
    store_as<A>(out_dtype, out + i * out_size, a);
  }
  // Returns the results of a level for one cell, from this block on.
  template <class A> __device__ A* partials(int level, int64_t cell, int64_t block) const {
    return static_cast<A*>(partial) + levels.partial[level] + (cell * levels.blocks[level] + block) * width;
  }
  template <class A> __device__ void store(int level, int64_t cell, int64_t block, int64_t column, A a) const {
    if (level == levels.count - 1) finish(cell * width + column, a);
    else partials<A>(level, cell, block)[column] = a;
  }
  // Returns the number of rows in a block of the level's matrix.
  __device__ int rows_of(int level, int64_t block) const {
    const int64_t all = level == 0 ? rows : levels.blocks[level - 1], left = all - block * levels.block;
    return int(left < levels.block ? (left > 0 ? left : 0) : levels.block);
  }

  // All threads of a block call this after they have stored their results of level 0. The last of the blocks whose results make up
  // one block of the next level calls fold(level, block) with all its threads, which stores one result. Then it continues with the
  // next level in the same way. arrival: the number of this block in its unit. per_fold: the number of blocks whose results are
  // combined at once.
  template <class Fold> __device__ void climb(int64_t unit, int64_t arrival, int64_t per_fold, const Fold& fold) const {
    int64_t arrivals = blocks_per_unit;
    for (int level = 1; level < levels.count; ++level) {
      const int64_t group = arrival / per_fold, left = arrivals - group * per_fold;
      const auto expected = unsigned(left < per_fold ? left : per_fold);
      unsigned* ticket = tickets + (unit - first_unit) * levels.tickets + levels.ticket[level] + group;
      if (expected == 1) __syncthreads();
      else if (!last_to_arrive(ticket, expected)) return;
      fold(level, group);
      arrival = group, arrivals = levels.blocks[level], per_fold = levels.block;
    }
  }
};

// Launches as many units at a time as there are tickets for, which is nearly always all units.
template <class Kernel> void start_units(Kernel kernel, Folding& f, int64_t units, unsigned threads) {
  if (f.levels.tickets > 0) f.tickets = tickets();
  int64_t most = kMaxBlocks / f.blocks_per_unit;
  if (f.levels.tickets > 0) most = most < kTickets / f.levels.tickets ? most : kTickets / f.levels.tickets;
  if (most == 0) throw Failure("a reduction over more elements than there are counters for");
  for (f.first_unit = 0; f.first_unit < units; f.first_unit += most) {
    const int64_t some = units - f.first_unit < most ? units - f.first_unit : most;
    start(kernel, dim3(unsigned(some * f.blocks_per_unit)), threads, 0, f);
  }
}

}  // namespace pb::cuda
