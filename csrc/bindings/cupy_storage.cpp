// CuPy arrays as the storage of GPUs. CuPy has no C interface, so this file reads arrays through their Python attributes, and
// constructs them by calling Python.
#include "bindings/buffer.h"
#include "bindings/numpy_api.h"
#include "bindings/storage.h"
#include "cuda/device.h"

namespace pb {
namespace {

// Owns a new reference until the end of the scope. Throws PythonError if it is null.
class Owned {
 public:
  explicit Owned(PyObject* object) : object_(object) {
    if (!object) throw PythonError{};
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* hand_out() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }

 private:
  PyObject* object_;
};

// Reads an attribute of a class's instances. If a C function implements the attribute, it is called directly, which saves the
// lookup (9 of 15 ns).
struct Attribute {
  PyTypeObject* type = nullptr;
  PyObject* name = nullptr;
  getter get = nullptr;
  void* closure = nullptr;

  Attribute() = default;
  Attribute(PyTypeObject* of, const char* text) : type(of), name(PyUnicode_InternFromString(text)) {
    const Owned found(PyObject_GetAttr(reinterpret_cast<PyObject*>(of), name));
    if (Py_TYPE(found.get()) != &PyGetSetDescr_Type) return;
    const PyGetSetDef* definition = reinterpret_cast<PyGetSetDescrObject*>(found.get())->d_getset;
    get = definition->get, closure = definition->closure;
  }
  PyObject* operator()(PyObject* object) const {
    return get && Py_TYPE(object) == type ? get(object, closure) : PyObject_GetAttr(object, name);
  }
};

PyTypeObject* array_type = nullptr;  // cupy.ndarray
PyObject* unowned_memory = nullptr;  // cupy.cuda.UnownedMemory: memory that CuPy does not own, with its owner
PyObject* memory_pointer = nullptr;  // cupy.cuda.MemoryPointer: memory and an offset
Attribute of_data, of_shape, of_strides, of_dtype, of_contiguous, of_pointer, of_device;

// The two steps of cupy.ndarray.__new__, which is written in Python: bare_array allocates the object and fill_array initializes it.
// bare_array is null if this version of CuPy constructs arrays differently.
newfunc bare_array = nullptr;
PyObject *fill_array = nullptr, *no_arguments = nullptr, *zero = nullptr;

thread_local int device_of_call = -1;

int64_t read_int(const Attribute& attribute, PyObject* object) {
  const Owned number(attribute(object));
  const int64_t value = PyLong_AsLongLong(number.get());
  if (value == -1 && PyErr_Occurred()) throw PythonError{};
  return value;
}

// Reads a tuple of ints and sets ndim to its length. Returns false if it has more than kMaxDims items.
bool read_ints(const Attribute& attribute, PyObject* object, int64_t* out, int& ndim) {
  const Owned items(attribute(object));
  if (!PyTuple_CheckExact(items.get())) throw Refused{"an array whose shape is not a tuple"};
  const Py_ssize_t count = PyTuple_GET_SIZE(items.get());
  if (count > kMaxDims) return false;
  ndim = int(count);
  for (Py_ssize_t d = 0; d < count; ++d) out[d] = PyLong_AsLongLong(PyTuple_GET_ITEM(items.get(), d));
  return true;
}

void strides_of_contiguous(View& v) {
  int64_t stride = item_size(v.dtype);
  for (int d = v.ndim - 1; d >= 0; --d) {
    v.stride[d] = stride;
    stride *= v.shape[d];
  }
}

bool aligned(const View& v) {
  const int64_t size = item_size(v.dtype);
  bool whole = reinterpret_cast<uintptr_t>(v.data) % uintptr_t(size) == 0;
  for (int d = 0; d < v.ndim; ++d) whole = whole && (v.stride[d] % size == 0 || v.shape[d] == 1);
  return whole;
}

PyObject* tuple_of(const int64_t* values, int count) {
  Owned tuple(PyTuple_New(count));
  for (int k = 0; k < count; ++k) {
    PyObject* value = PyLong_FromLongLong(values[k]);
    if (!value) throw PythonError{};
    PyTuple_SET_ITEM(tuple.get(), k, value);
  }
  return tuple.hand_out();
}

// Returns cupy.ndarray(shape, dtype, pointer, strides). strides: null for a C-contiguous array.
PyObject* make_array(PyObject* shape, PyObject* dtype, PyObject* pointer, PyObject* strides = nullptr) {
  PyObject* const arguments[] = {nullptr, shape, dtype, pointer, strides};
  const size_t count = strides ? 4 : 3;
  if (!bare_array)
    return Owned(PyObject_Vectorcall(reinterpret_cast<PyObject*>(array_type), arguments + 1, count, nullptr)).hand_out();
  Owned array(bare_array(array_type, no_arguments, nullptr));
  PyObject* const with_self[] = {array.get(), shape, dtype, pointer, strides};
  const Owned none(PyObject_Vectorcall(fill_array, with_self, count + 1, nullptr));
  return array.hand_out();
}

// Records that the current call has an array on this device. The first array selects the device; a later one on another GPU throws
// Refused.
void join_call(int device) {
  if (device == device_of_call) return;
  if (device_of_call >= 0) throw Refused{"arrays of two GPUs"};
  cuda::use_device(device);
  device_of_call = device;
}

PyObject* attribute_or_throw(PyObject* object, const char* name) {
  return Owned(PyObject_GetAttrString(object, name)).hand_out();
}

}  // namespace

void begin_call() { device_of_call = -1; }

bool view_of(PyObject* object, View& v) {
  if (Py_TYPE(object) != array_type) return false;
  if (!read_ints(of_shape, object, v.shape, v.ndim)) return false;
  {
    const Owned dtype(of_dtype(object));
    if (!PyArray_DescrCheck(dtype.get())) return false;
    auto* descriptor = reinterpret_cast<PyArray_Descr*>(dtype.get());
    if (!to_dtype(descriptor->type_num, v.dtype) || !PyArray_ISNBO(descriptor->byteorder)) return false;
  }
  const Owned pointer(of_data(object));
  v.data = reinterpret_cast<char*>(uintptr_t(read_int(of_pointer, pointer.get())));
  const Owned contiguous(of_contiguous(object));
  if (contiguous.get() == Py_True) strides_of_contiguous(v);
  else read_ints(of_strides, object, v.stride, v.ndim);
  if (!aligned(v)) return false;
  join_call(int(read_int(of_device, pointer.get())));
  if (recording()) on_operand(object, v);
  return true;
}

PyObject* new_array(DType dtype, int ndim, const int64_t* shape, View& out) {
  out.dtype = dtype;
  out.ndim = ndim;
  for (int d = 0; d < ndim; ++d) out.shape[d] = shape[d];
  strides_of_contiguous(out);
  Buffer* buffer = new_buffer(bytes_of(dtype, ndim, shape));
  const Owned owner(reinterpret_cast<PyObject*>(buffer));
  out.data = static_cast<char*>(buffer->block.data);
  if (recording()) on_allocate(out.data, out.bytes());
  const Owned address(PyLong_FromVoidPtr(buffer->block.data)), bytes(PyLong_FromSize_t(buffer->block.bytes)),
      device(PyLong_FromLong(buffer->block.device)), dims(tuple_of(shape, ndim));
  PyObject* const of_memory[] = {nullptr, address.get(), bytes.get(), owner.get(), device.get()};
  const Owned memory(PyObject_Vectorcall(unowned_memory, of_memory + 1, 4 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  PyObject* const of_offset[] = {nullptr, memory.get(), zero};
  const Owned pointer(PyObject_Vectorcall(memory_pointer, of_offset + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  return make_array(dims.get(), descriptor_of(dtype), pointer.get());
}

PyObject* view_array(PyObject* array, int ndim, const int64_t* shape, const int64_t* stride) {
  const Owned dims(tuple_of(shape, ndim)), strides(tuple_of(stride, ndim)), dtype(of_dtype(array)), pointer(of_data(array));
  return make_array(dims.get(), dtype.get(), pointer.get(), strides.get());
}

void register_device_arrays(PyObject* type) {
  const Owned memory(PyImport_ImportModule("cupy.cuda.memory"));
  unowned_memory = attribute_or_throw(memory.get(), "UnownedMemory");
  memory_pointer = attribute_or_throw(memory.get(), "MemoryPointer");
  auto* arrays = reinterpret_cast<PyTypeObject*>(Py_NewRef(type));
  auto* pointers = reinterpret_cast<PyTypeObject*>(memory_pointer);
  of_data = {arrays, "data"}, of_shape = {arrays, "shape"}, of_strides = {arrays, "strides"}, of_dtype = {arrays, "dtype"};
  of_contiguous = {arrays, "_c_contiguous"};
  of_pointer = {pointers, "ptr"}, of_device = {pointers, "device_id"};
  fill_array = PyObject_GetAttrString(type, "_init");
  if (!fill_array) PyErr_Clear();
  const bool in_c = fill_array && !PyFunction_Check(fill_array);  // a Python function would be a subclass's override
  bare_array = in_c ? arrays->tp_base->tp_new : nullptr;
  no_arguments = tuple_of(nullptr, 0);
  zero = PyLong_FromLong(0);
  array_type = arrays;
}

bool prepare_storage() { return prepare_buffers(); }

}  // namespace pb
