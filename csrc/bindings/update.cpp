// Optimizer updates: the operands of the steps, collected once, and one call per step for all tensors.
#include "families/update.h"

#include <memory>
#include <vector>

#include "bindings/recorder.h"
#include "bindings/tables.h"
#include "bindings/result.h"

namespace pb {
namespace {

using kernels::Update;

constexpr const char* kOperandsName = "pullback.update_operands";

// The operands of the coming steps, in the order of families/update.h. Each step fills in its gradients and deltas.
struct StepOperands {
  std::vector<View> operands;
  std::vector<PyObject*> owners;
  int entries = 0, slots = 0;
  int64_t members = 1;
  bool busy = false;  // true while a step that has released the GIL uses them
  ~StepOperands() {
    for (PyObject* owner : owners) Py_DECREF(owner);
  }
};

// Returns a one-dimensional view of a contiguous array's elements.
View flat_or_refuse(PyObject* object) {
  const View v = view_or_refuse(object);
  if (!v.contiguous() && v.size() > 0) throw Refused{"not contiguous"};
  return flat_view(v.data, v.dtype, v.size());
}

void add_owned(StepOperands& step, PyObject* array, const View& view) {
  step.operands.push_back(view);
  step.owners.push_back(array);
  Py_INCREF(array);
}

// Adds one tensor for each param, or an absent one for None. `tensors`: a sequence, or None for no tensor at all. fits(tensor, param)
// is true for a dtype that the tensor may have.
template <class Fits> void add_optional(StepOperands& step, PyObject* tensors, const Fits& fits) {
  const auto missing = [](int64_t size) { return flat_view(nullptr, DType::f32, size); };
  if (tensors == Py_None) {
    for (int t = 0; t < step.entries; ++t) step.operands.push_back(missing(step.operands[t].shape[0]));
    return;
  }
  const Items items(tensors);
  if (items.size() != step.entries) throw Refused{"one tensor for each param, or None"};
  for (int t = 0; t < step.entries; ++t) {
    const View p = step.operands[t];
    if (items[t] == Py_None) {
      step.operands.push_back(missing(p.shape[0]));
      continue;
    }
    const View view = flat_or_refuse(items[t]);
    if (view.shape[0] != p.shape[0] || !fits(view, p)) throw Refused{"an average, a mask or a copy unlike its param"};
    add_owned(step, items[t], view);
  }
}

// update_plan(params, slots, averages, masks, lows, members) -> a capsule of StepOperands, which owns references to the arrays.
// params: arrays; slots: for each slot, one array per param; averages, masks, lows (copies of half precision): one array or None per
// param, or None.
PyObject* update_plan(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 6);
  const Items params(args[0]), slots(args[1]);
  if (slots.size() > kernels::kMaxSlots) throw Refused{"too many slots"};
  auto step = std::make_unique<StepOperands>();
  step->entries = int(params.size());
  step->slots = int(slots.size());
  for (Py_ssize_t t = 0; t < params.size(); ++t) {
    const View p = flat_or_refuse(params[t]);
    if (!is_float(p.dtype)) throw Refused{"a param that is not floating"};
    add_owned(*step, params[t], p);
  }
  for (Py_ssize_t k = 0; k < slots.size(); ++k) {
    const Items tensors(slots[k]);
    if (tensors.size() != params.size()) throw Refused{"a slot needs one array for each param"};
    for (Py_ssize_t t = 0; t < tensors.size(); ++t) {
      const View slot = flat_or_refuse(tensors[t]), &p = step->operands[t];
      if (slot.shape[0] != p.shape[0]) throw Refused{"a slot of another size than its param"};
      if (slot.dtype != storage_of(compute_type(p.dtype))) throw Refused{"a slot of the wrong dtype"};
      add_owned(*step, tensors[t], slot);
    }
  }
  add_optional(*step, args[2], [](const View& x, const View& p) { return x.dtype == storage_of(compute_type(p.dtype)); });
  add_optional(*step, args[3], [](const View& x, const View&) { return item_size(x.dtype) == 1; });
  add_optional(*step, args[4], [](const View& x, const View& p) {
    return p.dtype == DType::f32 && (x.dtype == DType::f16 || x.dtype == DType::bf16);
  });
  step->members = to_int(args[5]);
  for (int t = 0; t < step->entries; ++t)
    if (step->members < 1 || step->operands[t].shape[0] % step->members != 0)
      throw Refused{"a param that cannot be divided by the number of members"};
  step->operands.resize(step->operands.size() + 2 * step->entries + 1);
  PyObject* capsule = PyCapsule_New(step.get(), kOperandsName, [](PyObject* self) {
    delete static_cast<StepOperands*>(PyCapsule_GetPointer(self, kOperandsName));
  });
  if (!capsule) throw PythonError{};
  step.release();
  return capsule;
}

// Returns a view of a table with at least this number of sets, one per row.
View table_of(PyObject* object, int64_t count = 0) {
  const View sets = view_or_refuse(object);
  if (sets.dtype != DType::f64 || sets.ndim != 2 || sets.shape[1] != kSetSize || !sets.contiguous())
    throw Refused{"not a table of sets"};
  if (sets.shape[0] < count) throw Refused{"a table of sets for fewer entries"};
  return sets;
}

// Returns a view with null data for None, which means that there is no gradient.
View gradient_of(PyObject* object) {
  View g;
  g.data = nullptr;
  g.ndim = 0;
  if (object == Py_None) return g;
  g = view_or_refuse(object);
  if (!is_float(g.dtype)) throw Refused{"a gradient that is not floating"};
  if (g.size() == 0) g.data = nullptr;
  else collapse(&g, 1);
  return g;
}

// Fills in gradients and deltas; returns the number of elements to update.
int64_t fill_step(StepOperands& step, PyObject* gradients, PyObject* deltas, bool preview, bool at_random) {
  const Items grads(gradients);
  if (grads.size() != step.entries) throw Refused{"one gradient for each param, or None"};
  View* target = step.operands.data() + step.entries * (kernels::kTensorsBesidesSlots - 1 + step.slots);
  View* gradient = target + step.entries + 1;
  int64_t elements = 0;
  for (int t = 0; t < step.entries; ++t) {
    const View& p = step.operands[t];
    gradient[t] = gradient_of(grads[t]);
    target[t] = flat_view(nullptr, p.dtype, p.shape[0]);
    if (!gradient[t].data) continue;
    const View& low = target[t - step.entries];
    const bool wide = (at_random || low.data) && gradient[t].dtype == storage_of(compute_type(p.dtype));
    if (gradient[t].dtype != (low.data ? low.dtype : p.dtype) && !wide)
      throw Refused{"a gradient of another dtype than its param"};
    if (gradient[t].size() != p.shape[0]) throw Refused{"a gradient of another size than its param"};
    elements += p.shape[0];
  }
  if (deltas == Py_None) {
    if (preview) throw Refused{"a preview needs deltas to write to"};
    return elements;
  }
  const Items outputs(deltas);
  if (outputs.size() != step.entries) throw Refused{"one delta for each param"};
  for (int t = 0; t < step.entries; ++t) {
    if (!gradient[t].data) continue;
    const View delta = flat_or_refuse(outputs[t]);
    const View& p = step.operands[t];
    if (delta.dtype != p.dtype || delta.shape[0] != p.shape[0]) throw Refused{"a delta unlike its param"};
    target[t] = delta;
  }
  return elements;
}

// Runs a kernel of an update. args: the operands, the gradients and the sets. rounding: as in the launch's ints.
void run_update(const Update& op, const Kernel& kernel, PyObject* const* args, PyObject* deltas, bool preview,
                int64_t rounding) {
  auto* step = static_cast<StepOperands*>(PyCapsule_GetPointer(args[0], kOperandsName));
  if (!step) throw PythonError{};
  if (recording()) keep_alive(args[0]);
  if (step->busy) throw Refused{"a step with these operands is running in another thread"};
  Launch launch{};
  if (op.slots != step->slots) throw Refused{"wrong number of slots"};
  const View sets = table_of(args[2], step->entries * step->members);
  const int64_t elements = fill_step(*step, args[1], deltas, preview, rounding != 0);
  launch.outputs = step->entries * (kernels::kTensorsBesidesSlots + step->slots) + 1;
  launch.inputs = step->entries;
  step->operands[launch.outputs - 1] = sets;
  launch.kernel = &kernel;
  launch.operands = step->operands.data();
  launch.ints[0] = step->entries;
  launch.ints[1] = step->members;
  launch.ints[2] = preview;
  launch.ints[3] = rounding;
  launch.table = &op;
  struct Busy {
    StepOperands* step;
    explicit Busy(StepOperands* p) : step(p) { step->busy = true; }
    ~Busy() { step->busy = false; }
  } busy(step);
  run_released(launch, elements * 16);
}

// <rule>_step(operands, gradients, sets, deltas, preview, rounding). rounding: 0, or 1 and the number of the first parameter.
PyObject* call_step(const void* table, PyObject* const* args, Py_ssize_t count) {
  const auto& op = *static_cast<const Update*>(table);
  expect_count(count, 6);
  run_update(op, op.kernel, args, args[3], to_bool(args[4]), to_int(args[5]));
  Py_RETURN_NONE;
}

// <rule>_ratio(operands, gradients, sets): writes the trust ratios of the next step.
PyObject* call_measure(const void* table, PyObject* const* args, Py_ssize_t count) {
  const auto& op = *static_cast<const Update*>(table);
  expect_count(count, 3);
  run_update(op, op.measure, args, Py_None, false, 0);
  Py_RETURN_NONE;
}

// Returns a view of the numbers of a loss scaler.
View scaler_of(PyObject* object) {
  const View scaler = view_or_refuse(object);
  if (scaler.dtype != DType::f32 || scaler.ndim != 1 || scaler.shape[0] != kScalerSize || !scaler.contiguous())
    throw Refused{"not a loss scaler"};
  return scaler;
}

// clip_norm(gradients, sets, members, scaler): writes each member's joint norm, and the factor by which the next step scales its
// gradients. scaler: the numbers of the loss scaler of a scaled loss, or None.
PyObject* call_clip_norm(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 4);
  static const Kernel kernel{"clip_norm", kernels::clip_norm, kernels::clip_norm_cost, kernels::executed_clip_norm};
  const Items gradients(args[0]);
  constexpr int kNear = 32;  // this many views need no allocation
  View near[kNear + 2];
  std::vector<View> far;
  View* operands = near;
  if (gradients.size() > kNear) far.resize(gradients.size() + 2), operands = far.data();
  const int64_t members = to_int(args[2]);
  if (members < 1) throw Refused{"no members"};
  const int outputs = args[3] == Py_None ? 1 : 2;
  operands[0] = table_of(args[1], gradients.size() * members);
  if (outputs == 2) operands[1] = scaler_of(args[3]);
  if (outputs == 2 && members > 1) throw Refused{"a loss scaler for several members"};
  int64_t elements = 0;
  for (Py_ssize_t t = 0; t < gradients.size(); ++t) {
    View& g = operands[t + outputs] = gradient_of(gradients[t]);
    if (!g.data) continue;
    if (g.size() % members != 0) throw Refused{"a gradient that cannot be divided by the number of members"};
    elements += g.size();
  }
  Launch launch{&kernel, outputs, int(gradients.size()), operands, {members}, {}, nullptr};
  run_released(launch, elements * 4);
  Py_RETURN_NONE;
}

