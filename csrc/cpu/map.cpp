// Runs elementwise loops over strided, broadcast and converted operands, in parallel from a measured size on.
#include "cpu/map.h"

#include <algorithm>

#include "cpu/pool.h"
#include "cpu/stream.h"

namespace pb::cpu {
namespace {

constexpr int64_t kGrainBytes = 128 * 1024;  // the fewest bytes per thread; for less, waking a thread costs more than it saves

// Computes elements [begin, end) of the collapsed launch.
void map_range(const Launch& launch, Loop loop, Compute compute, Compute result, int64_t begin, int64_t end) {
  alignas(64) char buffers[kMaxArity + 1][kBlockBytes];
  Reader readers[kMaxArity];
  const View& out = launch.out();
  bool direct = out.dtype == storage_of(result);
  const bool direct_out = direct;
  int64_t inner = out.ndim ? out.shape[out.ndim - 1] : 1;
  for (int k = 0; k < launch.inputs; ++k) {
    readers[k] = Reader(launch.in(k), compute);
    direct = direct && readers[k].direct();
  }
  // Short inner runs are gathered across rows; long ones stay within a row, so that contiguous rows are not copied.
  if (inner < kBlock / 4) inner = 0;
  const int size = item_size(out.dtype);
  for (int64_t i = begin; i < end;) {
    int64_t n = end - i;
    if (!direct) n = std::min(n, kBlock);
    if (!direct && inner) n = std::min(n, inner - i % inner);
    const void* in[kMaxArity];
    for (int k = 0; k < launch.inputs; ++k) in[k] = readers[k].block(i, n, buffers[k]);
    char* target = out.data + i * size;
    if (direct_out) {
      loop(n, target, in);
    } else {
      loop(n, buffers[kMaxArity], in);
      store(result, out.dtype, buffers[kMaxArity], n, target, size);
    }
    i += n;
  }
}

}  // namespace

int64_t map_work(const ElementwiseKernel& op, Compute compute) {
  return std::max<int64_t>(4, std::max<int64_t>(1, op.counts.flops() + 8 * op.counts.special)) * compute_size(compute);
}
int64_t map_grain(int64_t work) { return std::max<int64_t>(2048, 4 * kGrainBytes / work); }

void map(const Launch& launch) {
  const auto& op = static_cast<const ElementwiseKernel&>(*static_cast<const kernels::Elementwise*>(launch.table));
  const Compute compute = compute_type(launch.in(launch.inputs - 1).dtype);  // the first operand of `where` is the condition
  const Compute result = op.predicate ? Compute::b8 : compute;
  const Loop loop = op.loops[int(compute)];
  const int64_t n = launch.out().size();
  const int size = compute_size(compute);
  const int64_t grain = map_grain(map_work(op, compute));
  bool flat = launch.out().dtype == storage_of(result);
  for (int k = 0; flat && k < launch.inputs; ++k) flat = launch.in(k).dtype == storage_of(compute) && launch.in(k).contiguous();
  if (flat) {
    parallel_for(n, grain, [&](int64_t begin, int64_t end) {
      const void* in[kMaxArity];
      for (int k = 0; k < launch.inputs; ++k) in[k] = launch.in(k).data + begin * size;
      loop(end - begin, launch.out().data + begin * item_size(launch.out().dtype), in);
    });
    return;
  }
  collapse(launch.operands, launch.outputs + launch.inputs);
  parallel_for(n, grain, [&](int64_t begin, int64_t end) { map_range(launch, loop, compute, result, begin, end); });
}

}  // namespace pb::cpu
