// A plan as CUDA graphs: captured from the stream at the first run of a kind, and launched at each.
#include <map>
#include <memory>
#include <optional>
#include <type_traits>
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

struct DestroyGraph {
  void operator()(cudaGraphExec_t exec) const { (void)cudaGraphExecDestroy(exec); }
};
struct Instance {
  int phase;  // of its launches; kOther where they are of several
  std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, DestroyGraph> exec;
};

// A graph has the addresses of its memory in it, so there is one for each set of addresses of the given blocks, and for so many
// passes. Tensors that come and go mostly do so at a few addresses. Where phases are timed, each stretch of one is a graph.
class GraphProgram : public Program {
 public:
  explicit GraphProgram(Plan& plan) : plan_(plan) {}

  bool takes(const Span* given, int64_t passes) override {
    if (passes * int64_t(plan_.steps.size()) > kMostNodes) return false;
    return graphs_.size() < kMostGraphs || graphs_.count(key_of(given, passes)) > 0;
  }

  void run(const Span* given, int64_t passes, Progress& progress) override {
    progress.passes = progress.begun = 0;
    throw_fault();
    std::vector<Instance>& instances = graphs_[key_of(given, passes)];
    if (instances.empty()) instances = build(given, passes);
    for (const Instance& instance : instances) {
      if (door.ledger) door.ledger->enter(instance.phase);
      check(cudaGraphLaunch(instance.exec.get(), stream()), "launching a graph");
    }
    if (door.ledger) door.ledger->enter(door.charge.phase);
    progress.passes = int(passes);
  }

 private:
  using Key = std::vector<int64_t>;

  static bool by_phase() { return door.ledger && door.ledger->has_borders; }

  Key key_of(const Span* given, int64_t passes) const {
    Key key{passes, by_phase()};
    for (size_t k = 0; k < plan_.given.size(); ++k) {
      key.push_back(int64_t(reinterpret_cast<intptr_t>(given[k].data)));
      key.push_back(given[k].stride);
    }
    return key;
  }

  std::vector<Instance> build(const Span* given, int64_t passes) {
    const ChargeKept kept;
    const GraphMemory::Use working_memory(memory_);
    const bool cut = by_phase();
    std::vector<Instance> instances;
    std::optional<Capturing> capture;
    int phase = kOther;
    const auto end = [&] {
      if (capture) instances.push_back({phase, decltype(Instance::exec)(instantiated(capture->end()))});
      capture.reset();
    };
    for (int64_t pass = 0; pass < passes; ++pass) {
      plan_.move_given(given, pass);
      for (const Step& step : plan_.steps) {
        if (cut && step.charge.phase != phase) end();
        if (cut) phase = step.charge.phase;
        if (!capture) capture.emplace();
        launch(step);
      }
    }
    if (instances.empty() && !capture) capture.emplace();  // nothing to do is a graph, too
    end();
    return instances;
  }

  static cudaGraphExec_t instantiated(cudaGraph_t graph) {
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
  std::map<Key, std::vector<Instance>> graphs_;
};

}  // namespace

std::unique_ptr<Program> compile(Plan& plan) { return std::make_unique<GraphProgram>(plan); }

}  // namespace pb
