// The table of updates, and the choice of their kernels by compute type.
#include "cuda/update.cuh"

namespace pb::cuda {
namespace {

// A row with its kernels.
struct DeviceUpdate : kernels::Update {
  UpdateAll few, many, any, doubles;
  void (*measure_floats)(const Launch& launch, Copies& copies);
  void (*measure_doubles)(const Launch& launch, Copies& copies);
};
const DeviceUpdate& row_of(const Launch& launch) {
  return static_cast<const DeviceUpdate&>(*static_cast<const kernels::Update*>(launch.table));
}

void run_update(const Launch& launch) {
  int floats = 0, doubles = 0;
  bool lean = true;
  for (int t = 0; t < launch.ints[0]; ++t) {
    if (!launch.in(t).data) continue;
    if (compute_type(launch.in(t).dtype) == Compute::f32) ++floats, lean = lean && is_lean(kernels::Entry(launch, t));
    else ++doubles;
  }
  const DeviceUpdate& row = row_of(launch);
  Copies copies;
  if (floats > 0 || doubles == 0) (!lean ? row.any : floats <= kFewRuns ? row.few : row.many)(launch, doubles == 0, copies);
  if (doubles > 0) row.doubles(launch, true, copies);
}

void run_measure(const Launch& launch) {
  Copies copies;
  row_of(launch).measure_floats(launch, copies);
  row_of(launch).measure_doubles(launch, copies);
}

std::vector<DeviceUpdate> device_updates() {
  const auto few = update_rows<float, Reads::lean, kFewRuns>(), many = update_rows<float, Reads::lean, kManyRuns>();
  const auto any = update_rows<float, Reads::any, kManyRuns>(), doubles = update_rows<double, Reads::any, kManyRuns>();
  std::vector<DeviceUpdate> rows;
  kernels::each_update([&](auto rule, const char* name, const char* ratio) {
    using U = typename decltype(rule)::type;
    const size_t k = rows.size();
    rows.push_back({kernels::entry<U>(name, run_update, ratio, run_measure), few[k], many[k], any[k], doubles[k],
                    measure_tensors<U, float>, measure_tensors<U, double>});
  });
  return rows;
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void executed_update(const Launch&, Counts&) {}

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
