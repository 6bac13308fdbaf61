// A plan as a CUDA graph: captured from the stream once, at the first run, and launched at each.
#include "cuda/graph_memory.h"
#include "cuda/launch.cuh"
#include "kernels/fusions.h"
#include "launch/denormals.h"
#include "launch/plan.h"

namespace pb {

using namespace cuda;

const bool kFollowsMoves = false;  // a graph has the addresses in it
const int64_t kArenaAlign = 512;

void fuse_launches(Plan& plan) { kernels::fuse_cross_entropy(plan); }
const char* why_not_chained(const Plan&, const Step&, const Step&) { return "a GPU's kernels are launched one by one"; }

namespace {

// Work that CuPy or another thread does meanwhile is none of the graph's; memory for it is asked of the driver where the cache
// has none, which only a relaxed capture allows.
class Capturing {
 public:
  Capturing() { check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeRelaxed), "beginning a graph"); }
  ~Capturing() {
    cudaGraph_t graph = nullptr;
    if (!ended_ && cudaStreamEndCapture(stream(), &graph) == cudaSuccess && graph) (void)cudaGraphDestroy(graph);
    if (!ended_) (void)cudaGetLastError();
  }
  cudaGraph_t end() {
    cudaGraph_t graph = nullptr;
    ended_ = true;
    check(cudaStreamEndCapture(stream(), &graph), "ending a graph");
    return graph;
  }

 private:
  bool ended_ = false;
};

class GraphProgram : public Program {
 public:
  explicit GraphProgram(const Plan& plan) : plan_(plan) {}
  ~GraphProgram() override {
    if (exec_) (void)cudaGraphExecDestroy(exec_);
  }

  void run(int& done) override {
    throw_fault();
    if (!exec_) build();
    done += int(plan_.steps.size());
    check(cudaGraphLaunch(exec_, stream()), "launching a graph");
  }

 private:
  void build() {
    struct Restore {
      Charge charge = door.charge;
      ~Restore() { door.charge = charge; }
    } restore;
    const GraphMemory::Use working_memory(memory_);
    Capturing capture;
    for (const Step& step : plan_.steps) {
      door.charge = step.charge;
#if defined(PB_CUDASIM)
      run_flushed(step.launch);
#else
      step.launch.kernel->run(step.launch);
#endif
    }
    const cudaGraph_t graph = capture.end();
    const cudaError_t error = cudaGraphInstantiate(&exec_, graph, 0);
    (void)cudaGraphDestroy(graph);
    check(error, "instantiating a graph");
  }

  const Plan& plan_;
  GraphMemory memory_;
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace

std::unique_ptr<Program> compile(const Plan& plan) { return std::make_unique<GraphProgram>(plan); }

}  // namespace pb
