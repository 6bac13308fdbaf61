// Calls from Python into C++: the entry point of every bound function, the translation of C++ exceptions, and the conversion of
// tensors, numbers and dtypes among the arguments.
#define PB_NUMPY_TABLE
#include "bindings/arrays.h"

#include <structmember.h>

#include <deque>
#include <new>
#include <string>

#include "bindings/gil.h"
#include "bindings/numpy_api.h"
#include "bindings/recorder.h"
#include "bindings/result.h"
#include "bindings/storage.h"
#include "launch/failure.h"

#if defined(PB_CUDA)
#include "cuda/device.h"
#endif

namespace pb {
namespace {

// Classes of pullback.launch.refusal and pullback.errors.
PyObject* refused = nullptr;
PyObject* bad_index = nullptr;
PyObject* bad_matrix = nullptr;  // a function that returns the exception
PyObject* out_of_memory = nullptr;
PyObject* device_error = nullptr;
PyArray_Descr* descriptors[kDTypes] = {};
int bfloat16_number = -1;
// The smallest `work` of run_released() for which it releases the GIL, in flops: about 10 µs. Releasing the GIL costs about 60 ns.
constexpr int64_t kReleaseWork = 64 * 1024;

// A class of tensors, and the offset of its slot "array" in an instance.
struct Holder {
  PyTypeObject* type;
  Py_ssize_t array;
};
constexpr int kMaxHolders = 4;
Holder holders[kMaxHolders];
int holder_count = 0;
PyTypeObject* tensor_type = nullptr;
PyTypeObject* parameter_type = nullptr;  // the second holder; instances of its subclasses, such as Buffer, hold arrays too
Py_ssize_t tensor_array, tensor_serial, tensor_storage;
PyObject* zero = nullptr;

// Returns the offset of a slot (an entry of __slots__) in instances of the class.
Py_ssize_t slot_of(PyObject* type, const char* name) {
  PyObject* member = PyObject_GetAttrString(type, name);
  if (!member) throw PythonError{};
  const bool found = Py_TYPE(member) == &PyMemberDescr_Type;
  const Py_ssize_t offset = found ? reinterpret_cast<PyMemberDescrObject*>(member)->d_member->offset : 0;
  Py_DECREF(member);
  if (!found) throw Refused{"a class without the slots of a tensor"};
  return offset;
}

PyObject*& slot(PyObject* object, Py_ssize_t offset) {
  return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset);
}

struct Entry {
  PyObject* elsewhere = nullptr;  // another device's function of the same name
  Call call;
  const void* table;
  PyMethodDef method;
  std::string name;
};

std::deque<Entry> entries;               // one per function of the module; a deque, because methods point into it
PyTypeObject* elsewhere_type = nullptr;  // the class of the other device's arrays

bool is_elsewhere(PyObject* object) {
  bool held = false;
  return Py_TYPE(unwrap(object, held)) == elsewhere_type;
}
// True if an argument, or the first item of a list among the arguments, is an array of another device.
bool any_elsewhere(PyObject* const* args, Py_ssize_t count) {
  for (Py_ssize_t k = 0; k < count; ++k) {
    if (is_elsewhere(args[k])) return true;
    const bool listed = PyList_CheckExact(args[k]) && PyList_GET_SIZE(args[k]) > 0;
    if (listed && is_elsewhere(PyList_GET_ITEM(args[k], 0))) return true;
  }
  return false;
}

// Raises IndexError for an index that an earlier launch on a GPU found out of range.
void raise_late(const OutOfRange& e) {
  PyErr_Format(PyExc_IndexError,
               "%s: index %lld is out of range for an axis of length %lld (at position %lld of the flattened indices). The GPU "
               "found it after the op had returned; run again with PULLBACK_CUDA_SYNC=1 to see the line.",
               e.kernel ? e.kernel : "an op", (long long)e.index, (long long)e.length, (long long)e.where);
}

// Raises LinAlgError for a matrix that a kernel cannot factorise.
void raise_bad(const BadMatrix& e) {
  PyObject* place = PyTuple_New(Py_ssize_t(e.place.size()));
  for (size_t d = 0; place && d < e.place.size(); ++d) PyTuple_SET_ITEM(place, Py_ssize_t(d), PyLong_FromLongLong(e.place[d]));
  PyObject* error = place ? PyObject_CallFunction(bad_matrix, "siNLL", e.kernel, int(e.fault), place, (long long)e.number,
                                                  (long long)e.caller)
                          : nullptr;
  if (error) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error);
  Py_XDECREF(error);
}

