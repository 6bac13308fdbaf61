// A plan as CUDA graphs: captured from the stream at the first run of a kind, and launched at each.
#include <map>
#include <optional>
#include <vector>

#include "cuda/gemm.h"
#include "cuda/graph_memory.h"
#include "cuda/launch.cuh"
#include "kernels/fusions.h"
#include "launch/denormals.h"
#include "launch/plan.h"

namespace pb {

using namespace cuda;

const int64_t kArenaAlign = 512;

// A library chooses another kernel for a product with a bias; our own choice goes by the shape alone.
void fuse_launches(Plan& plan, Fusion fusion) {
  kernels::fuse_cross_entropy(plan);
  if (fusion == Fusion::fast) kernels::fuse_linear(plan, [](int64_t, int64_t, int64_t) { return true; });
  else kernels::fuse_linear(plan, [](int64_t m, int64_t n, int64_t k) { return !is_large(m, n, k); });
  if (fusion == Fusion::fast) kernels::fuse_accumulation(plan);
}

const char* why_not_chained(const Plan&, const Step&, const Step&) { return "a GPU's kernels are launched one by one"; }

namespace {

// On a stream of its own: what other threads and CuPy launch meanwhile is none of the graph's. Memory is asked of the driver where
// the cache has none, which only a relaxed capture allows.
class Capturing {
 public:
  Capturing() {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    here_.emplace(stream_);
    const cudaError_t error = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed);
    if (error != cudaSuccess) (void)cudaStreamDestroy(stream_);
    check(error, "beginning a graph");
  }
  ~Capturing() {
    cudaGraph_t graph = nullptr;
    if (!ended_ && cudaStreamEndCapture(stream_, &graph) == cudaSuccess && graph) (void)cudaGraphDestroy(graph);
    if (!ended_) (void)cudaGetLastError();
    (void)cudaStreamDestroy(stream_);
  }
  cudaGraph_t end() {
    cudaGraph_t graph = nullptr;
    ended_ = true;
    check(cudaStreamEndCapture(stream_, &graph), "ending a graph");
    return graph;
  }

 private:
  Stream stream_ = nullptr;
  std::optional<OnStream> here_;
  bool ended_ = false;
};

constexpr size_t kMostGraphs = 8;
constexpr int64_t kMostNodes = 20000;

// A graph has the addresses of its memory in it, so there is one for each set of addresses of the given blocks, and for so many
// passes. Tensors that come and go mostly do so at a few addresses.
class GraphProgram : public Program {
 public:
  explicit GraphProgram(Plan& plan) : plan_(plan) {}
  ~GraphProgram() override {
    for (const auto& [key, exec] : graphs_) (void)cudaGraphExecDestroy(exec);
  }

  bool takes(const Span* given, int64_t passes) override {
    if (passes * int64_t(plan_.steps.size()) > kMostNodes) return false;
    return graphs_.size() < kMostGraphs || graphs_.count(key_of(given, passes)) > 0;
  }

  void run(const Span* given, int64_t passes, Progress& progress) override {
    progress.passes = progress.begun = 0;
    throw_fault();
    cudaGraphExec_t& exec = graphs_[key_of(given, passes)];
    if (!exec) exec = build(given, passes);
    if (door.ledger) door.ledger->enter(kOther);  // all phases in one launch
    check(cudaGraphLaunch(exec, stream()), "launching a graph");
    if (door.ledger) door.ledger->enter(door.charge.phase);
    progress.passes = int(passes);
  }

 private:
  using Key = std::vector<int64_t>;

  Key key_of(const Span* given, int64_t passes) const {
    Key key{passes};
    for (size_t k = 0; k < plan_.given.size(); ++k) {
      key.push_back(int64_t(reinterpret_cast<intptr_t>(given[k].data)));
      key.push_back(given[k].stride);
    }
    return key;
  }

  cudaGraphExec_t build(const Span* given, int64_t passes) {
    const ChargeKept kept;
    const GraphMemory::Use working_memory(memory_);
    Capturing capture;
    for (int64_t pass = 0; pass < passes; ++pass) {
      plan_.move_given(given, pass);
      for (const Step& step : plan_.steps) launch(step);
    }
    const cudaGraph_t graph = capture.end();
    cudaGraphExec_t exec = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
    (void)cudaGraphDestroy(graph);
    check(error, "instantiating a graph");
    return exec;
  }

  static void launch(const Step& step) {
    door.charge = step.charge;
#if defined(PB_CUDASIM)
    run_flushed(step.launch);
#else
    step.launch.kernel->run(step.launch);
#endif
  }

  Plan& plan_;
  GraphMemory memory_;
  std::map<Key, cudaGraphExec_t> graphs_;
};

}  // namespace

std::unique_ptr<Program> compile(Plan& plan) { return std::make_unique<GraphProgram>(plan); }

}  // namespace pb
