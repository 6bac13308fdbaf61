// Updates all tensors of an optimizer in blocks. The deltas of a block are computed into a buffer in the L1 cache, and then
// applied.
#include "cpu/update.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/pool.h"
#include "cpu/scratch.h"
#include "cpu/stream.h"

namespace pb::kernels {
namespace {

using namespace cpu;

constexpr int64_t kGrain = 32 * 1024;  // the fewest elements per thread: Adam moves 28 bytes for each, about 10 us in all

// Numbers the elements of all entries that have a gradient one after another, and calls f(entry, first, last) for the part of each
// entry that is within [begin, end).
template <class F> void for_entries(const View* sizes, const View* gradients, int64_t entries, int64_t begin, int64_t end,
                                    F&& f) {
  int64_t start = 0;
  for (int64_t t = 0; t < entries && start < end; ++t) {
    if (!gradients[t].data) continue;
    const int64_t stop = start + sizes[t].size();
    if (stop > begin) f(t, std::max(begin, start) - start, std::min(end, stop) - start);
    start = stop;
  }
}

int64_t total_size(const View* gradients, int64_t entries) {
  int64_t total = 0;
  for (int64_t t = 0; t < entries; ++t) total += gradients[t].data ? gradients[t].size() : 0;
  return total;
}

// Adds the changes to the weights. A change is rounded to the dtype of its weight first, so that before + delta = after holds bit
// for bit.
template <class T> void apply(int64_t n, const acc_t<T>* change, T* __restrict p, T* __restrict delta) {
  if (!delta) {
    for (int64_t i = 0; i < n; ++i) p[i] = T(acc_t<T>(p[i]) + acc_t<T>(T(change[i])));
  } else {
    for (int64_t i = 0; i < n; ++i) delta[i] = T(change[i]);
    for (int64_t i = 0; i < n; ++i) p[i] = T(acc_t<T>(p[i]) + acc_t<T>(delta[i]));
  }
}

void apply(DType dtype, int64_t n, const void* change, void* p, void* delta) {
  switch (dtype) {
    case DType::f16: return apply(n, static_cast<const float*>(change), static_cast<float16*>(p), static_cast<float16*>(delta));
    case DType::bf16:
      return apply(n, static_cast<const float*>(change), static_cast<bfloat16*>(p), static_cast<bfloat16*>(delta));
    case DType::f32: return apply(n, static_cast<const float*>(change), static_cast<float*>(p), static_cast<float*>(delta));
    default: return apply(n, static_cast<const double*>(change), static_cast<double*>(p), static_cast<double*>(delta));
  }
}

// Updates the elements [begin, end) of entry t.
void update_entry(const Launch& launch, const void* element, int64_t t, int64_t begin, int64_t end) {
  const auto& op = static_cast<const HostUpdate&>(*static_cast<const Update*>(launch.table));
  const int64_t entries = launch.ints[0];
  const bool preview = launch.ints[1];
  const View &weight = launch.out(int(t)), &target = launch.out(int(entries * (1 + op.slots) + t));
  const DType dtype = weight.dtype;
  const Compute compute = compute_type(dtype);
  const bool direct = dtype == storage_of(compute);
  const int64_t size = item_size(dtype), wide = compute_size(compute);
  alignas(64) char staged[2][kBlockBytes], change[kBlockBytes], slot_copy[kMaxSlots][kBlockBytes];
  Reader gradient(launch.in(int(t)), compute);
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t n = std::min(kBlock, end - i);
    char* p = weight.data + i * size;
    char* delta = target.data ? target.data + i * size : nullptr;
    if (!direct) load(dtype, compute, p, size, n, staged[0]);
    void* slots[kMaxSlots];
    for (int k = 0; k < op.slots; ++k) {
      slots[k] = launch.out(int(entries * (1 + k) + t)).data + i * wide;
      if (preview) slots[k] = std::memcpy(slot_copy[k], slots[k], n * wide);
    }
    op.loop[int(compute)](n, element, direct ? p : staged[0], gradient.block(i, n, staged[1]), slots, change);
    if (preview) store(compute, dtype, change, n, delta, size);
    else apply(dtype, n, change, p, delta);
  }
}

// A sum of squares is sixteen partial sums in double, so that every vector width does the same additions in the same order.
constexpr int kLanes = 16;
constexpr int64_t kNormGrain = 2 * kGrain;  // the number of elements of a chunk
template <class C> void add_squares(int64_t n, const C* x, double* lanes) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int k = 0; k < kLanes; ++k) lanes[k] += double(x[i + k]) * double(x[i + k]);
  for (int k = 0; i < n; ++i, ++k) lanes[k] += double(x[i]) * double(x[i]);
}

