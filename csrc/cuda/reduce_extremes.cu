// The kernels of maxima and minima, including those of bools (any and all). min(x) is computed as mirrored(max(mirrored(x))).
#include "cuda/copy.cuh"
#include "cuda/reduce.cuh"

namespace pb::cuda {
namespace {

template <bool kSmallest> void set_extremes(ReductionKernel& op) {
  op.mirrors = kSmallest;
  const auto set = [&op](auto tag) {
    using C = typename decltype(tag)::type;
    op.kernels[int(compute_of<C>)] = reduce_as<max_reduce, C, C, kSmallest>;
  };
  set(Tag<float>{}), set(Tag<double>{}), set(Tag<int64_t>{}), set(Tag<uint64_t>{}), set(Tag<bool>{});
}

// Elements of other dtypes are converted to bool first.
template <bool kAll> void reduce_truths(const Launch& launch) {
  Scratch scratch;
  View operands[] = {launch.out(), launch.in()};
  if (operands[1].dtype != DType::b8) operands[1] = contiguous_as(DType::b8, operands[1], scratch);
  Launch of_bools = launch;
  of_bools.operands = operands;
  reduce_as<max_reduce, bool, bool, kAll>(of_bools);
}

template <bool kAll> void set_truths(ReductionKernel& op) {
  for (auto& kernel : op.kernels) kernel = reduce_truths<kAll>;
}

}  // namespace

template <> void set_kernels<max_reduce>(ReductionKernel& op) { set_extremes<false>(op); }
template <> void set_kernels<min_reduce>(ReductionKernel& op) { set_extremes<true>(op); }
template <> void set_kernels<any_reduce>(ReductionKernel& op) { set_truths<false>(op); }
template <> void set_kernels<all_reduce>(ReductionKernel& op) { set_truths<true>(op); }

}  // namespace pb::cuda
