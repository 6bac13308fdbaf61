// Runs a plan as CUDA graphs. A graph is captured from a stream at the first run of its kind, and launched at every run.
#include <algorithm>
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
#include "cuda/head.h"
#include "cuda/launch.cuh"
#include "cuda/slots.cuh"
#include "families/fusions.h"
#include "families/matmul.h"
#include "launch/denormals.h"
#include "launch/plan.h"

namespace pb {

using namespace cuda;

const int64_t kArenaAlign = 512;

// Fusing a bias into a large product is not exact, because the library may choose a different kernel for it. pullback's own choice
// of kernel depends on the shape alone.
void fuse_launches(Plan& plan, Fusion fusion) {
  kernels::fuse_losses(plan);
  if (fusion == Fusion::fast) kernels::fuse_linear(plan, [](auto...) { return true; });
  else
    kernels::fuse_linear(plan, [](DType dtype, kernels::Precision precision, int64_t m, int64_t n, int64_t k) {
      return !is_large(dtype, precision, m, n, k);
    });
  // The head multiplies in the order of families/order.h. Products do so only in this mode; otherwise their tiles decide.
  if (kernels::everywhere()) kernels::fuse_head(plan, is_head);
  if (fusion == Fusion::fast) kernels::fuse_accumulation(plan);
}

bool is_elementwise(const Plan&, const Step&) { return false; }
const char* why_not_together(const Plan&, const Step&, const Step&) { return "a GPU's kernels are launched one by one"; }
int goes_with(const Launch&, int) { return -1; }

namespace {

// A capture in progress, on a separate stream, so that concurrent launches by other threads and CuPy stay out of the graph. The
// capture is relaxed because the allocator may have to call the driver when its cache is empty.
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

constexpr int64_t kMostGraphs = 4;  // the number of graphs with fixed addresses of the given blocks, per number of passes
// The most nodes of a graph that has several passes, and of all graphs with fixed addresses for one number of passes. Making a
// graph takes time and memory for each node, and the launches that a larger graph would save are few beside its nodes. A single
// pass is one graph however many nodes it has.
constexpr int64_t kMostNodes = 20000;
constexpr int kPatience = 3;  // after this many attempts for which the GPU had too little memory, no further graph is made

struct DestroyGraph {
  void operator()(cudaGraph_t graph) const { (void)cudaGraphDestroy(graph); }
  void operator()(cudaGraphExec_t exec) const { (void)cudaGraphExecDestroy(exec); }
};
template <class T> using GraphPointer = std::unique_ptr<std::remove_pointer_t<T>, DestroyGraph>;

// One graph, ready to be launched.
struct Instance {
  int phase;                        // the common phase of the graph's launches, or kOther if there are several
  GraphPointer<cudaGraph_t> graph;  // kept because a change of arguments refers to its nodes
  GraphPointer<cudaGraphExec_t> exec;
};

// PULLBACK_CUDA_GRAPHS=0 launches plans kernel by kernel.
bool graphs_are_off() {
  static const bool off = [] {
    const char* text = std::getenv("PULLBACK_CUDA_GRAPHS");
    return text && *text == '0';
  }();
  return off;
}

// Memory for every given block of a graph that serves all addresses. The graph copies its inputs into these slots and its results
// out of them.
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
  // Returns the copies for given blocks begin to end - 1. Blocks that no launch uses are left out.
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
  size_t inputs_ = 0;  // the number of given blocks that are inputs; the rest are results
  std::vector<Allocation> blocks_;
  std::vector<StridedAddress> spans_;
  SlotCopies in_, out_;
};

// The graphs of one plan for one number of passes. Either all of them or none are cut between phases.
//
// A CUDA graph fixes the addresses of its operands. Tensors that come and go mostly do so at a few addresses, so each of the first
// kMostGraphs sets of addresses gets its own graph, or fewer sets if the graphs are large. For further sets of addresses (a list of
// batches on the device, losses that are kept) one graph serves all: it copies the given inputs into slots, and the results out of
// slots.
struct Graphs {
  std::map<std::vector<int64_t>, std::vector<Instance>> by_address;
  int64_t nodes = 0;  // of one set of addresses
  std::vector<Instance> slotted;
  std::unique_ptr<Slots> slots;
};

// Runs a plan as graphs, or launch by launch if the driver cannot make a graph of it.
class GraphProgram : public Program {
 public:
  explicit GraphProgram(Plan& plan) : plan_(plan) {
    if (graphs_are_off()) why_single_ = "PULLBACK_CUDA_GRAPHS=0";
  }

