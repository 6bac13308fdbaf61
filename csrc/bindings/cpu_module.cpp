// The Python module of CPU kernels, which is built once per SIMD level. It has one function per op, named like the op, and one
// `_pullback` function per fused pullback.
#include <pybind11/pybind11.h>

#include "bindings/gil.h"
#include "bindings/tables.h"
#include "cpu/allocator.h"
#include "cpu/blas.h"
#include "cpu/memory_limit.h"
#include "cpu/pool.h"

namespace py = pybind11;

PYBIND11_MODULE(PB_MODULE, mod) {
  mod.doc() = "CPU kernels: one function per op and one `_pullback` per fused pullback, named as in csrc/math/*.def.";
  if (!pb::prepare_arrays()) throw py::error_already_set();
  try {
    pb::bind_families(mod.ptr());
  } catch (const pb::PythonError&) {
    throw py::error_already_set();
  }
  mod.def("register_bfloat16", [](py::handle dtype) { pb::register_bfloat16(dtype.ptr()); });
  mod.def("blas_core", &pb::cpu::blas_core);      // the kernels that OpenBLAS chose for this CPU, such as "SkylakeX"
  mod.def("blas_config", &pb::cpu::blas_config);  // the version and the build options of OpenBLAS
  mod.def("register_tensors", [](py::handle tensor, py::handle holders) {
    try {
      pb::register_tensors(tensor.ptr(), holders.ptr());
    } catch (const pb::PythonError&) {
      throw py::error_already_set();
    }
  });
  mod.def("forward", [](const std::string& name, py::handle function, py::handle type) {
    pb::forward(name.c_str(), function.ptr(), type.ptr());
  });
  // Returns the number of bytes given back to the system: see cpu/allocator.h.
  mod.def("trim_cache", &pb::cpu::trim_cache, py::call_guard<pb::Released>());
  // Returns (bytes in the cache, the limit in bytes, what sets the limit).
  mod.def("cache_use", [] {
    const pb::cpu::CacheUse use = pb::cpu::cache_use();
    return py::make_tuple(use.cached, use.limit, use.source);
  });
  // Returns (bytes, what sets the limit). Tests pass `root`: see cpu/cgroup.h.
  mod.def(
      "memory_limit",
      [](const std::string& root) {
        const pb::cpu::MemoryLimit limit = pb::cpu::memory_limit(root);
        return py::make_tuple(limit.bytes, limit.source);
      },
      py::arg("root") = "");
  mod.def("thread_count", &pb::cpu::thread_count);
  mod.def("usable_cpus", &pb::cpu::usable_cpus, py::arg("root"));  // tests pass a root, as above
  mod.def("set_thread_count", &pb::cpu::set_thread_count, py::arg("count"));
}
