// Copies at the borders of a graph. A graph has the addresses of its operands in it; what a caller gives at an address that is new
// at every replay is copied into memory of the graph, and its results from there to where the caller wants them. The copies are
// kernels of the graph, whose arguments are changed in place: that costs the host a microsecond, and a new graph a hundred.
#pragma once
#include <vector>

#include "cuda/launch.cuh"

namespace pb::cuda {

// `rows` times `bytes` bytes, from `from_stride` and to `to_stride` bytes further each time.
struct Piece {
  char* to;
  const char* from;
  int64_t bytes, rows, to_stride, from_stride;
};

// The copies of one graph, as nodes that can be changed.
class SlotCopies {
 public:
  // Launches kernels that copy these pieces, into the graph that the current device's stream captures.
  void capture(const std::vector<Piece>& pieces);
  // Changes what later launches of the graph copy. There are as many pieces as were captured. Nothing is done if none has changed.
  void change(cudaGraphExec_t exec, const std::vector<Piece>& pieces);

 private:
  std::vector<Piece> pieces_;
  std::vector<cudaGraphNode_t> nodes_;  // one for every kMostPieces pieces
};

}  // namespace pb::cuda
