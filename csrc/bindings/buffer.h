// Buffer is the Python object that owns the memory of an array and returns it to the allocator.
#pragma once
#include "bindings/arrays.h"
#include "bindings/recorder.h"
#include "launch/memory.h"

namespace pb {

struct Buffer {
  PyObject_HEAD
  Allocation block;
};

inline PyTypeObject buffer_type;  // prepare_buffers() fills it in

inline void buffer_free(PyObject* self) {
  const Allocation& block = reinterpret_cast<Buffer*>(self)->block;
  if (recordings.load(std::memory_order_relaxed)) on_free(static_cast<char*>(block.data));
  pb::release(block);
  PyObject_Free(self);
}

inline bool prepare_buffers() {  // must be called once; returns false with a Python exception set
  buffer_type.ob_base = {PyObject_HEAD_INIT(nullptr) 0};
  buffer_type.tp_name = "pullback.Buffer";
  buffer_type.tp_basicsize = sizeof(Buffer);
  buffer_type.tp_flags = Py_TPFLAGS_DEFAULT;
  buffer_type.tp_dealloc = buffer_free;
  return PyType_Ready(&buffer_type) == 0;
}

inline Buffer* new_buffer(size_t bytes) {
  const Allocation block = pb::allocate(bytes);
  auto* buffer = PyObject_New(Buffer, &buffer_type);
  if (!buffer) {
    pb::release(block);
    throw PythonError{};
  }
  buffer->block = block;
  return buffer;
}

}  // namespace pb
