// Implements captures and graphs. A graph runs its nodes in the order of capture or, with a seed, in a random order that the edges
// allow.
#include "cudasim/graph.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "cudasim/stream_state.h"

using cudasim::Capture;
using cudasim::Lock;
using cudasim::report;
using cudasim::streams;

namespace {

// True if the end of the origin depends on every node, including those of the streams that joined the capture.
bool joined(const Capture& capture) {
  std::vector<bool> before(capture.graph.nodes.size(), false);
  for (const size_t node : capture.origin->tail) before[node] = true;
  for (size_t node = before.size(); node-- > 0;) {
    if (!before[node]) continue;
    for (const size_t earlier : capture.graph.nodes[node].after) before[earlier] = true;
  }
  return std::all_of(before.begin(), before.end(), [](bool b) { return b; });
}

void run(const CUgraph_st& graph) {
  const auto& nodes = graph.nodes;
  if (streams().seed == 0) {
    for (const CUgraphNode_st& node : nodes) node.work.run();
    return;
  }
  std::vector<bool> done(nodes.size(), false);
  for (size_t left = nodes.size(); left > 0; --left) {
    std::vector<size_t> ready;
    for (size_t node = 0; node < nodes.size(); ++node) {
      const auto& after = nodes[node].after;
      if (!done[node] && std::all_of(after.begin(), after.end(), [&](size_t k) { return done[k]; })) ready.push_back(node);
    }
    const size_t node = ready[streams().random_numbers.below(unsigned(ready.size()))];
    nodes[node].work.run();
    done[node] = true;
  }
}

}  // namespace

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  if (const cudaError_t error = cudasim::injected("cudaStreamBeginCapture")) return error;
  const Lock lock(streams().mutex);
  cudaStream_t stream = streams().find(handle);
  if (!stream) return report(cudaErrorInvalidResourceHandle);
  if (stream == &streams().legacy) return report(cudaErrorStreamCaptureUnsupported);
  if (stream->capture) return report(cudaErrorIllegalState);
  auto capture = std::make_shared<Capture>();
  capture->origin = stream;
  capture->streams = {stream};
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  stream->capture = capture;
  stream->tail.clear();
  streams().captures.push_back(std::move(capture));
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  const Lock lock(streams().mutex);
  cudaStream_t stream = streams().find(handle);
  if (!stream || !graph) return report(cudaErrorInvalidValue);
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return report(cudaErrorIllegalState);
  if (capture->origin != stream) return cudasim::invalidate(*capture, cudaErrorStreamCaptureUnmatched);
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id()) {
    return report(cudaErrorStreamCaptureWrongThread);
  }
  const bool whole = joined(*capture);
  for (cudaStream_t member : capture->streams) {
    member->capture = nullptr;
    member->tail.clear();
  }
  auto& captures = streams().captures;
  captures.erase(std::find(captures.begin(), captures.end(), capture));
  if (!capture->valid) return report(cudaErrorStreamCaptureInvalidated);
  if (const cudaError_t error = cudasim::injected("cudaStreamEndCapture")) return error;
  if (!whole) return report(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st(std::move(capture->graph));
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  const Lock lock(streams().mutex);
  cudaStream_t stream = streams().find(handle);
  if (!stream || !status) return report(cudaErrorInvalidValue);
  *status = !stream->capture         ? cudaStreamCaptureStatusNone
            : stream->capture->valid ? cudaStreamCaptureStatusActive
                                     : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}

// Returns the nodes that the stream's next node would depend on. The capture's identity, graph and edge data are left out, because
// no caller needs them.
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long*, cudaGraph_t*,
                                     const cudaGraphNode_t** after, const cudaGraphEdgeData** edges, size_t* count) {
  if (const cudaError_t error = cudaStreamIsCapturing(handle, status)) return error;
  const Lock lock(streams().mutex);
  cudaStream_t stream = streams().find(handle);
  stream->tail_as_handles.clear();
  if (stream->capture)
    for (const size_t node : stream->tail) stream->tail_as_handles.push_back(&stream->capture->graph.nodes[node]);
  if (after) *after = stream->tail_as_handles.data();
  if (edges) *edges = nullptr;
  if (count) *count = stream->tail_as_handles.size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  if (const cudaError_t error = cudasim::injected("cudaGraphInstantiate")) return error;
  if (!exec || !graph) return report(cudaErrorInvalidValue);
  *exec = new CUgraphExec_st{std::make_shared<const CUgraph_st>(*graph)};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (const cudaError_t error = cudasim::injected("cudaGraphLaunch")) return error;
  if (!exec) return report(cudaErrorInvalidValue);
  return cudasim::submit(stream, {cudasim::WorkKind::kGraph, [graph = exec->graph] { run(*graph); }, nullptr});
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t) { return exec ? cudaSuccess : report(cudaErrorInvalidValue); }

// Launches that were submitted before this call keep their old arguments.
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, const cudaKernelNodeParams* params) {
  if (const cudaError_t error = cudasim::injected("cudaGraphExecKernelNodeSetParams")) return error;
  if (!exec || !node || !params || !params->kernelParams || node->number >= exec->graph->nodes.size())
    return report(cudaErrorInvalidValue);
  auto changed = std::make_shared<CUgraph_st>(*exec->graph);
  cudasim::Work& work = changed->nodes[node->number].work;
  if (work.kernel != params->func || !work.with) return report(cudaErrorInvalidValue);
  work = work.with(params->gridDim, params->blockDim, params->sharedMemBytes, params->kernelParams);
  exec->graph = std::move(changed);
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (!graph || !count) return report(cudaErrorInvalidValue);
  if (!nodes) {
    *count = graph->nodes.size();
    return cudaSuccess;
  }
  *count = std::min(*count, graph->nodes.size());
  for (size_t k = 0; k < *count; ++k) nodes[k] = &graph->nodes[k];
  return cudaSuccess;
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  if (!node || !type) return report(cudaErrorInvalidValue);
  *type = cudaGraphNodeType(int(node->work.kind));
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
