// Batch, group and instance norm on a GPU: layer norm of rows, each with the weights and biases of its channels. A row over the batch
// is copied to be contiguous, unless each of its pieces is a single element. The gradients of weight and bias are two reductions.
#include "families/channel_norm.h"

#include "cuda/row_launch.cuh"
#include "families/executed.h"
#include "families/norm_rows.h"
#include "families/reduce.h"

namespace pb::cuda {
namespace {

using kernels::ChannelRows;

// A vector with a number for each channel. Without one, reads give `otherwise`.
struct OfChannels {
  const char* data = nullptr;
  int64_t step = 0;
  DType dtype = DType::f32;

  OfChannels() = default;
  explicit OfChannels(const View& v) : data(v.data), step(v.stride[0]), dtype(v.dtype) {}
};
template <class T> struct ChannelVector {
  using C = acc_t<T>;
  OfChannels of;
  int64_t first, apart;  // the channel of the row's first piece, and 1 if the next piece belongs to the next channel
  const Ratio& space;
  C otherwise;
  template <class I> __device__ __forceinline__ C operator[](ElementPosition<I> i) const {
    if (!of.data) return otherwise;
    return read<T>(of.dtype, of.data + (first + (apart ? space.divide(i.column) : 0)) * of.step);
  }
};

struct ChannelSet {
  OfChannels weight, bias;
  double eps;
  int64_t groups, pieces;
  Ratio space, by_groups;

  ChannelSet(const ChannelRows& r, double eps)
      : eps(eps), groups(r.groups), pieces(r.pieces()), space(r.space, r.length()), by_groups(r.groups, r.rows()) {}
  template <class T> __device__ ChannelVector<T> vector(const OfChannels& of, int64_t row, acc_t<T> otherwise) const {
    const int64_t first = groups ? (row - by_groups.divide(row) * groups) * pieces : row;
    return {of, first, groups ? 1 : 0, space, otherwise};
  }
};

// The running values of batch_norm. Its rows are the channels.
struct RunningValues {
  char *mean = nullptr, *variance = nullptr;
  DType mean_dtype = DType::f32, variance_dtype = DType::f32;
  int64_t* batches = nullptr;  // increased by the thread of the first channel, unless all channels read it
  bool is_even = false;        // true if all batches have the same share
  double share = 0, rest = 0, unbias = 0;

  // Called by one thread for each channel.
  template <class C> __device__ void move(int64_t channel, C new_mean, C new_variance) const {
    const kernels::Movement<C> by(share, rest, unbias, is_even ? *batches : 0);
    if (mean) {
      char* const at = mean + channel * size_of<C>(mean_dtype);
      store_as<C>(mean_dtype, at, by.mean(load_as<C>(mean_dtype, at), new_mean));
    }
    if (variance) {
      char* const at = variance + channel * size_of<C>(variance_dtype);
      store_as<C>(variance_dtype, at, by.variance(load_as<C>(variance_dtype, at), new_variance));
    }
    if (batches && !is_even && channel == 0) ++*batches;
  }
};
__global__ void count_batch(int64_t* batches) { ++*batches; }

struct ChannelNorm : ChannelSet {
  static constexpr int kOperands = 2;
  using ChannelSet::ChannelSet;
  RunningValues running;
  bool moves = false;

  template <class T>
  __device__ void operator()(const RegisterRow<T>& over, const Line* line, int64_t row) const {
    using C = acc_t<T>;
    C x[kShare];
    const auto kept = over.load(line[1], x);
    C mean = 0, variance = 0;
    kernels::Norm<true>()(over, kept, vector<T>(weight, row, C(1)), vector<T>(bias, row, C(-0.0)), C(eps), kept,
                          [&](C m, C v) { mean = m, variance = v; });
    over.store(line[0], x);
    if (moves && over.active && over.team.rank == 0) running.move(row, mean, variance);
  }
  template <class T> __device__ void operator()(const Streamed<T>& over, const Line* line, int64_t row) const {
    using C = acc_t<T>;
    C mean = 0, variance = 0;
    kernels::Norm<true>()(over, over.memory_row(line[1]), vector<T>(weight, row, C(1)), vector<T>(bias, row, C(-0.0)), C(eps),
                          over.written(line[0]), [&](C m, C v) { mean = m, variance = v; });
    if (moves && over.team.rank == 0) running.move(row, mean, variance);
  }
};

// Writes gx, and g z for the gradient of the weight.
struct ChannelNormPullback : ChannelSet {
  static constexpr int kOperands = 4;  // gx, the terms, g, x
  using ChannelSet::ChannelSet;

