// The program that runs a plan on the CPU, and the rules by which launches of a plan share a pass over memory.
#include <algorithm>

#include "cpu/chain.h"
#include "families/copy.h"
#include "families/fusions.h"
#include "launch/denormals.h"
#include "launch/rewrite.h"

namespace pb {

using namespace cpu;

namespace {

// Like pb::keeps_denormals() of the step's launch, whose operands may not be set yet.
bool keeps_denormals(const Plan& plan, const Step& step) {
  View views[kMaxArity + 1];
  Launch launch = step.launch;
  const int count = std::min(launch.outputs + launch.inputs, kMaxArity + 1);
  for (int k = 0; k < count; ++k) views[k] = plan.operand(step, k).view;
  launch.operands = views, launch.inputs = std::max(0, count - launch.outputs);
  return pb::keeps_denormals(launch);
}

bool is_copy(const Step& step) { return step.launch.kernel->run == kernels::copy; }

}  // namespace

const int64_t kArenaAlign = 64;

void fuse_launches(Plan& plan, Fusion fusion) {
  kernels::fuse_losses(plan);
  kernels::fuse_linear(plan, [](auto...) { return true; });
  kernels::fuse_head(plan, [](int64_t, int64_t, int64_t) { return true; });
  if (fusion == Fusion::fast) kernels::fuse_accumulation(plan);
  kernels::write_in_place(plan);
}

// A conversion from float64 to half precision rounds in a way of its own, and a copy of one dtype keeps all bytes.
bool is_elementwise(const Plan& plan, const Step& step) {
  if (is_map(step)) return true;
  if (!is_copy(step)) return false;
  const View &out = plan.out(step).view, &in = plan.in(step).view;
  if (out.dtype == in.dtype) return in.contiguous() && !in.number;
  return !(in.dtype == DType::f64 && is_half(out.dtype));
}

const char* why_not_together(const Plan& plan, const Step& step, const Step& next) {
  if (!is_elementwise(plan, step) || !(is_elementwise(plan, next) || is_update(next.launch)))
    return "only elementwise ops share a pass";
  return keeps_denormals(plan, step) == keeps_denormals(plan, next) ? nullptr : "another treatment of denormal numbers";
}

int goes_with(const Launch& update, int k) {
  if (k >= update.outputs) return k - update.outputs;
  return k < update.outputs - 1 ? int(k % update.ints[0]) : -1;
}

namespace {

class CpuProgram : public Program {
 public:
  explicit CpuProgram(Plan& plan) : plan_(plan) {
    for (const Group& group : plan.groups) {
      const Step& first = plan.steps[group.first];
      runs_.push_back({keeps_denormals(plan, first), group.count, -1, &first});
      if (group.count == 1) continue;
      runs_.back().pass = int(passes_.size());
      passes_.emplace_back(plan, group);
    }
  }

  void run(const StridedAddress* given, int64_t passes, Progress& progress) override {
    DenormalMode mode;
    const RestoreAttribution kept;
    for (int64_t pass = 0; pass < passes; ++pass) {
      plan_.move_given(given, pass);
      progress.passes = int(pass), progress.begun = 0;
      for (size_t k = 0; k < runs_.size(); ++k) {
        const GroupRun& r = runs_[k];
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
  struct GroupRun {
    bool keeps_denormals;
    int count, pass;
    const Step* step;
  };
  void run_group(const GroupRun& r) const {
    if (r.pass >= 0) passes_[r.pass].run();
    else r.step->launch.kernel->run(r.step->launch);
  }
  void run_told(const GroupRun& r, int64_t* nanoseconds) const {
    door.ledger->enter(r.step->attribution.phase);
    const int64_t begin = nanoseconds ? mark() : 0;
    run_group(r);
    if (!nanoseconds) return;
    const int64_t time = mark() - begin;
    *nanoseconds += time;
    door.ledger->launched(time);
  }

  Plan& plan_;
  std::vector<GroupRun> runs_;
  std::vector<Pass> passes_;
};

}  // namespace

std::unique_ptr<Program> compile(Plan& plan) { return std::make_unique<CpuProgram>(plan); }

}  // namespace pb
