// The head of a classifier in one launch: the last linear layer, the cross entropy of all rows, and the gradient of the logits. A
// warp has a row of logits, one in each lane. Each lane multiplies by itself, in the order of families/order.h; if there are several
// blocks of terms, as many warps share the row, and each takes one of them.
#include "families/head.h"

#include "cuda/gemm_plain.cuh"
#include "cuda/head.h"
#include "cuda/whole_batch.cuh"
#include "families/executed.h"

namespace pb::cuda {
namespace {

constexpr int kWarps = int(kThreads / kWarp);
constexpr int kTermsAtOnce = 8;  // terms that a lane loads before it uses them

// A row of at most kWarp elements, one in each lane of a warp, for the formulas of families/rows.h.
template <class C> struct LaneRow {
  struct Rank {
    unsigned rank;
  };
  int n;
  bool active;  // true if there is such a row
  Rank team;

  struct Kept {
    C* v;
    __device__ C& operator[](int) const { return *v; }
  };
  template <class R, class F, class... Rows> __device__ __forceinline__ C fold(const F& f, const Rows&...) const {
    C a = no_term<R, C>();
    if (has()) a = f(lane());
#pragma unroll
    for (int half = int(kWarp) / 2; half > 0; half /= 2) a = R::combine(a, shuffle_xor(a, half));
    return a;
  }
  template <class F> __device__ void each(const F& f) const {
    if (has()) f(lane());
  }
  __device__ C mean(C sum) const { return sum / C(double(n)); }
  __device__ bool any(bool b) const { return __any_sync(kFull, b) != 0; }
  __device__ C at(const Kept& x, int64_t k) const { return shuffle_from(*x.v, int(k)); }
  template <class F> __device__ void change(const Kept& y, int64_t k, const F& f) const {
    if (lane() == int(k)) *y.v = f(*y.v);
  }
  __device__ int lane() const { return int(team.rank); }
  __device__ bool has() const { return lane() < n; }
};

template <class T> struct HeadJob {
  WholeBatch batch;
  Labels labels;
  Factor x, w;
  const char* bias;
  int64_t bias_step;
  const T* g;
  T *gradient, *logits;
  int classes, k, log_slices;  // 2^log_slices warps share a row
};

// Returns the sum of the products of terms [begin, end), in order.
template <class T> __device__ T multiply_terms(const char* x, int64_t x_step, const char* w, int64_t w_step, int begin,
                                               int end) {
  T sum = T(0);
  int i = begin;
  for (; i + kTermsAtOnce <= end; i += kTermsAtOnce) {
    T a[kTermsAtOnce], b[kTermsAtOnce];
#pragma unroll
    for (int t = 0; t < kTermsAtOnce; ++t) {
      a[t] = *reinterpret_cast<const T*>(x + (i + t) * x_step);
      b[t] = *reinterpret_cast<const T*>(w + (i + t) * w_step);
    }
#pragma unroll
    for (int t = 0; t < kTermsAtOnce; ++t) multiply_add(sum, a[t], b[t]);
  }
  for (; i < end; ++i)
    multiply_add(sum, *reinterpret_cast<const T*>(x + i * x_step), *reinterpret_cast<const T*>(w + i * w_step));
  return sum;
}

template <class T> __global__ void __launch_bounds__(kThreads) head_rows(const __grid_constant__ HeadJob<T> f) {
  __shared__ T of_slice[kWarps][kWarp];
  const int warp = int(threadIdx.x / kWarp), lane = int(threadIdx.x % kWarp), slices = 1 << f.log_slices;
  const int slice = warp & (slices - 1), row = int(blockIdx.x) * (kWarps >> f.log_slices) + (warp >> f.log_slices);
  const bool active = row < f.batch.rows, has = active && lane < f.classes;
  T sum = T(0);
  if (has) {
    const int begin = slice * int(kOrderBlock), end = begin + int(kOrderBlock);
    sum = multiply_terms<T>(f.x.data + row * f.x.outer, f.x.depth, f.w.data + lane * f.w.outer, f.w.depth, begin,
                            end < f.k ? end : f.k);
  }
  const int count = f.batch.mean ? f.batch.count_rows(f.labels) : 1;
  if (slices > 1) {
    of_slice[warp][lane] = sum;
    __syncthreads();
  }
  if (slice == 0) {
    T z[kWarps] = {sum};
    const int blocks = (f.k + int(kOrderBlock) - 1) / int(kOrderBlock);
#pragma unroll
    for (int s = 1; s < kWarps; ++s)
      if (s < blocks) z[s] = of_slice[warp + s][lane];
#pragma unroll
    for (int far = 1; far < kWarps; far *= 2)
#pragma unroll
      for (int s = 0; s + far < kWarps; s += 2 * far)
        if (s + far < blocks) z[s] = z[s] + z[s + far];
    T y = z[0];
    const int64_t at = int64_t(row) * f.classes + lane;
    if (has) {
      if (f.bias) y = y + *reinterpret_cast<const T*>(f.bias + lane * f.bias_step);
      f.logits[at] = y;
    }
    const LaneRow<T> over{f.classes, active, {unsigned(lane)}};
    Line label;
    label.data = const_cast<char*>(f.batch.labels) + (active ? row : 0) * f.batch.label_stride;
    const auto target = f.labels.read(over, label, row);
    const T g = f.batch.template share_of<T>(*f.g, count);
    const typename LaneRow<T>::Kept held{&y};
    const T loss = kernels::cross_entropy_and_gradient(over, g, held, target.label, T(f.labels.smoothing), held);
    if (has) f.gradient[at] = target.counts ? y : T(0);
    if (active && lane == 0) static_cast<T*>(f.batch.losses)[row] = target.counts ? loss : T(0);
  }
  if (f.batch.arrives_last()) f.batch.template finish<T>(count);
}

// How the rows of a head are divided among warps.
struct Division {
  int log_slices = 0;
  unsigned blocks;
  Division(int64_t rows, int64_t k) {
    while (kOrderBlock << log_slices < k) ++log_slices;
    blocks = unsigned((rows + (kWarps >> log_slices) - 1) / (kWarps >> log_slices));
  }
  int64_t rows() const { return int64_t{blocks} * (kWarps >> log_slices); }  // at least as many as there are
};

}  // namespace

bool is_head(int64_t rows, int64_t classes, int64_t k) {
  return is_one_launch(rows) && classes > 0 && k <= kWarps * kOrderBlock;
}

}  // namespace pb::cuda

