// A convolution as a product: the weights (rows, depth) times the elements that each tap of each channel meets (depth, positions).
// The second factor is never in memory as a whole: a thread packs one panel of positions after another, from a patch of the source.
#pragma once
#include <vector>

#include "cpu/conv_patch.h"
#include "cpu/panel.h"
#include "cpu/tile.h"
#include "math/counts.h"

namespace pb::cpu {

// The distances between neighbours in the result, in elements.
struct ConvStrides {
  int64_t image, group, row, down, across;
};

// For all images and groups: result[row, position] = sum over channels and taps of weights[row, channel, tap] times the source.
struct ConvProduct {
  int64_t images, groups, channels, rows;  // channels of the source, and of the result, in one group
  TapPositions axis[2];
  std::vector<int64_t> taps_at[2];  // the numbers of the taps along each axis, in the order of the contraction
  std::vector<int64_t> offsets[2];  // the offsets of these taps
  ConvStrides out;

  int64_t taps() const { return int64_t(offsets[0].size() * offsets[1].size()); }
  int64_t depth() const { return channels * taps(); }
  int64_t positions() const { return axis[0].count * axis[1].count; }
};

// The product that computes y, and the one that computes the elements of gx that these taps meet.
ConvProduct forward_product(const kernels::ConvShape& s);
ConvProduct input_product(const kernels::ConvShape& s, const kernels::InputTaps& down, const kernels::InputTaps& across);

// Computes the product. The source is contiguous. weights: (groups, rows, depth). bias: null, or one number for each row of each
// group. `out` is the first element of the result that belongs to the product.
template <class T>
void run_product(const ConvProduct& p, const T* source, const T* weights, const T* bias, T* out);
template <class T> Counts work_of_product(const ConvProduct& p);

// The same product for many small images, without the terms that are weights times zeros of the padding: true if that is worth it;
// the product, which returns for each two vectors of images if they must be computed by run_all_terms, because a sum is -0; and its
// work. All weights must be finite.
template <class T> bool leaves_out_padding(const ConvProduct& p);
template <class T>
std::vector<char> run_images(const ConvProduct& p, const T* source, const T* weights, const T* bias, T* out);
template <class T> Counts work_of_images(const ConvProduct& p);

// Computes gw (groups, out, in, taps) from contiguous x and g.
template <class T> void run_weight(const kernels::ConvShape& s, const T* x, const T* g, T* gw);
template <class T> Counts work_of_weight(const kernels::ConvShape& s);

}  // namespace pb::cpu