// update_scale(scaler, growth, backoff, interval): changes the scale of a loss scaler for the next step.
PyObject* call_update_scale(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 4);
  static const Kernel kernel{"update_scale", kernels::update_scale, kernels::update_scale_cost};
  View scaler = scaler_of(args[0]);
  Launch launch{&kernel, 1, 0, &scaler, {}, {to_real(args[1]), to_real(args[2]), to_real(args[3])}, nullptr};
  run(launch);
  Py_RETURN_NONE;
}

// clip_adaptive(gradients, weights, sets, share, members) -> the gradients scaled to at most a share of the norm of the weights, for
// each unit: a row along the first axis of one member's weights, or a vector. weights: contiguous. share: a float64 array of one number.
// members: true if the first axis of the weights is that of the members.
PyObject* call_clip_adaptive(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 5);
  static const Kernel kernel{"clip_adaptive", kernels::clip_adaptive, kernels::clip_adaptive_cost,
                             kernels::executed_clip_adaptive};
  const Items gradients(args[0]), weights(args[1]);
  const int entries = int(gradients.size());
  const bool has_members = to_bool(args[4]);
  if (weights.size() != entries) throw Refused{"one array of weights for each gradient"};
  std::vector<View> operands(3 * entries + 2);
  View* const in = operands.data() + entries;
  in[2 * entries] = table_of(args[2], 1);
  in[2 * entries + 1] = view_or_refuse(args[3]);
  if (in[2 * entries + 1].dtype != DType::f64 || in[2 * entries + 1].size() != 1) throw Refused{"not a share"};
  PyObject* const results = PyList_New(entries);
  if (!results) throw PythonError{};
  struct Owned {
    PyObject* list;
    ~Owned() { Py_XDECREF(list); }
  } owned{results};
  int64_t elements = 0;
  for (int t = 0; t < entries; ++t) {
    in[t] = gradient_of(gradients[t]);
    operands[t] = in[entries + t] = flat_view(nullptr, DType::f32, 0);
    if (!in[t].data) {
      PyList_SET_ITEM(results, t, Py_NewRef(gradients[t]));
      continue;
    }
    const View p = view_or_refuse(weights[t]), g = view_or_refuse(gradients[t]);
    if (!p.contiguous()) throw Refused{"not contiguous"};
    if (!is_float(p.dtype) || p.dtype != g.dtype || p.ndim != g.ndim || !std::equal(p.shape, p.shape + p.ndim, g.shape))
      throw Refused{"a gradient unlike its weights"};
    if (has_members && p.ndim < 1) throw Refused{"weights without an axis of members"};
    const int64_t members = has_members ? p.shape[0] : 1;
    const int64_t units = members * (p.ndim > has_members + 1 ? p.shape[has_members] : 1), length = p.size() / units;
    View& rows = in[entries + t] = flat_view(p.data, p.dtype, p.size());
    rows.ndim = 2;
    rows.shape[0] = units, rows.shape[1] = length;
    rows.stride[0] = length * item_size(p.dtype), rows.stride[1] = item_size(p.dtype);
    PyList_SET_ITEM(results, t, new_array(p.dtype, p.ndim, p.shape, operands[t]));
    operands[t] = flat_view(operands[t].data, p.dtype, p.size());
    elements += p.size();
  }
  Launch launch{&kernel, entries, 2 * entries + 2, operands.data(), {entries}, {}, nullptr};
  run_released(launch, elements * 8);
  owned.list = nullptr;
  return results;
}