PyObject* enter(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  const auto* entry = static_cast<const Entry*>(PyCapsule_GetPointer(self, nullptr));
  if (entry->elsewhere && any_elsewhere(args, count)) return PyObject_Vectorcall(entry->elsewhere, args, count, nullptr);
  try {
#if defined(PB_CUDA)
    const cuda::OnDevice on_device;
    begin_call();
#endif
    return entry->call(entry->table, args, count);
  } catch (ThreadEnd&) {  // the interpreter ended this thread while the call ran Python code
    sleep_until_exit();
  } catch (...) {
    raise_current(entry->name.c_str());
  }
  return nullptr;
}

}  // namespace

bool to_dtype(int number, DType& out) {
  switch (number) {
    case NPY_HALF: out = DType::f16; return true;
    case NPY_FLOAT: out = DType::f32; return true;
    case NPY_DOUBLE: out = DType::f64; return true;
    case NPY_BYTE: out = DType::i8; return true;
    case NPY_SHORT: out = DType::i16; return true;
    case NPY_INT: out = DType::i32; return true;
    case NPY_LONG: out = sizeof(long) == 8 ? DType::i64 : DType::i32; return true;
    case NPY_LONGLONG: out = DType::i64; return true;
    case NPY_UBYTE: out = DType::u8; return true;
    case NPY_USHORT: out = DType::u16; return true;
    case NPY_UINT: out = DType::u32; return true;
    case NPY_ULONG: out = sizeof(long) == 8 ? DType::u64 : DType::u32; return true;
    case NPY_ULONGLONG: out = DType::u64; return true;
    case NPY_BOOL: out = DType::b8; return true;
    default: break;
  }
  out = DType::bf16;
  return number == bfloat16_number;
}

PyObject* descriptor_of(DType dtype) {
  if (!descriptors[int(dtype)]) throw Refused{"bfloat16 is not registered"};
  return reinterpret_cast<PyObject*>(descriptors[int(dtype)]);
}

void register_tensors(PyObject* tensor, PyObject* classes) {
  holder_count = 0;
  PyObject* items = PySequence_Fast(classes, "expected a tuple of classes");
  if (!items) throw PythonError{};
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items) && i < kMaxHolders; ++i) {
    PyObject* type = PySequence_Fast_GET_ITEM(items, i);
    Py_INCREF(type);
    holders[holder_count++] = {reinterpret_cast<PyTypeObject*>(type), slot_of(type, "array")};
  }
  Py_DECREF(items);
  parameter_type = holder_count > 1 ? holders[1].type : nullptr;
  Py_INCREF(tensor);
  tensor_type = reinterpret_cast<PyTypeObject*>(tensor);
  tensor_array = slot_of(tensor, "array"), tensor_serial = slot_of(tensor, "serial");
  tensor_storage = slot_of(tensor, "storage");
  zero = PyLong_FromLong(0);
}

PyObject* unwrap(PyObject* object, bool& held) {
  const PyTypeObject* type = Py_TYPE(object);
  for (int k = 0; k < holder_count; ++k) {
    if (type != holders[k].type) continue;
    held = true;
    PyObject* array = slot(object, holders[k].array);
    if (!array) throw Refused{"a tensor without an array"};
    return array;
  }
  if (parameter_type && PyType_IsSubtype(Py_TYPE(object), parameter_type)) {
    held = true;
    return slot(object, tensor_array);
  }
  return object;
}

