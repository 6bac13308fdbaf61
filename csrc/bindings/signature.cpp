// Binds the kernels that have signatures (launch/signature.h).
#include "launch/signature.h"

#include <algorithm>
#include <deque>

#include "bindings/indexed.h"
#include "bindings/tables.h"

namespace pb {
namespace {

using Part = Signature::Part;

// Returns the dtype of sums and products: integers and bools accumulate in 64 bits, floats in their own dtype.
DType wide(DType dtype) {
  return is_float(dtype) ? dtype : dtype >= DType::u8 && dtype <= DType::u64 ? DType::u64 : DType::i64;
}

// True if an array that does not share the dtype of the others has its own.
bool has_own_type(const Part& part, const View& v) {
  switch (part.type) {
    case Signature::integers: return !is_float(v.dtype) && v.dtype != DType::b8;
    case Signature::u64: return v.dtype == DType::u64 && v.contiguous();
    case Signature::i64: return v.dtype == DType::i64;
    default: return v.dtype == DType::b8;
  }
}

void add_axis(View& v) {
  v.shape[v.ndim] = 1;
  v.stride[v.ndim++] = item_size(v.dtype);
}

// What a call reads from its arguments.
struct Arguments {
  const int64_t* dots = nullptr;     // the axes `...`
  int ndim = 0;                      // their number
  DType dtype = DType::f32;          // that arrays share
  int64_t lengths[kMostParts];       // of the names
  int64_t shape[kMaxDims];           // that an argument gives
  int64_t cut = 0;                   // the axes that a result has with length 1, as bits
  const int64_t* shorter = nullptr;  // the axes `.../a` of arrays

  void read(const Signature& s, PyObject* const* args, Launch& launch);
  void read_lead(const Signature& s, PyObject* object, View& v);
  void set_dtype(const Signature& s, DType given);
  void check(const Part& part, View& v);
  bool fits_dots(const Part& part, const View& v);
  void lay_out(const Part& part, View& v) const;
  int64_t length_of(const Signature::Axis& axis) const { return axis.name < 0 ? axis.length : lengths[axis.name]; }
};

[[noreturn, gnu::cold]] void refuse_dtypes() { throw Refused{"arrays whose dtypes do not fit"}; }
[[noreturn, gnu::cold]] void refuse_shapes() { throw Refused{"arrays whose shapes do not fit"}; }

inline void read_view(PyObject* object, View& v) {
  if (!view_of(object, v)) view_or_refuse(object);
}

inline void Arguments::read(const Signature& s, PyObject* const* args, Launch& launch) {
  if (s.lead >= 0) read_lead(s, args[s.lead], launch.operands[s.lead_operand]);
  int64_t* ints = launch.ints;
  double* reals = launch.reals;
  View* next = launch.operands + launch.outputs;
  for (int k = 0; k < s.arguments; ++k) {
    PyObject* const object = args[k];
    const Part& part = s.argument[k];
    switch (part.kind) {
      case Signature::array:
        if (part.optional && !(*ints++ = object != Py_None)) break;
        if (k != s.lead) read_view(object, *next), check(part, *next);
        ++next;
        break;
      case Signature::integer: *ints++ = to_int(object); break;
      case Signature::real: *reals++ = to_real(object); break;
      case Signature::flag: *ints++ = to_bool(object); break;
      case Signature::axis: *ints++ = axis_or_refuse(object, ndim); break;
      case Signature::axes: *ints++ = cut = to_mask(object, ndim); break;
      case Signature::length:
        if ((lengths[part.axis[0].name] = to_length(object)) < 0) throw Refused{"a negative length"};
        break;
      case Signature::shape: ndim = to_ints(object, shape, kMaxDims), dots = shape; break;
      case Signature::dtype: set_dtype(s, dtype_of(object)); break;
    }
  }
  launch.inputs = int(next - launch.operands) - launch.outputs;
}

inline void Arguments::read_lead(const Signature& s, PyObject* object, View& v) {
  const Part& part = s.argument[s.lead];
  read_view(object, v);
  if (part.type == Signature::shared) set_dtype(s, v.dtype);
  dots = v.shape, ndim = v.ndim - part.axes;
  check(part, v);
}

inline void Arguments::set_dtype(const Signature& s, DType given) {
  dtype = given;
  if (!s.any && !is_float(dtype)) throw Refused{"not a float dtype"};
}

[[gnu::always_inline]] inline void Arguments::check(const Part& part, View& v) {
  if (part.type == Signature::shared ? v.dtype != dtype : !has_own_type(part, v)) refuse_dtypes();
  const int before = part.dots ? ndim : 0;
  if (part.droppable && v.ndim == before + part.axes - 1) add_axis(v);
  if (before < 0 || v.ndim != before + part.axes || (before && v.shape != dots && !fits_dots(part, v))) refuse_shapes();
  const int64_t* length = v.shape + before;
  for (int a = 0; a < part.axes; ++a) {
    const Signature::Axis axis = part.axis[a];
    if (axis.first) lengths[axis.name] = length[a];
    else if (length[a] != length_of(axis)) refuse_shapes();
  }
}

bool Arguments::fits_dots(const Part& part, const View& v) {
  if (!part.cut) return std::equal(dots, dots + ndim, v.shape);
  for (int d = 0; d < ndim; ++d)
    if (v.shape[d] != 1 && v.shape[d] != dots[d]) return false;
  if (!shorter) shorter = v.shape;
  return std::equal(shorter, shorter + ndim, v.shape);
}

// Sets the dtype and the shape of a result.
inline void Arguments::lay_out(const Part& part, View& v) const {
  v.ndim = (part.dots ? ndim : 0) + part.axes;
  if (v.ndim > kMaxDims) throw Refused{"more than 8 axes"};
  int64_t* length = v.shape;
  for (int d = 0; part.dots && d < ndim; ++d) *length++ = part.cut && (cut >> d & 1) ? 1 : dots[d];
  for (int a = 0; a < part.axes; ++a) *length++ = length_of(part.axis[a]);
  constexpr DType own[] = {DType::i64, DType::u64, DType::b8};
  v.dtype = part.type == Signature::shared ? dtype
            : part.type == Signature::wide ? wide(dtype)
                                           : own[part.type - Signature::i64];
}

// The arrays that a call is going to return. Releases them if an exception is thrown first.
struct Results {
  PyObject* array[kMostParts];
  int count = 0;

