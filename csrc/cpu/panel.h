// Tiles of a product whose rows are read where they are, and whose columns are a panel of a few vectors.
#pragma once
#include <cstdint>

namespace pb::cpu {

// The rows of `a` and the columns of `b` that a tile reads. The rows of b are contiguous.
template <class T> struct PanelTile {
  int64_t k;
  const T* a;
  int64_t down, across;
  const T* b;
  int64_t ldb;
  const T* bias;
  T* out;
  int64_t ldc;
  int64_t columns;  // columns of the result; the vectors of b may have more
  bool add;         // add to the content of out
};

// Computes all rows of a panel of 1, 2 or 4 vectors, in tiles that are as high as registers allow. T is float or double.
template <class T, int kVectors> void run_rows(const PanelTile<T>& t, int64_t rows);

}  // namespace pb::cpu
