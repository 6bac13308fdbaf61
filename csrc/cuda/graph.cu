// A plan as CUDA graphs: captured from a stream at the first run of a kind, and launched at every run.
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/gemm.h"
#include "cuda/graph_memory.h"
#include "cuda/launch.cuh"
#include "cuda/slots.cuh"
#include "families/fusions.h"
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

// A capture in progress, on a separate stream: what other threads and CuPy launch meanwhile does not become a part of the graph.
// Kernels may need memory that the cache does not have, and only a relaxed capture allows asking the driver for it.
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

constexpr size_t kMostGraphs = 4;  // with the addresses of the given blocks in them, for one number of passes
constexpr int64_t kMostNodes = 20000;
constexpr int kPatience = 3;  // times that a GPU may be too full for a graph, before no other is tried

struct DestroyGraph {
  void operator()(cudaGraph_t graph) const { (void)cudaGraphDestroy(graph); }
  void operator()(cudaGraphExec_t exec) const { (void)cudaGraphExecDestroy(exec); }
};
template <class T> using GraphPointer = std::unique_ptr<std::remove_pointer_t<T>, DestroyGraph>;

// One graph, ready to be launched.
struct Instance {
  int phase;                        // the phase of its launches; kOther if they belong to several
  GraphPointer<cudaGraph_t> graph;  // its nodes are named when their arguments change
  GraphPointer<cudaGraphExec_t> exec;
};

// PULLBACK_CUDA_GRAPHS=0: plans are launched kernel by kernel.
bool graphs_are_off() {
  static const bool off = [] {
    const char* text = std::getenv("PULLBACK_CUDA_GRAPHS");
    return text && *text == '0';
  }();
  return off;
}

// The slots of a graph that serves all addresses: memory for every given block.
class Slots {
 public:
  Slots(const Plan& plan, int64_t passes) : plan_(plan), passes_(passes) {
    for (const int block : plan.given) {
      inputs_ += plan.blocks[block].kind == BlockKind::input;
      blocks_.push_back(pb::allocate(size_t(plan.blocks[block].bytes * passes), Holder::graphs));
      spans_.push_back({static_cast<char*>(blocks_.back().data), plan.blocks[block].bytes});
    }
  }
  ~Slots() {
    for (const Allocation& block : blocks_) pb::release(block);
  }
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  const StridedAddress* spans() const { return spans_.data(); }
  void capture_inputs(const StridedAddress* given) { in_.capture(pieces(given, 0, inputs_)); }
  void capture_results(const StridedAddress* given) { out_.capture(pieces(given, inputs_, spans_.size())); }
  void change(cudaGraphExec_t first, cudaGraphExec_t last, const StridedAddress* given) {
    in_.change(first, pieces(given, 0, inputs_));
    out_.change(last, pieces(given, inputs_, spans_.size()));
  }

 private:
  // Inputs that no launch reads are not copied.
  std::vector<Piece> pieces(const StridedAddress* given, size_t begin, size_t end) const {
    std::vector<Piece> found;
    for (size_t k = begin; k < end; ++k) {
      const int64_t bytes = plan_.blocks[plan_.given[k]].bytes;
      if (bytes == 0 || plan_.operands_of[plan_.given[k]].empty()) continue;
      const StridedAddress &slot = spans_[k], &outside = given[k];
      const bool in = k < inputs_, whole = passes_ == 1 || outside.stride == bytes;
      const StridedAddress &to = in ? slot : outside, &from = in ? outside : slot;
      if (whole) found.push_back({to.data, from.data, bytes * passes_, 1, 0, 0});
      else found.push_back({to.data, from.data, bytes, passes_, to.stride, from.stride});
    }
    return found;
  }

  const Plan& plan_;
  const int64_t passes_;
  size_t inputs_ = 0;  // how many of the given blocks are inputs; the rest are results
  std::vector<Allocation> blocks_;
  std::vector<StridedAddress> spans_;
  SlotCopies in_, out_;
};

// Graphs of one plan, for one number of passes, all with or all without a cut between phases.
//
// A graph has the addresses of the given blocks in it. Tensors that come and go mostly do so at a few addresses, so the first
// kMostGraphs sets of them get a graph each. A caller that brings yet others (a list of batches on the device, losses that are kept)
// gets one graph for all: it copies what it is given into slots, and the results out of them.
struct Graphs {
  std::map<std::vector<int64_t>, std::vector<Instance>> by_address;
  std::vector<Instance> slotted;
  std::unique_ptr<Slots> slots;
};

// Runs a plan as graphs, or launch by launch if the driver does not take it as a graph.
class GraphProgram : public Program {
 public:
  explicit GraphProgram(Plan& plan) : plan_(plan) {
    if (graphs_are_off()) why_single_ = "PULLBACK_CUDA_GRAPHS=0";
  }

  void run(const StridedAddress* given, int64_t passes, Progress& progress) override {
    progress.passes = progress.begun = 0;
    throw_fault();
    const int64_t most = std::max<int64_t>(1, kMostNodes / std::max<int64_t>(1, int64_t(plan_.steps.size())));
    if (passes <= most) return run_at_once(given, passes, progress);
    for (int64_t pass = 0; pass < passes; ++pass) {
      std::vector<StridedAddress> moved(given, given + plan_.given.size());
      for (StridedAddress& span : moved) span.data += pass * span.stride;
      run_at_once(moved.data(), 1, progress);
      progress.passes = int(pass + 1), progress.begun = 0;
    }
  }

