// How a GPU computes a convolution: as products whose second factor is gathered from the source while it is multiplied.
#pragma once
#include <vector>

#include "families/conv.h"
#include "families/matmul.h"
#include "families/order.h"

namespace pb::cuda {

constexpr int kConvStep = 16;                             // steps of the contraction that are in shared memory at a time
constexpr int64_t kConvSlice = 4 * kernels::kOrderBlock;  // steps that a block of threads adds up; slices are added after it
constexpr int conv_tile(DType dtype) { return dtype == DType::f64 ? 32 : 64; }  // rows and columns of a tile

// Numbers that an index is made of: index = (first * length[0] + second) * length[1] + third.
struct ConvIndex {
  int64_t count;
  int64_t length[2];
};

// For each group: out[m, n] = sum over k of a[m, k] b[k, n]. k and n are (channel or image, down, across). Strides are in bytes.
struct ConvGemm {
  int64_t groups, m;
  ConvIndex n, k;
  const char *a, *b;
  char* out;
  const char* bias;                      // of each row of each group, or null
  int64_t bias_step;                     // from row to row
  int64_t a_group, a_row, a_k[3];        // strides of a
  int64_t b_group, b_n, b_k;             // strides of b along the first number of n and of k
  int64_t at[2], by_n[2], by_k[2];       // element of the source, down and across: at + number of n by_n + number of k by_k
  int64_t length[2], stride[2];          // of the source, down and across
  int64_t out_group, out_row, out_n[3];  // strides of the result
};

// The products of each op. convolution_input has one for each remainder of the position by the stride.
ConvGemm gemm_of_convolution(const Launch& launch);
std::vector<ConvGemm> gemms_of_convolution_input(const Launch& launch);
ConvGemm gemm_of_convolution_weight(const Launch& launch);

}  // namespace pb::cuda
