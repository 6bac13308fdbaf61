// Concatenation and padding. Each takes one launch if the layouts of the operands allow it.
#include "cuda/copy.cuh"

namespace pb::cuda {
namespace {

// ---- concatenation

// An input, whose units follow those of the inputs before it in every row of the result. A row of the result spans the
// concatenated axis and all axes after it.
struct Input {
  const char* data;
  int64_t step, units, begin;  // bytes from row to row, units per row, the unit of the result's row at which the input begins
};
constexpr int kMaxInputs = 64;
struct Inputs {
  int count;
  Input input[kMaxInputs];
};

// Writes units [begin, begin + width) of every row of the result. The inputs must cover this range exactly.
template <class U>
__global__ void __launch_bounds__(kThreads)
    concat_units(int64_t n, U* out, int64_t row_units, int64_t begin, Ratio width, const __grid_constant__ Inputs inputs) {
  const int64_t i = thread_number();
  if (i >= n) return;
  const int64_t row = width.divide(i), at = begin + i - row * width.length;
  int k = 0;
  for (int high = inputs.count; high - k > 1;) {
    const int middle = (k + high) / 2;
    if (inputs.input[middle].begin <= at) k = middle;
    else high = middle;
  }
  const Input& input = inputs.input[k];
  out[row * row_units + at] = reinterpret_cast<const U*>(input.data + row * input.step)[at - input.begin];
}

// Returns true, and the rows in `input`, if the axes from `axis` on are contiguous and the axes before it collapse into one loop.
bool as_rows(const View& v, int axis, Input& input) {
  View before = v, after = v;
  before.ndim = axis;
  after.ndim = v.ndim - axis;
  for (int d = 0; d < after.ndim; ++d) after.shape[d] = v.shape[axis + d], after.stride[d] = v.stride[axis + d];
  collapse(&before, 1);
  if (before.ndim > 1 || !after.contiguous()) return false;
  input = {v.data, before.ndim ? before.stride[0] : 0, after.bytes(), 0};
  return true;
}

struct Row {
  int64_t bytes, count;
};
Row row_of(const View& out, int axis) {
  Row row{item_size(out.dtype), 1};
  for (int d = 0; d < out.ndim; ++d) (d < axis ? row.count : row.bytes) *= out.shape[d];
  return row;
}

void start_inputs(const View& out, const Row& row, Inputs& inputs) {
  uint64_t together = address(out) | uint64_t(row.bytes);
  for (int k = 0; k < inputs.count; ++k) {
    const Input& input = inputs.input[k];
    together |= reinterpret_cast<uintptr_t>(input.data) | uint64_t(input.step) | uint64_t(input.units) | uint64_t(input.begin);
  }
  const int64_t unit = unit_of(together);
  for (int k = 0; k < inputs.count; ++k) inputs.input[k].units /= unit, inputs.input[k].begin /= unit;
  const Input& last = inputs.input[inputs.count - 1];
  const int64_t begin = inputs.input[0].begin, width = last.begin + last.units - begin, n = row.count * width;
  visit_unit(unit, [&](auto u) {
    using U = decltype(u);
    start(concat_units<U>, blocks_for(n), kThreads, 0, n, out.as<U>(), row.bytes / unit, begin, Ratio(width, n), inputs);
  });
}

// ---- padding

struct Padding {
  int ndim;
  Ratio length[kMaxDims];  // axis lengths of the result
  int64_t before[kMaxDims], inside[kMaxDims], stride[kMaxDims];
};

template <class U>
__global__ void __launch_bounds__(kThreads)
    pad_units(int64_t n, U* out, const char* in, U value, const __grid_constant__ Padding padding) {
  const int64_t i = thread_number();
  if (i >= n) return;
  int64_t rest = i, offset = 0;
  bool within = true;
#pragma unroll
  for (int step = 0; step < kMaxDims; ++step) {
    const int d = padding.ndim - 1 - step;
    if (d < 0) break;
    int64_t at = rest;
    if (d > 0) {
      rest = padding.length[d].divide(at);
      at -= rest * padding.length[d].length;
    }
    at -= padding.before[d];
    within = within && uint64_t(at) < uint64_t(padding.inside[d]);
    offset += at * padding.stride[d];
  }
  out[i] = within ? *reinterpret_cast<const U*>(in + offset) : value;
}

// Reduces the number of axes of the padding. An axis without padding is merged into the axis before it if `in` steps through both
// with a single stride.
void merge_axes(View& out, View& in, int64_t* before) {
  int kept = 0;
  for (int d = 0; d < in.ndim; ++d) {
    const bool padded = out.shape[d] != in.shape[d];
    if (kept > 0 && !padded && in.shape[d] == 1) continue;
    if (kept > 0 && !padded && (in.stride[kept - 1] == in.stride[d] * in.shape[d] || in.shape[kept - 1] == 1)) {
      before[kept - 1] *= in.shape[d], in.shape[kept - 1] *= in.shape[d], out.shape[kept - 1] *= in.shape[d];
      in.stride[kept - 1] = in.stride[d];
    } else {
      before[kept] = before[d], in.shape[kept] = in.shape[d], out.shape[kept] = out.shape[d], in.stride[kept] = in.stride[d];
      ++kept;
    }
  }
  in.ndim = out.ndim = kept;
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

using namespace cuda;

void concat(const Launch& launch) {
  const int axis = int(launch.ints[0]);
  const View& out = launch.out();
  if (out.size() == 0) return;
  const Row row = row_of(out, axis);
  View place = out;
  Inputs inputs{};
  int64_t begin = 0;
  for (int k = 0; k < launch.inputs; ++k) {
    const View& in = launch.in(k);
    place.shape[axis] = in.shape[axis];
    if (in.size() == 0) continue;
    cuda::Input input;
    const bool fits = as_rows(in, axis, input);
    if (inputs.count && (!fits || inputs.count == kMaxInputs)) start_inputs(out, row, inputs), inputs.count = 0;
    input.begin = begin;
    if (fits) inputs.input[inputs.count++] = input;
    else assign(place, in);
    const int64_t bytes = in.shape[axis] * place.stride[axis];
    begin += bytes, place.data += bytes;
  }
  if (inputs.count) start_inputs(out, row, inputs);
}

void pad(const Launch& launch) {
  View out = launch.out(), in = launch.in();
  const int64_t n = out.size();
  if (n == 0) return;
  const int size = item_size(out.dtype);
  if (in.size() == 0) return assign_number(out, number_of(launch));
  int64_t before[kMaxDims] = {};
  for (int d = 0; d < in.ndim; ++d) before[d] = launch.ints[d];
  merge_axes(out, in, before);
  const int last = in.ndim - 1;
  int64_t unit = size;
  if (last >= 0 && in.stride[last] == size) {
    uint64_t together = address(out) | address(in);
    for (int d = 0; d < last; ++d) together |= uint64_t(in.stride[d]);
    unit =
        unit_of(together | uint64_t(out.shape[last] * size) | uint64_t(in.shape[last] * size) | uint64_t(before[last] * size));
    out.shape[last] = out.shape[last] * size / unit, in.shape[last] = in.shape[last] * size / unit;
    before[last] = before[last] * size / unit, in.stride[last] = unit;
  }
  const int64_t units = n * size / unit;
  Padding padding{};
  padding.ndim = in.ndim;
  for (int d = 0; d < in.ndim; ++d) {
    padding.length[d] = Ratio(out.shape[d], units);
    padding.before[d] = before[d], padding.inside[d] = in.shape[d], padding.stride[d] = in.stride[d];
  }
  visit_unit(unit, [&](auto u) {
    using U = decltype(u);
    start(pad_units<U>, blocks_for(units), kThreads, 0, units, out.as<U>(), in.data, repeated<U>(number_of(launch), size),
          padding);
  });
}

}  // namespace pb::kernels