  ProgramState state() const override {
    ProgramState state;
    for (const auto& [key, graphs] : graphs_) state.graphs += int(graphs.by_address.size()) + !graphs.slotted.empty();
    state.nodes = nodes_, state.kernel_nodes = kernel_nodes_;
    state.why_single = why_single_;
    return state;
  }

 private:
  using Key = std::pair<int64_t, bool>;  // passes; whether phases are timed, so that each stretch of one is a graph

  static bool by_phase() { return door.ledger && door.ledger->has_phases; }

  void run_at_once(const StridedAddress* given, int64_t passes, Progress& progress) {
    if (!why_single_.empty()) return replay_singly(plan_, given, passes, progress, perform);
    const std::vector<Instance>* instances = nullptr;
    try {
      instances = &ready(given, passes);
    } catch (const std::exception& error) {  // CUDA, a library inside the capture, or the memory: the kernels can still run
      const bool full = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
      if (!full || ++times_full_ == kPatience) {
        why_single_ = error.what();
        gave_up = true;
        graphs_.clear();
      }
      return replay_singly(plan_, given, passes, progress, perform);
    }
    for (const Instance& instance : *instances) {
      if (door.ledger) door.ledger->enter(instance.phase);
      check(cudaGraphLaunch(instance.exec.get(), stream()), "launching a graph");
    }
    if (door.ledger) door.ledger->enter(door.attribution.phase);
    progress.passes = int(passes);
  }

  // The graph or graphs to launch, made if need be.
  const std::vector<Instance>& ready(const StridedAddress* given, int64_t passes) {
    Graphs& graphs = graphs_[{passes, by_phase()}];
    std::vector<int64_t> addresses;
    for (size_t k = 0; k < plan_.given.size(); ++k) {
      addresses.push_back(int64_t(reinterpret_cast<intptr_t>(given[k].data)));
      addresses.push_back(given[k].stride);
    }
    const auto found = graphs.by_address.find(addresses);
    if (found != graphs.by_address.end()) return found->second;
    if (graphs.by_address.size() < kMostGraphs) {
      std::vector<Instance> made = build(given, passes, nullptr, nullptr);
      return graphs.by_address[addresses] = std::move(made);
    }
    if (graphs.slotted.empty()) {
      auto slots = std::make_unique<Slots>(plan_, passes);
      graphs.slotted = build(slots->spans(), passes, slots.get(), given);
      graphs.slots = std::move(slots);
    }
    graphs.slots->change(graphs.slotted.front().exec.get(), graphs.slotted.back().exec.get(), given);
    return graphs.slotted;
  }

  // `operands`: where the given blocks are while the graph runs. With slots those are their memory, and the graph copies from and to
  // `outside`.
  std::vector<Instance> build(const StridedAddress* operands, int64_t passes, Slots* slots, const StridedAddress* outside) {
    const RestoreAttribution kept;
    const GraphMemory::Use working_memory(memory_);
    const bool cut = by_phase();
    std::vector<Instance> instances;
    std::optional<Capturing> capture;
    int phase = kOther;
    nodes_ = kernel_nodes_ = 0;
    const auto end = [&] {
      if (!capture) return;
      const cudaGraph_t graph = capture->end();
      capture.reset();
      instances.push_back(instantiated(phase, graph));
    };
    const auto begin = [&](int next) {
      if (cut && next != phase) end();
      if (cut) phase = next;
      if (!capture) capture.emplace();
    };
    if (slots) begin(plan_.steps.empty() ? kOther : plan_.steps.front().attribution.phase), slots->capture_inputs(outside);
    for (int64_t pass = 0; pass < passes; ++pass) {
      plan_.move_given(operands, pass);
      for (const Step& step : plan_.steps) {
        begin(step.attribution.phase);
        door.attribution = step.attribution;
        launch(step);
      }
    }
    if (!capture) capture.emplace();  // nothing to do is a graph, too
    if (slots) slots->capture_results(outside);
    end();
    return instances;
  }

  Instance instantiated(int phase, cudaGraph_t captured) {
    Instance made{phase, GraphPointer<cudaGraph_t>(captured), nullptr};
    cudaGraphExec_t exec = nullptr;
    check(cudaGraphInstantiate(&exec, captured, 0), "instantiating a graph");
    made.exec.reset(exec);
    check(cudaGraphUpload(exec, stream()), "uploading a graph");
    size_t count = 0;
    check(cudaGraphGetNodes(captured, nullptr, &count), "counting a graph's nodes");
    std::vector<cudaGraphNode_t> nodes(count);
    if (count) check(cudaGraphGetNodes(captured, nodes.data(), &count), "counting a graph's nodes");
    for (const cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type;
      check(cudaGraphNodeGetType(node, &type), "counting a graph's nodes");
      ++nodes_, kernel_nodes_ += type == cudaGraphNodeTypeKernel;
    }
    return made;
  }

  static void launch(const Step& step) {
#if defined(PB_CUDASIM)
    run_flushed(step.launch);
#else
    step.launch.kernel->run(step.launch);
#endif
  }

  Plan& plan_;
  GraphMemory memory_;
  std::map<Key, Graphs> graphs_;
  int nodes_ = 0, kernel_nodes_ = 0;  // counted in the graph that was made last
  int times_full_ = 0;                // that there was no memory for a graph
  std::string why_single_;            // why kernels are launched one by one; empty while graphs are used
};

}  // namespace

std::unique_ptr<Program> compile(Plan& plan) { return std::make_unique<GraphProgram>(plan); }

}  // namespace pb
