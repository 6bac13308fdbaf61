// Copies at the borders of a graph. A graph fixes the addresses of its operands. An input whose address changes at every replay is
// therefore copied into memory of the graph, and a result is copied from there to the caller's memory. The copies are kernel nodes
// of the graph, whose arguments are changed in place. That costs the host a microsecond; a new graph would cost a hundred.
#pragma once
#include <vector>

#include "cuda/launch.cuh"

namespace pb::cuda {

// `rows` runs of `bytes` bytes each. The runs are from_stride bytes apart at the source and to_stride bytes apart at the target.
struct Piece {
  char* to;
  const char* from;
  int64_t bytes, rows, to_stride, from_stride;
};

// The copies of one graph, as nodes that can be changed.
class SlotCopies {
 public:
  // Launches kernels that copy these pieces, into the graph that is being captured from the current device's stream.
  void capture(const std::vector<Piece>& pieces);
  // Changes the pieces that later launches of the graph copy. Their number must not change. Does nothing for pieces that are the
  // same.
  void change(cudaGraphExec_t exec, const std::vector<Piece>& pieces);

 private:
  std::vector<Piece> pieces_;
  std::vector<cudaGraphNode_t> nodes_;  // one node for every kMostPieces pieces
};

}  // namespace pb::cuda