// begin_steps(sets, copies, count): writes `count` sets to `copies` as the next step will begin with them.
PyObject* call_begin_steps(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 3);
  static const Kernel kernel{"begin_steps", kernels::begin_steps, kernels::begin_steps_cost};
  const int64_t sets = to_int(args[2]);
  if (sets < 1) throw Refused{"no sets"};
  View operands[2] = {table_of(args[1], sets), table_of(args[0], sets)};
  Launch launch{&kernel, 1, 1, operands, {sets}, {}, nullptr};
  run(launch);
  Py_RETURN_NONE;
}

// observe(sets, metric, count, members): moves the states of reduce-on-plateau, which are among the rows after the first `count`.
// metric: a floating number, or one for each member.
PyObject* call_observe(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 4);
  static const Kernel kernel{"observe", kernels::observe, kernels::observe_cost};
  const int64_t sets = to_int(args[2]), members = to_int(args[3]);
  View operands[2] = {table_of(args[0], sets), view_or_refuse(args[1])};
  if (sets < 0) throw Refused{"no sets"};
  const View& metric = operands[1];
  if (!is_float(metric.dtype)) throw Refused{"a metric that is not floating"};
  if (metric.size() != 1 && (metric.ndim != 1 || metric.size() != members)) throw Refused{"one metric, or one for each member"};
  Launch launch{&kernel, 1, 1, operands, {sets}, {}, nullptr};
  run(launch);
  Py_RETURN_NONE;
}

