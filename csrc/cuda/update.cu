// The table of updates, and the choice of their kernels by compute type.
#include "cuda/update.cuh"

namespace pb::cuda {
namespace {

// A row with its kernels.
struct DeviceUpdate : kernels::Update {
  UpdateRow floats, doubles;
};

void run_update(const Launch& launch) {
  const auto& op = static_cast<const DeviceUpdate&>(*static_cast<const kernels::Update*>(launch.table));
  int floats = 0, doubles = 0;
  for (int t = 0; t < launch.ints[0]; ++t) {
    if (!launch.in(t).data) continue;
    if (compute_type(launch.in(t).dtype) == Compute::f32) ++floats;
    else ++doubles;
  }
  Copies copies;
  if (floats > 0 || doubles == 0) op.floats.update(launch, floats, doubles == 0, copies);
  if (doubles > 0) op.doubles.update(launch, doubles, true, copies);
}

void run_measure(const Launch& launch) {
  const auto& op = static_cast<const DeviceUpdate&>(*static_cast<const kernels::Update*>(launch.table));
  Copies copies;
  op.floats.measure(launch, copies);
  op.doubles.measure(launch, copies);
}

std::vector<DeviceUpdate> device_updates() {
  const UpdateRows floats = update_rows<float>(), doubles = update_rows<double>();
  std::vector<DeviceUpdate> rows;
  kernels::each_update([&](auto rule, const char* name, const char* ratio) {
    const size_t k = rows.size();
    rows.push_back(
        {kernels::entry<typename decltype(rule)::type>(name, run_update, ratio, run_measure), floats[k], doubles[k]});
  });
  return rows;
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

// Threads compute whole chunks of each part.
void executed_update(const Launch& launch, Counts& work) {
  const int64_t members = launch.ints[1];
  work = {};
  for (int t = 0; t < launch.ints[0]; ++t) {
    const Entry entry(launch, t);
    const View& g = entry.gradient();
    if (!g.data) continue;
    const int64_t part = g.size() / members;
    const bool floats = compute_type(g.dtype) == Compute::f32;
    const int64_t elements = members * (floats ? cuda::whole_chunks<float>(part) : cuda::whole_chunks<double>(part));
    work.add(static_cast<const Update*>(launch.table)->counts, elements);
    if (entry.delta().data) work.adds += elements;
    if (entry.average().data && !launch.ints[2]) work.adds += elements, work.multiplies += 2 * elements;
  }
}

// Besides the squares: additions in all lanes of a warp for each block of elements and for its neighbours, in all threads for the
// warps of a chunk, and in the last block for the chunks.
void executed_measure(const Launch& launch, Counts& work) {
  using cuda::kWarp;
  for (int t = 0; t < launch.ints[0]; ++t) {
    const View& g = launch.in(t);
    if (!g.data) continue;
    const int64_t members = launch.ints[1], part = g.size() / members, blocks = order_blocks(part);
    const int64_t chunks = (part + cuda::kRatioChunk - 1) / cuda::kRatioChunk, each = cuda::kRatioChunk / cuda::kRatioWarps;
    const int64_t warps = (part + each - 1) / each;
    const int64_t adds = blocks * kWarp * (cuda::kShare - 1 + 5) + (blocks - warps) * kWarp + chunks * cuda::kThreads * 3;
    work.adds += 2 * (members * (adds + cuda::combinations_of_results(chunks)) - g.size());
  }
}

const std::vector<const Update*>& updates() {
  static const std::vector<cuda::DeviceUpdate> rows = cuda::device_updates();
  static const std::vector<const Update*> table = [] {
    std::vector<const Update*> entries;
    for (const Update& row : rows) entries.push_back(&row);
    return entries;
  }();
  return table;
}

}  // namespace pb::kernels