double sum_of_squares(const View& gradient, int64_t begin, int64_t end) {
  alignas(64) char buffer[kBlockBytes];
  const Compute compute = compute_type(gradient.dtype);
  Reader reader(gradient, compute);
  double lanes[kLanes] = {};
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t n = std::min(kBlock, end - i);
    const void* x = reader.block(i, n, buffer);
    if (compute == Compute::f32) add_squares(n, static_cast<const float*>(x), lanes);
    else add_squares(n, static_cast<const double*>(x), lanes);
  }
  for (int width = kLanes / 2; width; width /= 2)
    for (int k = 0; k < width; ++k) lanes[k] += lanes[k + width];
  return lanes[0];
}

void update(const Launch& launch) {
  const auto& op = static_cast<const HostUpdate&>(*static_cast<const Update*>(launch.table));
  const int64_t entries = launch.ints[0];
  Setting control[kControlSize];
  View& block = launch.out(launch.outputs - 1);
  std::memcpy(control, block.data, sizeof control);
  op.advance(control, launch.reals);
  if (!launch.ints[1]) std::memcpy(block.data, control, sizeof control);
  alignas(64) char elements[2][kElementBytes];
  for (int c = 0; c < 2; ++c) op.build[c](control, launch.reals, elements[c]);
  const View* gradients = &launch.in();
  parallel_for(total_size(gradients, entries), kGrain, [&](int64_t begin, int64_t end) {
    for_entries(&launch.out(), gradients, entries, begin, end, [&](int64_t t, int64_t first, int64_t last) {
      update_entry(launch, elements[int(compute_type(launch.out(int(t)).dtype))], t, first, last);
    });
  });
}

std::vector<HostUpdate> host_updates() {
  std::vector<HostUpdate> rows;
  each_update([&](auto rule, const char* name) {
    using U = typename decltype(rule)::type;
    rows.push_back({entry<U>(name, update),
                    U::advance,
                    {build_element<U, float>, build_element<U, double>},
                    {update_loop<U, float>, update_loop<U, double>}});
  });
  return rows;
}

}  // namespace

const std::vector<const Update*>& updates() {
  static const std::vector<HostUpdate> rows = host_updates();
  static const std::vector<const Update*> table = [] {
    std::vector<const Update*> entries;
    for (const Update& row : rows) entries.push_back(&row);
    return entries;
  }();
  return table;
}

// The additions besides those of the squares: each piece of a gradient folds its partial sums into one and adds that to the sum of
// its chunk, then the chunks' sums are added, and 1e-6.
void executed_clip_norm(const Launch& launch, Counts& work) {
  const View* gradients = &launch.in();
  const int64_t entries = launch.inputs, total = total_size(gradients, entries);
  const Chunks chunks = chunks_of(total, kNormGrain);
  int64_t pieces = 0;
  for (int64_t begin = 0; begin < total; begin += chunks.size)
    for_entries(gradients, gradients, entries, begin, std::min(total, begin + chunks.size),
                [&](int64_t, int64_t, int64_t) { ++pieces; });
  work.adds += kLanes * pieces + chunks.count + 1;
}

void clip_norm(const Launch& launch) {
  const View* gradients = &launch.in();
  const int64_t entries = launch.inputs, total = total_size(gradients, entries);
  Scratch scratch;
  const int64_t chunks = chunk_count(total, kNormGrain);
  double* partial = scratch.take<double>(chunks);
  std::fill_n(partial, chunks, 0.);
  parallel_chunks(total, kNormGrain, [&](int64_t chunk, int64_t begin, int64_t end) {
    for_entries(gradients, gradients, entries, begin, end,
                [&](int64_t t, int64_t first, int64_t last) { partial[chunk] += sum_of_squares(gradients[t], first, last); });
  });
  double sum = 0;
  for (int64_t c = 0; c < chunks; ++c) sum += partial[c];
  clip_to_norm(launch.out().as<double>(), m::sqrt(sum), double(launch.reals[0]));
}

void write_control(const Launch& launch) {
  std::copy_n(launch.reals, launch.ints[1], launch.out().as<double>() + launch.ints[0]);
}

}  // namespace pb::kernels