PyObject* bare(PyObject* object) {
  const bool constant = Py_TYPE(object) == tensor_type && slot(object, tensor_storage) == Py_None;
  return constant ? slot(object, tensor_array) : object;
}

PyObject* wrap(PyObject* array) {
  PyObject* tensor = tensor_type->tp_alloc(tensor_type, 0);
  if (!tensor) {
    Py_DECREF(array);
    throw PythonError{};
  }
  slot(tensor, tensor_array) = array;
  Py_INCREF(zero);
  slot(tensor, tensor_serial) = zero;
  Py_INCREF(Py_None);
  slot(tensor, tensor_storage) = Py_None;
  if (recordings.load(std::memory_order_relaxed) && recording()) on_tensor(tensor);
  return tensor;
}

void raise_current(const char* name) {
  try {
    throw;
  } catch (const Refused& e) {
    PyErr_Format(refused, "%s: %s", name, e.why);
  } catch (const BadIndex& e) {
    PyObject* facts = Py_BuildValue("(LLLs)", (long long)e.where, (long long)e.index, (long long)e.length, name);
    if (facts) PyErr_SetObject(bad_index, facts);
    Py_XDECREF(facts);
  } catch (const OutOfRange& e) {
    raise_late(e);
  } catch (const BadMatrix& e) {
    raise_bad(e);
  } catch (const PythonError&) {
  } catch (const OutOfMemory& e) {
    PyErr_Format(out_of_memory, "%s: %s", name, e.what());
  } catch (const std::bad_alloc&) {
    PyErr_Format(out_of_memory, "%s: its result or its working memory does not fit in memory. Make the operands smaller.",
                 name);
  } catch (const Failure& e) {
    PyErr_Format(device_error, "%s: %s", name, e.what());
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
}

View view_or_refuse(PyObject* object) {
  View v;
  if (!view_of(object, v)) throw Refused{"not an aligned NumPy array of a supported dtype with at most 8 axes"};
  return v;
}

size_t bytes_of(DType dtype, int ndim, const int64_t* shape) {
  int64_t bytes = item_size(dtype);
  bool empty = false;  // lengths of 0 are left out of the product: NumPy rejects a shape whose other lengths overflow, too
  for (int d = 0; d < ndim; ++d) {
    if (shape[d] == 0) empty = true;
    else if (__builtin_mul_overflow(bytes, shape[d], &bytes)) throw std::bad_alloc();
  }
  return empty ? 0 : size_t(bytes);
}

View host_view_or_refuse(PyObject* object) {
  View v;
  if (!PyArray_CheckExact(object)) throw Refused{"not a NumPy array"};
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  if (PyArray_NDIM(array) > kMaxDims || !PyArray_IS_C_CONTIGUOUS(array) || !PyArray_ISALIGNED(array) ||
      PyArray_ISBYTESWAPPED(array) || !to_dtype(PyArray_TYPE(array), v.dtype))
    throw Refused{"not a contiguous NumPy array of a supported dtype with at most 8 axes"};
  v.data = PyArray_BYTES(array), v.ndim = PyArray_NDIM(array);
  for (int d = 0; d < v.ndim; ++d) v.shape[d] = PyArray_DIMS(array)[d], v.stride[d] = PyArray_STRIDES(array)[d];
  return v;
}

DType dtype_of(PyObject* object) {
  DType dtype;
  int number = -1;
  if (PyArray_DescrCheck(object)) number = reinterpret_cast<PyArray_Descr*>(object)->type_num;
  else if (PyArray_Check(object)) number = PyArray_TYPE(reinterpret_cast<PyArrayObject*>(object));
  if (number < 0 || !to_dtype(number, dtype)) throw Refused{"not a supported dtype"};
  return dtype;
}

int64_t to_int(PyObject* object) {
  int overflow;
  const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (overflow) throw Refused{"an integer beyond int64"};
  if (value == -1 && PyErr_Occurred()) throw PythonError{};
  return value;
}

int64_t to_length(PyObject* object) {
  int overflow;
  const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (overflow > 0) throw std::bad_alloc();
  if (overflow < 0) throw Refused{"an integer beyond int64"};
  if (value == -1 && PyErr_Occurred()) throw PythonError{};
  return value;
}

int64_t add_lengths(int64_t a, int64_t b) {
  int64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) throw std::bad_alloc();
  return sum;
}

