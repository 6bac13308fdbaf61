// The implementation of chain.h, and the program that runs a plan on the CPU.
#include "cpu/chain.h"

#include <algorithm>
#include <cstring>

#include "cpu/pool.h"
#include "cpu/scratch.h"
#include "families/fusions.h"
#include "launch/denormals.h"

namespace pb::cpu {
namespace {

const ElementwiseKernel& op_of(const Launch& launch) {
  return static_cast<const ElementwiseKernel&>(*static_cast<const kernels::Elementwise*>(launch.table));
}

// Like pb::keeps_denormals() of the step's launch, whose operands may not be set yet.
bool keeps_denormals(const Plan& plan, const Step& step) {
  View views[kMaxArity + 1];
  Launch launch = step.launch;
  const int count = std::min(launch.outputs + launch.inputs, kMaxArity + 1);
  for (int k = 0; k < count; ++k) views[k] = plan.operand(step, k).view;
  launch.operands = views, launch.inputs = std::max(0, count - launch.outputs);
  return pb::keeps_denormals(launch);
}

// Returns the compute type of the launch. Its last operand determines it, because the first operand of `where` is a condition.
Compute compute_of(const Launch& launch) { return compute_type(launch.in(launch.inputs - 1).dtype); }

}  // namespace

Chain::Chain(const Plan& plan, const Group& group)
    : n_(plan.out(plan.steps[group.first]).view.size()), locals_(plan.local_count) {
  int64_t work = 0;
  for (int s = group.first; s < group.first + group.count; ++s) {
    const Step& step = plan.steps[s];
    const Launch& launch = step.launch;
    const ElementwiseKernel& op = op_of(launch);
    const Compute compute = compute_of(launch);
    Link link{op.loops[int(compute)], compute, op.predicate ? Compute::b8 : compute, launch.inputs, {}, {}};
    link.out = source_of(plan, step.operand, link.result);
    for (int k = 0; k < launch.inputs; ++k) link.in[k] = source_of(plan, step.operand + 1 + k, compute);
    links_.push_back(link);
    work += map_work(op, compute);
  }
  grain_ = std::max(kBlock, map_grain(work) / kBlock * kBlock);
}

Source Chain::source_of(const Plan& plan, size_t operand, Compute compute) {
  const View& v = plan.views[operand];
  const int block = plan.operands[operand].location.block;
  const bool same = v.dtype == storage_of(compute);
  Source source{v.contiguous() ? same ? Source::From::memory : Source::From::convert : Source::From::strides, &v, -1};
  if (block >= 0 && plan.blocks[block].kind == BlockKind::local) source.local = int(plan.blocks[block].offset);
  if (v.number) {
    const int64_t n = std::min(n_, kBlock);
    splats_.emplace_back(n * compute_size(compute));
    load(v.dtype, compute, v.data, 0, n, splats_.back().data());
    source.from = Source::From::splat, source.local = int(splats_.size()) - 1;
  }
  return source;
}

void Chain::run() const {
  if (n_ <= kBlock) return run_range(0, n_);
  parallel_for(n_, grain_, [this](int64_t begin, int64_t end) { run_range(begin, end); });
}

void Chain::run_range(int64_t begin, int64_t end) const {
  Scratch scratch;
  char* locals = static_cast<char*>(scratch.take_bytes(locals_ * kBlockBytes));
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t n = std::min(kBlock, end - i);
    for (const Link& link : links_) run_block(link, i, n, locals);
  }
}

void Chain::run_block(const Link& link, int64_t i, int64_t n, char* locals) const {
  alignas(64) char buffers[kMaxArity + 1][kBlockBytes];
  const void* in[kMaxArity];
  for (int k = 0; k < link.inputs; ++k) in[k] = read(link.in[k], link.compute, i, n, locals, buffers[k]);
  const DType dtype = link.out.view->dtype;
  char* out = link.out.local >= 0 ? locals + link.out.local * kBlockBytes : link.out.view->data + i * item_size(dtype);
  if (link.out.from == Source::From::memory) return link.loop(n, out, in);
  link.loop(n, buffers[kMaxArity], in);
  store(link.result, dtype, buffers[kMaxArity], n, out, item_size(dtype));
}