namespace pb::kernels {

using namespace cuda;

void run_head(const Launch& launch) {
  const View &labels = launch.in(1), &x = launch.in(2), &w = launch.in(3);
  const int64_t rows = x.shape[0], k = x.shape[1];
  const Division division(rows, k);
  Scratch scratch;
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    HeadJob<T> job{{launch.ints[1] != 0, int(rows), labels.data, labels.stride[0], scratch.take<T>(rows), launch.out().data,
                    tickets(), x.dtype},
                   Labels(launch.ints[0], launch.reals[0], labels.dtype, fault_sink(launch)),
                   {x.data, x.stride[0], x.stride[1]},
                   {w.data, w.stride[0], w.stride[1]}};
    if (launch.inputs > 4) job.bias = launch.in(4).data, job.bias_step = launch.in(4).stride[0];
    job.g = launch.in(0).as<T>(), job.gradient = launch.out(1).as<T>(), job.logits = launch.out(2).as<T>();
    job.classes = int(w.shape[0]), job.k = int(k), job.log_slices = division.log_slices;
    start(head_rows<T>, dim3(division.blocks), dim3(kThreads), 0, job);
  };
  if (x.dtype == DType::f32) run(float());
  else run(double());
}

// Warps without a row work as the others do, except that they do not multiply.
void executed_head(const Launch& launch, Counts& work) {
  const View &x = launch.in(2), &w = launch.in(3);
  const int64_t rows = x.shape[0], k = x.shape[1], classes = w.shape[0], blocks = order_blocks(k);
  const int64_t warps = Division(rows, k).rows(), lanes = warps * int64_t{kWarp};
  work = work_of_loss_and_gradient(launch.reals[0] != 0, {lanes, warps * classes, lanes * 5, warps});
  work.fmas += rows * classes * k;
  work.adds += lanes * (blocks ? blocks - 1 : 0) + (launch.inputs > 4 ? rows * classes : 0) + additions_of_sum(rows);
  if (launch.ints[1]) work.special += lanes + 1;
}

}  // namespace pb::kernels