double to_real(PyObject* object) {
  const double value = PyFloat_AsDouble(object);
  if (value == -1 && PyErr_Occurred()) throw PythonError{};
  return value;
}

bool to_bool(PyObject* object) {
  const int value = PyObject_IsTrue(object);
  if (value < 0) throw PythonError{};
  return value;
}

int to_ints(PyObject* object, int64_t* out, int most) {
  const Items items(object);
  if (items.size() > most) throw Refused{"too many axes"};
  for (Py_ssize_t i = 0; i < items.size(); ++i) out[i] = to_length(items[i]);
  return int(items.size());
}

void run_released(const Launch& launch, int64_t work) {
  if (work < kReleaseWork) return run(launch);
  const Released released;
  run(launch);
}

void define(PyObject* module, const char* name, Call call, const void* table, const char* doc) {
  entries.push_back({nullptr, call, table, {}, name});
  Entry& entry = entries.back();
  entry.method = {entry.name.c_str(), reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(enter)), METH_FASTCALL, doc};
  PyObject* self = PyCapsule_New(&entry, nullptr, nullptr);
  PyObject* function = self ? PyCFunction_NewEx(&entry.method, self, nullptr) : nullptr;
  Py_XDECREF(self);
  if (!function || PyModule_AddObject(module, name, function) < 0) throw PythonError{};
}

void forward(const char* name, PyObject* function, PyObject* type) {
  elsewhere_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(type));
  for (Entry& entry : entries)
    if (entry.name == name) entry.elsewhere = Py_NewRef(function);
}

void register_bfloat16(PyObject* dtype) {
  if (!PyArray_DescrCheck(dtype)) throw Refused{"not a dtype"};
  Py_INCREF(dtype);
  descriptors[int(DType::bf16)] = reinterpret_cast<PyArray_Descr*>(dtype);
  bfloat16_number = descriptors[int(DType::bf16)]->type_num;
}

bool prepare_arrays() {
  import_array1(false);
  constexpr int numbers[kDTypes] = {NPY_HALF,  -1,        NPY_FLOAT,  NPY_DOUBLE, NPY_INT8,   NPY_INT16, NPY_INT32,
                                    NPY_INT64, NPY_UINT8, NPY_UINT16, NPY_UINT32, NPY_UINT64, NPY_BOOL};
  for (int k = 0; k < kDTypes; ++k)
    if (numbers[k] >= 0) descriptors[k] = PyArray_DescrFromType(numbers[k]);
  if (!prepare_storage()) return false;
  PyObject *refusal = PyImport_ImportModule("pullback.launch.refusal"), *errors = PyImport_ImportModule("pullback.errors");
  if (!refusal || !errors) return false;
  refused = PyObject_GetAttrString(refusal, "Refused");
  bad_index = PyObject_GetAttrString(refusal, "BadIndex");
  bad_matrix = PyObject_GetAttrString(refusal, "bad_matrix");
  out_of_memory = PyObject_GetAttrString(errors, "OutOfMemoryError");
  device_error = PyObject_GetAttrString(errors, "DeviceError");
  Py_DECREF(refusal);
  Py_DECREF(errors);
  return refused && bad_index && bad_matrix && out_of_memory && device_error;
}

}  // namespace pb