  void run(const StridedAddress* given, int64_t passes, Progress& progress) override {
    progress.passes = progress.begun = 0;
    throw_fault();
    int64_t together = passes;
    if (!tried([&] { together = passes_of_graph(given, passes); }))
      return replay_singly(plan_, given, passes, progress, perform);
    if (together == passes) return run_at_once(given, passes, progress);
    for (int64_t pass = 0; pass < passes; pass += together) {
      std::vector<StridedAddress> moved(given, given + plan_.given.size());
      for (StridedAddress& span : moved) span.data += pass * span.stride;
      run_at_once(moved.data(), together, progress);
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
  // The number of passes; true if phases are timed, so that each stretch of one phase is a separate graph.
  using Key = std::pair<int64_t, bool>;

  static bool by_phase() { return door.ledger && door.ledger->has_phases; }

  // Calls make(), which captures graphs. Returns false if kernels have to run one by one, because CUDA, a library inside the
  // capture, or the allocator failed, now or before.
  template <class Make> bool tried(const Make& make) {
    if (!why_single_.empty()) return false;
    try {
      make();
      return true;
    } catch (const std::exception& error) {
      const bool full = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
      if (!full || ++times_full_ == kPatience) {
        why_single_ = error.what();
        gave_up = true;
        graphs_.clear();
      }
      return false;
    }
  }

  // Returns the number of passes of each graph: the largest divisor of `passes` whose graphs have at most kMostNodes nodes, or 1.
  // The nodes of a pass are those of a capture, because one step may be thousands of launches, as that of a recurrent layer is.
  int64_t passes_of_graph(const StridedAddress* given, int64_t passes) {
    if (passes == 1) return 1;
    if (nodes_of_pass_ == 0) {
      const RestoreAttribution kept;
      const GraphMemory::Use working_memory(memory_);
      Capturing capture;
      plan_.move_given(given, 0);
      for (const Step& step : plan_.steps) {
        door.attribution = step.attribution;
        launch(step);
      }
      const GraphPointer<cudaGraph_t> graph(capture.end());
      nodes_of_pass_ = std::max<int64_t>(1, int64_t(nodes_of(graph.get()).size()));
    }
    int64_t together = std::min(passes, std::max<int64_t>(1, kMostNodes / nodes_of_pass_));
    while (passes % together != 0) --together;
    return together;
  }

  void run_at_once(const StridedAddress* given, int64_t passes, Progress& progress) {
    const std::vector<Instance>* instances = nullptr;
    if (!tried([&] { instances = &ready(given, passes); })) return replay_singly(plan_, given, passes, progress, perform);
    for (const Instance& instance : *instances) {
      if (door.ledger) door.ledger->enter(instance.phase);
      check(cudaGraphLaunch(instance.exec.get(), stream()), "launching a graph");
    }
    if (door.ledger) door.ledger->enter(door.attribution.phase);
    progress.passes += int(passes);
  }

  // Returns the graphs to launch, in order, and makes them if they do not exist yet.
  const std::vector<Instance>& ready(const StridedAddress* given, int64_t passes) {
    Graphs& graphs = graphs_[{passes, by_phase()}];
    std::vector<int64_t> addresses;
    for (size_t k = 0; k < plan_.given.size(); ++k) {
      addresses.push_back(int64_t(reinterpret_cast<intptr_t>(given[k].data)));
      addresses.push_back(given[k].stride);
    }
    const auto found = graphs.by_address.find(addresses);
    if (found != graphs.by_address.end()) return found->second;
    // The first graph is always one with fixed addresses, and afterwards the nodes are known.
    const int64_t most = std::min(kMostGraphs, kMostNodes / std::max<int64_t>(1, graphs.nodes));
    if (graphs.by_address.empty() || int64_t(graphs.by_address.size()) < most) {
      std::vector<Instance> made = build(given, passes, nullptr, nullptr);
      graphs.nodes = nodes_;
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

  // operands: the addresses of the given blocks while the graph runs. With slots these are the slots' addresses, and the graph
  // copies inputs from `outside` and results to `outside`.
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
    if (!capture) capture.emplace();  // a plan without launches becomes an empty graph
    if (slots) slots->capture_results(outside);
    end();
    return instances;
  }

  static std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph) {
    size_t count = 0;
    check(cudaGraphGetNodes(graph, nullptr, &count), "counting a graph's nodes");
    std::vector<cudaGraphNode_t> nodes(count);
    if (count) check(cudaGraphGetNodes(graph, nodes.data(), &count), "counting a graph's nodes");
    return nodes;
  }

  Instance instantiated(int phase, cudaGraph_t captured) {
    Instance made{phase, GraphPointer<cudaGraph_t>(captured), nullptr};
    cudaGraphExec_t exec = nullptr;
    check(cudaGraphInstantiate(&exec, captured, 0), "instantiating a graph");
    made.exec.reset(exec);
    check(cudaGraphUpload(exec, stream()), "uploading a graph");
    for (const cudaGraphNode_t node : nodes_of(captured)) {
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
  int64_t nodes_of_pass_ = 0;         // without the copies of slots; 0: not counted yet
  int nodes_ = 0, kernel_nodes_ = 0;  // counts of the graph that was made last
  int times_full_ = 0;                // the number of times that there was too little memory for a graph
  std::string why_single_;            // the reason why kernels are launched one by one; empty while graphs are used
};

}  // namespace

std::unique_ptr<Program> compile(Plan& plan) { return std::make_unique<GraphProgram>(plan); }

}  // namespace pb