  Results() = default;
  Results(const Results&) = delete;
  ~Results() {
    for (int k = 0; k < count; ++k) Py_DECREF(array[k]);
  }
  void add(const Part& part, View& v) {
    array[count++] = new_array(v.dtype, v.ndim - part.droppable, v.shape, v);
    if (part.droppable) add_axis(v);
  }
  PyObject* hand_out() {
    PyObject* result = count == 1 ? array[0] : PyTuple_New(count);
    if (!result) throw PythonError{};
    for (int k = 0; count > 1 && k < count; ++k) PyTuple_SET_ITEM(result, k, array[k]);
    count = 0;
    return result;
  }
};

PyObject* call(const void* table, PyObject* const* args, Py_ssize_t count) {
  const auto& s = *static_cast<const Signature*>(table);
  expect_count(count, s.arguments);
  View views[kMostParts];
  Launch launch{s.row.kernel, s.results, 0, views, {}, {}, s.row.table};
  Arguments arguments;
  arguments.read(s, args, launch);
  for (int k = 0; k < s.results; ++k) arguments.lay_out(s.result[k], views[k]);
  if (s.row.refuses)
    if (const char* why = s.row.refuses(launch)) throw Refused{why};
  Results results;
  for (int k = 0; k < s.results; ++k) results.add(s.result[k], views[k]);
  const int64_t work = s.row.work * views[s.largest].size();
  if (s.indexed) run_indexed(launch, work);
  else run_released(launch, work);
  return results.hand_out();
}

}  // namespace

void bind_row(PyObject* module, const KernelRow& row) {
  static std::deque<Signature> signatures;  // which bound functions point at
  define(module, *row.kernel, call, &signatures.emplace_back(row), row.signature);
}

void bind_signatures(PyObject* module) {
  for (const KernelRow& row : kernel_rows()) bind_row(module, row);
}

}  // namespace pb
