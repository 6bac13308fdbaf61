// The Python module of CPU kernels, which is built once per SIMD level. It has one function per op, named like the op, and one
// `_pullback` function per fused pullback. It needs nothing of pybind11, whose headers would take longer to compile than the file.
#include "bindings/gil.h"
#include "bindings/result.h"
#include "bindings/tables.h"
#include "cpu/allocator.h"
#include "cpu/blas.h"
#include "cpu/memory_limit.h"
#include "cpu/pool.h"

namespace pb {
namespace {

using Arguments = PyObject* const*;

const char* text(PyObject* object) {
  const char* characters = PyUnicode_AsUTF8(object);
  if (!characters) throw PythonError{};
  return characters;
}

void bind_arrays(PyObject* module) {
  const auto bfloat16 = [](const void*, Arguments args, Py_ssize_t count) {
    expect_count(count, 1);
    register_bfloat16(args[0]);
    return Py_NewRef(Py_None);
  };
  const auto tensors = [](const void*, Arguments args, Py_ssize_t count) {
    expect_count(count, 2);
    register_tensors(args[0], args[1]);
    return Py_NewRef(Py_None);
  };
  const auto elsewhere = [](const void*, Arguments args, Py_ssize_t count) {
    expect_count(count, 3);
    forward(text(args[0]), args[1], args[2]);
    return Py_NewRef(Py_None);
  };
  define(module, "register_bfloat16", bfloat16, nullptr);
  define(module, "register_tensors", tensors, nullptr);
  define(module, "forward", elsewhere, nullptr);
}

void bind_memory(PyObject* module) {
  // Returns the number of bytes given back to the system: see cpu/allocator.h.
  const auto trim = [](const void*, Arguments, Py_ssize_t count) {
    expect_count(count, 0);
    int64_t bytes;
    {
      const Released released;
      bytes = cpu::trim_cache();
    }
    return PyLong_FromLongLong(bytes);
  };
  // Returns (bytes in the cache, the limit in bytes, what sets the limit).
  const auto use = [](const void*, Arguments, Py_ssize_t count) {
    expect_count(count, 0);
    const cpu::CacheUse now = cpu::cache_use();
    return Py_BuildValue("(LLs)", (long long)now.cached, (long long)now.limit, now.source.c_str());
  };
  // memory_limit(root="") -> (bytes, what sets the limit). Tests pass `root`: see cpu/cgroup.h.
  const auto limit = [](const void*, Arguments args, Py_ssize_t count) {
    if (count != 0) expect_count(count, 1);
    const cpu::MemoryLimit found = cpu::memory_limit(count ? text(args[0]) : "");
    return Py_BuildValue("(Ls)", (long long)found.bytes, found.source.c_str());
  };
  define(module, "trim_cache", trim, nullptr);
  define(module, "cache_use", use, nullptr);
  define(module, "memory_limit", limit, nullptr);
}

void bind_machine(PyObject* module) {
  // The kernels that OpenBLAS chose for this CPU, such as "SkylakeX", and its version with its build options.
  const auto core = [](const void*, Arguments, Py_ssize_t count) {
    expect_count(count, 0);
    return PyUnicode_FromString(cpu::blas_core());
  };
  const auto config = [](const void*, Arguments, Py_ssize_t count) {
    expect_count(count, 0);
    return PyUnicode_FromString(cpu::blas_config());
  };
  const auto threads = [](const void*, Arguments, Py_ssize_t count) {
    expect_count(count, 0);
    return PyLong_FromLong(cpu::thread_count());
  };
  const auto set_threads = [](const void*, Arguments args, Py_ssize_t count) {
    expect_count(count, 1);
    const int64_t wanted = to_int(args[0]);
    if (wanted != int(wanted)) throw Refused{"too many threads"};
    cpu::set_thread_count(int(wanted));
    return Py_NewRef(Py_None);
  };
  const auto cpus = [](const void*, Arguments args, Py_ssize_t count) {  // tests pass a root, as above
    expect_count(count, 1);
    return PyLong_FromLong(cpu::usable_cpus(text(args[0])));
  };
  define(module, "blas_core", core, nullptr);
  define(module, "blas_config", config, nullptr);
  define(module, "thread_count", threads, nullptr);
  define(module, "set_thread_count", set_threads, nullptr);
  define(module, "usable_cpus", cpus, nullptr);
}

int fill(PyObject* module) {
  if (!prepare_arrays()) return -1;
  try {
    bind_families(module);
    bind_arrays(module);
    bind_memory(module);
    bind_machine(module);
    return 0;
  } catch (...) {
    raise_current("import");
  }
  return -1;
}

PyModuleDef_Slot slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(fill)},
#if PY_VERSION_HEX >= 0x030c0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, nullptr},
};

#define PB_TEXT_OF(name) #name
#define PB_NAME(name) PB_TEXT_OF(name)
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    PB_NAME(PB_MODULE),
    "CPU kernels: one function per op and one `_pullback` per fused pullback, named as in csrc/math/*.def.",
    0,
    nullptr,
    slots,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace
}  // namespace pb

#define PB_JOINED(a, b) a##b
#define PB_INIT(name) PB_JOINED(PyInit_, name)
PyMODINIT_FUNC PB_INIT(PB_MODULE)() { return PyModuleDef_Init(&pb::definition); }
