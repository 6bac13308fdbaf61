// The table of reductions, and copies of operands whose rows lie along many axes.
#include "cuda/reduce.cuh"

namespace pb::cuda {
namespace {

// Adds rows that live as long as the program.
struct AddReduced {
  std::vector<const kernels::Reduction*>& table;

  template <class R> void operator()(R row, const char* name) const {
    static const Reduced op = [&] {
      Reduced reduced{kernels::reduction_of(row, name, run_reduced), {}};
      set_kernels<typename R::Functions>(reduced);
      return reduced;
    }();
    table.push_back(&op);
  }
};

template <class T> __global__ void __launch_bounds__(kThreads)
    copy_in_order(uint32_t n, const __grid_constant__ Walk<2> walk, char* to, const char* from) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= n) return;
  int64_t offset[2];
  walk.offsets(i, offset);
  *reinterpret_cast<T*>(to + offset[0]) = *reinterpret_cast<const T*>(from + offset[1]);
}

View axis_of(char* data, DType dtype, int64_t length, int64_t stride) {
  View v = flat_view(data, dtype, length);
  v.stride[0] = stride;
  return v;
}

}  // namespace

void straighten(kernels::Matrix& m, Scratch& scratch) {
  View views[2] = {m.outer, m.outer};
  for (const View* part : {&m.reduced, &m.inner})
    for (int d = 0; d < part->ndim; ++d)
      for (View& v : views) v.shape[v.ndim] = part->shape[d], v.stride[v.ndim] = part->stride[d], v.ndim += 1;
  const int64_t size = item_size(m.outer.dtype);
  char* copy = scratch.take<char>(views[0].size() * size);
  views[0].data = copy;
  for (int64_t d = views[0].ndim - 1, stride = size; d >= 0; --d) views[0].stride[d] = stride, stride *= views[0].shape[d];
  collapse(views, 2);
  each_part(views, 2, [size](View* part) {
    const auto n = uint32_t(part[0].size());
    const auto kernel = size == 1   ? copy_in_order<uint8_t>
                        : size == 2 ? copy_in_order<uint16_t>
                        : size == 4 ? copy_in_order<uint32_t>
                                    : copy_in_order<uint64_t>;
    start(kernel, blocks_for(n), kThreads, 0, n, Walk<2>(part), part[0].data, part[1].data);
  });
  const DType dtype = m.outer.dtype;
  m.inner = axis_of(copy, dtype, m.width, size);
  m.reduced = axis_of(copy, dtype, m.rows, size * m.width);
  m.outer = axis_of(copy, dtype, m.cells, size * m.width * m.rows);
}

}  // namespace pb::cuda

namespace pb::kernels {

const std::vector<const Reduction*>& reductions() {
  static const std::vector<const Reduction*> table = [] {
    std::vector<const Reduction*> rows;
    each_reduction(cuda::AddReduced{rows});
    return rows;
  }();
  return table;
}

}  // namespace pb::kernels
