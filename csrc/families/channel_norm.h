// Norms of (N, C, S), with a weight and a bias for each of the C channels: batch, group and instance norm.
#pragma once
#include "families/rows.h"

namespace pb::kernels {

// channel_norm: out: y. in: x, weight, bias.
// channel_norm_pullback: out: gx, gweight, gbias. in: g, x, weight.
// x, g, y and gx have shape (N, C, S), the others (C,). Inputs are floats of one dtype, of any strides; outputs are contiguous.
// reals[0]: eps. ints: 1 if there is a weight, 1 if there is a bias (not in the pullback), and the number of groups of channels that
// an example is cut into, each with a separate mean; 0 gives each channel one mean over the batch.
// The gradients of weight and bias are sums over N and S, as a reduction computes them.
// batch_norm: channel_norm for 0 groups, which also moves running values towards the mean and the unbiased variance of each channel.
// out: y; running_mean and running_var, contiguous (C,) with the compute type of x; num_batches_tracked, one int64, which is
// increased by 1. in: x, weight, bias, and the last three outputs again, because they are read. Those that are not given have the
// size 0. ints[3]: 1 if the share of the new statistics is 1 / num_batches_tracked. Otherwise it is reals[1], and reals[2] is 1 less
// that share. reals[3]: the factor that makes the variance unbiased.
extern const Kernel channel_norm, channel_norm_pullback, batch_norm;

// Each backend defines the following functions.
void run_channel_norm(const Launch& launch);
void run_batch_norm(const Launch& launch);
void run_channel_norm_pullback(const Launch& launch);
// Turn the work of the formula into the work that the kernel does, like the functions of families/executed.h.
void executed_channel_norm(const Launch& launch, Counts& work);
void executed_batch_norm(const Launch& launch, Counts& work);
void executed_channel_norm_pullback(const Launch& launch, Counts& work);

// The rows that are normalized. A row consists of pieces: S neighbours, which belong to one channel.
struct ChannelRows {
  int64_t batch, channels, space, groups;

  ChannelRows(const View& x, int64_t groups) : batch(x.shape[0]), channels(x.shape[1]), space(x.shape[2]), groups(groups) {}
  int64_t rows() const { return groups ? batch * groups : channels; }
  int64_t pieces() const { return groups ? channels / groups : batch; }
  int64_t length() const { return pieces() * space; }
  int64_t channel(int64_t row, int64_t piece) const { return groups ? row % groups * pieces() + piece : row; }
  // Returns the position of a piece's first element in a contiguous (N, C, S).
  int64_t start(int64_t row, int64_t piece) const { return (groups ? row * pieces() + piece : piece * channels + row) * space; }
};

// How running values move. C: the compute type.
template <class C> struct Movement {
  C share, rest, unbias;

  // number: the number of this batch, from 1 on, if all batches have the same share; otherwise 0.
  PB_HD Movement(double share, double rest, double unbias, int64_t number)
      : share(number ? C(1) / C(number) : C(share)), rest(number ? C(1) - this->share : C(rest)), unbias(C(unbias)) {}
  PB_HD C mean(C old, C mean) const { return old * rest + mean * share; }
  PB_HD C variance(C old, C variance) const { return old * rest + variance * unbias * share; }
};

// Returns the work of moving the running values of a launch, if this many threads compute the share of a batch among all.
Counts work_of_movement(const Launch& launch, int64_t threads);

// Return the work of layer norm and of its pullback on rows that are walked so. The pullback adds each term of the gradients of weight
// and bias to a sum.
struct Walks;
Counts work_of_layer_norm(bool weight, bool bias, const Walks& walks);
Counts work_of_layer_norm_pullback(bool weight, const Walks& walks);

}  // namespace pb::kernels