const void* Chain::read(const Source& source, Compute compute, int64_t i, int64_t n, char* locals, char* buffer) const {
  const View& v = *source.view;
  const int size = item_size(v.dtype);
  const char* data = source.local >= 0 ? locals + source.local * kBlockBytes : v.data + i * size;
  switch (source.from) {
    case Source::From::memory: return data;
    case Source::From::convert: load(v.dtype, compute, data, size, n, buffer); return buffer;
    case Source::From::splat: return splats_[source.local].data();
    case Source::From::strides: break;
  }
  return Reader(v, compute).block(i, n, buffer);
}

}  // namespace pb::cpu

namespace pb {

using namespace cpu;

const int64_t kArenaAlign = 64;

void fuse_launches(Plan& plan, Fusion fusion) {
  kernels::fuse_cross_entropy(plan);
  kernels::fuse_linear(plan, [](int64_t, int64_t, int64_t) { return true; });
  if (fusion == Fusion::fast) kernels::fuse_accumulation(plan);
}

const char* why_not_chained(const Plan& plan, const Step& step, const Step& next) {
  if (step.launch.kernel->run != map || next.launch.kernel->run != map) return "only elementwise ops share a pass";
  if (keeps_denormals(plan, step) != keeps_denormals(plan, next)) return "another treatment of denormal numbers";
  const View &a = plan.out(step).view, &b = plan.out(next).view;
  if (a.ndim != b.ndim || std::memcmp(a.shape, b.shape, a.ndim * sizeof *a.shape))
    return "another shape than the step before it";
  return nullptr;
}

namespace {

class CpuProgram : public Program {
 public:
  explicit CpuProgram(Plan& plan) : plan_(plan) {
    for (const Group& group : plan.groups) {
      const Step& first = plan.steps[group.first];
      runs_.push_back({keeps_denormals(plan, first), group.count, -1, &first});
      if (group.count == 1) continue;
      runs_.back().chain = int(chains_.size());
      chains_.emplace_back(plan, group);
    }
  }

  void run(const StridedAddress* given, int64_t passes, Progress& progress) override {
    DenormalMode mode;
    const RestoreAttribution kept;
    for (int64_t pass = 0; pass < passes; ++pass) {
      plan_.move_given(given, pass);
      progress.passes = int(pass), progress.begun = 0;
      for (size_t k = 0; k < runs_.size(); ++k) {
        const Run& r = runs_[k];
        progress.begun += r.count;
        mode.set(r.keeps_denormals);
        door.attribution.precision = r.step->attribution.precision;
        if (!door.ledger) run_group(r);
        else run_told(r, progress.nanoseconds ? progress.nanoseconds + k : nullptr);
      }
    }
    progress.passes = int(passes), progress.begun = 0;
    if (door.ledger) door.ledger->enter(kept.before.phase);
  }

 private:
  struct Run {
    bool keeps_denormals;
    int count, chain;
    const Step* step;
  };
  void run_group(const Run& r) const {
    if (r.chain >= 0) chains_[r.chain].run();
    else r.step->launch.kernel->run(r.step->launch);
  }
  void run_told(const Run& r, int64_t* nanoseconds) const {
    door.ledger->enter(r.step->attribution.phase);
    const int64_t begin = nanoseconds ? mark() : 0;
    run_group(r);
    if (!nanoseconds) return;
    const int64_t time = mark() - begin;
    *nanoseconds += time;
    door.ledger->launched(time);
  }

  Plan& plan_;
  std::vector<Run> runs_;
  std::vector<Chain> chains_;
};

}  // namespace

std::unique_ptr<Program> compile(Plan& plan) { return std::make_unique<CpuProgram>(plan); }

}  // namespace pb
