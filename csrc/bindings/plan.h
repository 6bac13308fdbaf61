// OwnedPlan is a plan with its memory and its program. A Python capsule owns it.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "bindings/arrays.h"
#include "launch/memory.h"
#include "launch/plan.h"

namespace pb {

struct PlanResult {
  int block;
  View view;  // the view of the recorded array
};

struct OwnedPlan {
  Plan plan;
  Plan plain;                // the plan without fusion, for ledgers, which count every launch
  std::vector<View> inputs;  // block k is input k
  std::vector<PlanResult> results;
  std::vector<PyObject*> owners;     // the owners of memory that the plan uses but did not allocate
  std::vector<Allocation> memory;    // the arenas of `plan` and `plain`
  std::unique_ptr<Program> program;  // destroyed before the memory is released
  std::mutex mutex;                  // one replay at a time
  int device = 0;
  bool everywhere = false;  // kernels::everywhere() of the recording
  int64_t done = 0;         // steps of the last run that were complete before those in `progress`
  Progress progress;        // the progress of the last run since its last check for signals
  bool plain_ready = false;
  bool warned = false;                      // the user has been warned that the launches do not run as a graph
  bool ran_plain = false;                   // the last run replayed `plain`
  Fusion plain_fusion = Fusion::drop_dead;  // Fusion::none if `plan` keeps launches whose results are unused
  // The ledger entries of the launches of `plain`, computed when they are first needed. figures_of_groups[g] is the index of the
  // entry of the first launch of group g of `plan`.
  std::shared_ptr<const std::vector<PlanRecord>> figures;
  std::vector<size_t> figures_of_groups;

  ~OwnedPlan();
};

// Prepares the recorded plan for replays. Returns a new capsule that owns it.
PyObject* plan_capsule(std::unique_ptr<OwnedPlan> plan, Fusion fusion);
void bind_plan(PyObject* module);

}  // namespace pb
