// A plan with the memory that it lives in, as Python holds it.
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
  View view;  // of the array that was recorded
};

struct OwnedPlan {
  Plan plan;
  Plan plain;                // the same without fusion, for a ledger that is told of each launch
  std::vector<View> inputs;  // block k is input k
  std::vector<PlanResult> results;
  std::vector<PyObject*> owners;     // of memory that the plan reads and writes, but did not make
  std::vector<Allocation> memory;    // the arenas and copies
  std::unique_ptr<Program> program;  // goes before the memory
  std::mutex mutex;                  // one replay at a time
  int device = 0;
  int64_t done = 0;   // steps of the last run that were done before `progress`
  Progress progress;  // of the last run
  bool plain_ready = false;
  bool warned = false;                      // that its launches do not run as a graph
  bool ran_plain = false;                   // the last run was one of `plain`
  Fusion plain_fusion = Fusion::drop_dead;  // none if `plan` keeps launches whose results are unused
  // Of the launches of `plain`, once a ledger has asked; and which of them is the first that a group of `plan` does.
  std::shared_ptr<const std::vector<PlanRecord>> figures;
  std::vector<size_t> figures_of_groups;

  ~OwnedPlan();
};

// Makes the recorded plan ready, and the Python object that owns it.
PyObject* plan_capsule(std::unique_ptr<OwnedPlan> plan, Fusion fusion);
void bind_plan(PyObject* module);

}  // namespace pb
