// NumPy arrays as the storage of the CPU and of the simulated GPU. A subclass marks the arrays of the simulated GPU.
#include "bindings/buffer.h"
#include "bindings/numpy_api.h"
#include "bindings/storage.h"

namespace pb {
namespace {

#if defined(PB_CUDA)
constexpr size_t kPooledBytes = 0;  // all arrays come from the device's allocator
#else
// NumPy allocates arrays with fewer bytes than this; larger ones come from the caching allocator. All arrays come from the latter
// while this thread records a plan or a ledger that times its phases.
constexpr size_t kPooledBytes = 64 * 1024;
#endif
PyTypeObject* array_type = nullptr;  // the class of the arrays that kernels accept and return

}  // namespace

bool view_of(PyObject* object, View& v) {
  if (Py_TYPE(object) != array_type) return false;
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  const int ndim = PyArray_NDIM(array);
  if (ndim > kMaxDims || !PyArray_ISALIGNED(array) || !to_dtype(PyArray_TYPE(array), v.dtype) || PyArray_ISBYTESWAPPED(array))
    return false;
  v.data = PyArray_BYTES(array);
  v.ndim = ndim;
  for (int d = 0; d < ndim; ++d) v.shape[d] = PyArray_DIMS(array)[d], v.stride[d] = PyArray_STRIDES(array)[d];
  if (recording()) on_operand(object, v);
  return true;
}

PyObject* new_array(DType dtype, int ndim, const int64_t* shape, View& out) {
  auto* descriptor = reinterpret_cast<PyArray_Descr*>(descriptor_of(dtype));
  const size_t bytes = bytes_of(dtype, ndim, shape);
  npy_intp dims[kMaxDims];
  for (int d = 0; d < ndim; ++d) dims[d] = shape[d];
  PyObject* array;
  if (bytes < kPooledBytes && !recording() && !(door.ledger && door.ledger->has_phases)) {
    Py_INCREF(descriptor);
    array = PyArray_NewFromDescr(array_type, descriptor, ndim, dims, nullptr, nullptr, 0, nullptr);
    if (!array) throw PythonError{};
  } else {
    Buffer* buffer = new_buffer(bytes);
    Py_INCREF(descriptor);
    array = PyArray_NewFromDescr(array_type, descriptor, ndim, dims, nullptr, buffer->block.data, NPY_ARRAY_CARRAY, nullptr);
    if (!array) {
      Py_DECREF(buffer);
      throw PythonError{};
    }
    PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array), reinterpret_cast<PyObject*>(buffer));
    if (recording()) on_allocate(static_cast<char*>(buffer->block.data), int64_t(bytes));
  }
  out.data = PyArray_BYTES(reinterpret_cast<PyArrayObject*>(array));
  out.dtype = dtype;
  out.ndim = ndim;
  int64_t stride = item_size(dtype);
  for (int d = ndim - 1; d >= 0; --d) {
    out.shape[d] = shape[d];
    out.stride[d] = stride;
    stride *= shape[d];
  }
  return array;
}

PyObject* view_array(PyObject* array, int ndim, const int64_t* shape, const int64_t* stride) {
  auto* base = reinterpret_cast<PyArrayObject*>(array);
  npy_intp dims[kMaxDims], strides[kMaxDims];
  for (int d = 0; d < ndim; ++d) dims[d] = shape[d], strides[d] = stride[d];
  PyArray_Descr* descriptor = PyArray_DESCR(base);
  Py_INCREF(descriptor);
  PyObject* view = PyArray_NewFromDescr(array_type, descriptor, ndim, dims, strides, PyArray_DATA(base), 0, nullptr);
  if (!view) throw PythonError{};
  Py_INCREF(array);
  PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(view), array);
  PyArray_UpdateFlags(reinterpret_cast<PyArrayObject*>(view),
                      NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_F_CONTIGUOUS | NPY_ARRAY_ALIGNED);
  return view;
}

#if defined(PB_CUDA)
void begin_call() {}
void register_device_arrays(PyObject* type) { array_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(type)); }
#endif

bool prepare_storage() {
  array_type = &PyArray_Type;
  return prepare_buffers();
}

}  // namespace pb
