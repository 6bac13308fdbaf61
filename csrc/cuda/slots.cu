// The kernel that copies the inputs and the results of a graph.
#include "cuda/slots.cuh"

#include <algorithm>

#include "cuda/copy.cuh"

namespace pb::cuda {
namespace {

constexpr int kMostPieces = 16;          // pieces that one kernel copies
constexpr int64_t kBytesOfBlock = 8192;  // two packs of 16 bytes for each of 256 threads
constexpr int64_t kMostBlocks = 512;     // blocks for one piece

// A piece and its unit, which is the widest access that its addresses, strides and length allow.
struct Copy {
  Piece piece;
  int unit;  // bytes
};
struct Copies {
  Copy of[kMostPieces];
};

// Block (b, k) copies every gridDim.x-th run of units of piece k. Each byte is read and written once. The few kilobytes that a step
// of a small network gets take no longer than the launch itself.
__global__ void __launch_bounds__(kThreads) copy_pieces(const __grid_constant__ Copies copies) {
  const Copy& copy = copies.of[blockIdx.y];
  const Piece& piece = copy.piece;
  const int64_t in_row = piece.bytes / copy.unit, all = in_row * piece.rows;
  const int64_t start = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, step = int64_t(gridDim.x) * blockDim.x;
  const auto move = [&](auto unit) {
    using U = decltype(unit);
    for (int64_t i = start; i < all; i += step) {
      const int64_t row = piece.rows == 1 ? 0 : i / in_row, at = (i - row * in_row) * int64_t(sizeof(U));
      *reinterpret_cast<U*>(piece.to + row * piece.to_stride + at) =
          *reinterpret_cast<const U*>(piece.from + row * piece.from_stride + at);
    }
  };
  switch (copy.unit) {
    case 1: return move(uint8_t{});
    case 2: return move(uint16_t{});
    case 4: return move(uint32_t{});
    case 8: return move(uint64_t{});
    default: return move(uint4{});
  }
}

// The launch that copies at most kMostPieces pieces, beginning with number `first`.
struct CopyLaunch {
  Copies copies{};
  dim3 blocks;

  CopyLaunch(const std::vector<Piece>& pieces, size_t first) {
    const size_t count = std::min(pieces.size() - first, size_t(kMostPieces));
    int64_t most = 1;
    for (size_t k = 0; k < count; ++k) {
      const Piece& p = pieces[first + k];
      uint64_t together = reinterpret_cast<uintptr_t>(p.to) | reinterpret_cast<uintptr_t>(p.from) | uint64_t(p.bytes);
      if (p.rows > 1) together |= uint64_t(p.to_stride) | uint64_t(p.from_stride);
      copies.of[k] = {p, int(unit_of(together))};
      most = std::max(most, (p.bytes * p.rows + kBytesOfBlock - 1) / kBytesOfBlock);
    }
    blocks = dim3(unsigned(std::min(most, kMostBlocks)), unsigned(count));
  }
};

bool same(const Piece& a, const Piece& b) {
  return a.to == b.to && a.from == b.from && a.bytes == b.bytes && a.rows == b.rows && a.to_stride == b.to_stride &&
         a.from_stride == b.from_stride;
}

}  // namespace

void SlotCopies::capture(const std::vector<Piece>& pieces) {
  pieces_ = pieces;
  for (size_t first = 0; first < pieces.size(); first += kMostPieces) {
    const CopyLaunch launch(pieces, first);
    start(copy_pieces, launch.blocks, dim3(kThreads), 0, launch.copies);
    cudaStreamCaptureStatus status;
    const cudaGraphNode_t* last = nullptr;
    size_t count = 0;
    check(cudaStreamGetCaptureInfo(stream(), &status, nullptr, nullptr, &last, nullptr, &count), "finding a graph's node");
    if (status != cudaStreamCaptureStatusActive || count != 1) throw Failure("a copy did not become a graph's node");
    nodes_.push_back(last[0]);
  }
}

void SlotCopies::change(cudaGraphExec_t exec, const std::vector<Piece>& pieces) {
  for (size_t node = 0; node < nodes_.size(); ++node) {
    const size_t first = node * kMostPieces, end = std::min(first + kMostPieces, pieces.size());
    if (std::equal(pieces.begin() + long(first), pieces.begin() + long(end), pieces_.begin() + long(first), same)) continue;
    CopyLaunch launch(pieces, first);
    void* arguments[] = {&launch.copies};
    cudaKernelNodeParams params{};
    params.func = reinterpret_cast<void*>(copy_pieces);
    params.gridDim = launch.blocks, params.blockDim = dim3(kThreads), params.kernelParams = arguments;
    check(cudaGraphExecKernelNodeSetParams(exec, nodes_[node], &params), "changing a graph's node");
    std::copy(pieces.begin() + long(first), pieces.begin() + long(end), pieces_.begin() + long(first));
  }
}

}  // namespace pb::cuda