  template <class T, class Over, class G, class X>
  __device__ __forceinline__ void pull(const Over& over, const Line* line, int64_t row, const G& g, const X& x) const {
    using C = acc_t<T>;
    const auto w = vector<T>(weight, row, C(1));
    const kernels::Spread<C> s = kernels::spread_of(over, x);
    const C mean = s.mean, r = kernels::inverse_deviation(s, over, x, C(eps));
    const C along = over.mean(over.template fold<sum_reduce>([&](auto i) { return C(g[i] * w[i]); }));
    const C across = over.mean(over.template fold<sum_reduce>([&](auto i) { return C(g[i] * w[i] * ((x[i] - mean) * r)); }));
    if (!over.active) return;
    over.each([&](auto i) {
      const C cotangent = g[i], h = cotangent * w[i], z = (x[i] - mean) * r;
      line[0].template store<T>(i.column, r * (h - along - z * across));
      store_as<C>(line[1].dtype, line[1].data + i.column * line[1].step, cotangent * z);
    });
  }
  template <class T>
  __device__ void operator()(const RegisterRow<T>& over, const Line* line, int64_t row) const {
    acc_t<T> g[kShare], x[kShare];
    const auto g_row = over.load(line[2], g), x_row = over.load(line[3], x);
    pull<T>(over, line, row, g_row, x_row);
  }
  template <class T> __device__ void operator()(const Streamed<T>& over, const Line* line, int64_t row) const {
    pull<T>(over, line, row, over.memory_row(line[2]), over.memory_row(line[3]));
  }
};

// Returns (N, C, S) with the axes of rows first: (C, N, S) for a row over the batch.
View turned(const View& v, bool over_batch) {
  View t = v;
  if (over_batch) std::swap(t.shape[0], t.shape[1]), std::swap(t.stride[0], t.stride[1]);
  return t;
}
// Returns contiguous memory of (N, C, S), or of (C, N, S), as its rows.
View as_rows(View v, const ChannelRows& r) {
  const int64_t step = item_size(v.dtype);
  v.ndim = 2, v.shape[0] = r.rows(), v.shape[1] = r.length(), v.stride[0] = r.length() * step, v.stride[1] = step;
  return v;
}
// Returns the rows of v, which may be a copy.
View rows_of(const View& v, const ChannelRows& r, Scratch& scratch) {
  View t = turned(v, !r.groups);
  if (!r.groups && r.space == 1) return t.ndim = 2, t;
  return as_rows(contiguous_as(v.dtype, t, scratch), r);
}
// Returns rows to be written, which are `out` itself or a copy that finish() moves there.
View rows_to(const View& out, const ChannelRows& r, Scratch& scratch) {
  View t = turned(out, !r.groups);
  if (!r.groups && r.space == 1) return t.ndim = 2, t;
  if (r.groups || r.batch == 1) return as_rows(out, r);
  return as_rows(contiguous_view(scratch.take_bytes(size_t(out.bytes())), out.dtype, t), r);
}
void finish(const View& out, const View& rows, const ChannelRows& r) {
  const View t = turned(out, !r.groups);
  if (rows.data != out.data) assign(t, contiguous_view(rows.data, out.dtype, t));
}

void norm(const Launch& launch, const RunningValues* running = nullptr) {
  const View& x = launch.in();
  const ChannelRows r(x, launch.ints[2]);
  ChannelNorm row(r, launch.reals[0]);
  if (running) row.running = *running, row.moves = true;
  int next = 1;
  if (launch.ints[0]) row.weight = OfChannels(launch.in(next++));
  if (launch.ints[1]) row.bias = OfChannels(launch.in(next));
  Scratch scratch;
  const View operands[] = {rows_to(launch.out(), r, scratch), rows_of(x, r, scratch)};
  run_rows(operands, operands[1], row);
  finish(launch.out(), operands[0], r);
}

void norm_and_move(const Launch& launch) {
  const View &mean = launch.out(1), &variance = launch.out(2), &batches = launch.out(3);
  RunningValues running;
  running.mean = mean.data, running.mean_dtype = mean.dtype;
  running.variance = variance.data, running.variance_dtype = variance.dtype;
  running.batches = batches.as<int64_t>(), running.is_even = launch.ints[3] != 0;
  running.share = launch.reals[1], running.rest = launch.reals[2], running.unbias = launch.reals[3];
  const bool is_empty = launch.in().size() == 0;
  if (batches.data && (running.is_even || is_empty)) start(count_batch, dim3(1), 1, 0, running.batches);
  if (!is_empty) norm(launch, &running);
}

void norm_pullback(const Launch& launch) {
  const View &g = launch.in(0), &x = launch.in(1), &gweight = launch.out(1);
  const ChannelRows r(x, launch.ints[1]);
  const DType wide = x.dtype == DType::f64 ? DType::f64 : DType::f32;
  ChannelNormPullback row(r, launch.reals[0]);
  if (launch.ints[0]) row.weight = OfChannels(launch.in(2));
  Scratch scratch;
  View terms = turned(x, !r.groups);
  terms = contiguous_view(scratch.take_bytes(size_t(x.size() * item_size(wide))), wide, terms);
  const View operands[] = {rows_to(launch.out(), r, scratch), as_rows(terms, r), rows_of(g, r, scratch),
                           rows_of(x, r, scratch)};
  run_rows(operands, operands[3], row);
  finish(launch.out(), operands[0], r);
  View sums = gweight;
  if (wide != x.dtype) sums = contiguous_view(scratch.take_bytes(size_t(r.channels * item_size(wide))), wide, gweight);
  kernels::sum_over(sums, terms, r.groups ? 5 : 6);
  if (wide != x.dtype) assign(gweight, sums);
  kernels::sum_over(launch.out(2), g, 5);
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void run_channel_norm(const Launch& launch) {
  if (launch.in().size()) cuda::norm(launch);
}
void run_batch_norm(const Launch& launch) { cuda::norm_and_move(launch); }
void run_channel_norm_pullback(const Launch& launch) {
  if (launch.in().size()) return cuda::norm_pullback(launch);
  cuda::assign_number(launch.out(1), 0), cuda::assign_number(launch.out(2), 0);
}

namespace {

// Returns the walks over the rows, as if they were those of a layer norm.
Walks walks_of_channels(const Launch& launch, int64_t groups) {
  View views[] = {launch.out(), launch.in()};
  const ChannelRows r(launch.in(), groups);
  views[1].ndim = 2, views[1].shape[0] = r.rows(), views[1].shape[1] = r.length();
  return walks_of_norm({launch.kernel, 1, 1, views, {}, {}, nullptr});
}

}  // namespace

// A row without a weight or a bias is multiplied by 1, and -0.0 is added to it.
void executed_channel_norm(const Launch& launch, Counts& work) {
  if (launch.in().size()) work = work_of_layer_norm(true, true, walks_of_channels(launch, launch.ints[2]));
}
void executed_batch_norm(const Launch& launch, Counts& work) {
  executed_channel_norm(launch, work);
  if (launch.in().size()) work.add(work_of_movement(launch, launch.in().shape[1]));
}
// All teams reduce four times; only those with a row write. The gradients of weight and bias are sums over the elements.
void executed_channel_norm_pullback(const Launch& launch, Counts& work) {
  if (launch.in().size() == 0) return;
  const ChannelRows r(launch.in(), launch.ints[1]);
  const Walks walks = walks_of_channels(launch, launch.ints[1]);
  const int64_t written = r.rows() * r.length();
  work = {};
  work.adds = 2 * walks.elements + 4 * walks.combines + walks.walks + 3 * written + 2 * (written - r.channels);
  work.multiplies = 5 * (walks.elements + written) + 2 * walks.walks;
  work.special = 5 * walks.walks;
}

}  // namespace pb::kernels