// write_settings(sets, first, step, count, index, numbers): changes the settings from `index` on in `count` sets, which are `step`
// apart, from the set `first` on, without waiting for the device.
PyObject* call_write_settings(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 6);
  static const Kernel kernel{"write_settings", kernels::write_settings, kernels::write_settings_cost};
  View sets = table_of(args[0]);
  const int64_t first = to_int(args[1]), step = to_int(args[2]), rows = to_int(args[3]), index = to_int(args[4]);
  const Items numbers(args[5]);
  if (numbers.size() > kMaxReals || index < 0 || index + numbers.size() > kSetSize) throw Refused{"too many numbers"};
  if (first < 0 || step < 1 || rows < 1 || step > sets.shape[0] || rows > sets.shape[0] ||
      first + (rows - 1) * step >= sets.shape[0])
    throw Refused{"sets outside the table"};
  Launch launch{&kernel, 1, 0, &sets, {first, step, rows, index, numbers.size()}, {}, nullptr};
  for (Py_ssize_t k = 0; k < numbers.size(); ++k) launch.reals[k] = to_real(numbers[k]);
  run(launch);
  Py_RETURN_NONE;
}

}  // namespace

void bind_update(PyObject* module) {
  PyObject* counts =
      PyDict_New();  // name -> (additions, multiplications, special ops) per element, and settings that a step writes
  if (!counts || PyModule_AddObject(module, "update_counts", counts) < 0) throw PythonError{};
  for (const Update* op : kernels::updates()) {
    define(module, op->kernel.name, call_step, op);
    if (op->measure.run) define(module, op->measure.name, call_measure, op);
    PyObject* figures = Py_BuildValue("(iiii)", int(op->counts.adds), int(op->counts.multiplies), int(op->counts.special),
                                      kernels::settings_in(op->writes));
    if (!figures || PyDict_SetItemString(counts, op->kernel.name, figures) < 0) throw PythonError{};
    Py_DECREF(figures);
  }
  define(module, "update_plan", update_plan, nullptr);
  define(module, "clip_norm", call_clip_norm, nullptr);
  define(module, "update_scale", call_update_scale, nullptr);
  define(module, "clip_adaptive", call_clip_adaptive, nullptr);
  define(module, "begin_steps", call_begin_steps, nullptr);
  define(module, "observe", call_observe, nullptr);
  define(module, "write_settings", call_write_settings, nullptr);
}

}  // namespace pb
