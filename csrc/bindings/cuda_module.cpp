// The module of CUDA kernels, of the same names and arguments as that of the CPU.
#include <pybind11/pybind11.h>

#include "bindings/recorder.h"
#include "bindings/storage.h"
#include "bindings/tables.h"
#include "cuda/cublaslt.h"
#include "cuda/device.h"

namespace py = pybind11;

namespace {

PyObject* library_finder = nullptr;  // find(names) -> their addresses, or None

bool find_library(void* (&addresses)[pb::cuda::kLibraryCount]) {
  const py::gil_scoped_acquire held;
  try {
    py::list names;
    for (const char* name : pb::cuda::kLibraryFunctions) names.append(name);
    const py::object found = py::reinterpret_borrow<py::object>(library_finder)(names);
    if (found.is_none()) return false;
    for (int k = 0; k < pb::cuda::kLibraryCount; ++k)
      addresses[k] = reinterpret_cast<void*>(found[py::int_(k)].cast<uintptr_t>());
    return true;
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("looking for cuBLASLt");
  } catch (const std::exception&) {  // not a list of addresses
  }
  return false;
}

}  // namespace

PYBIND11_MODULE(PB_MODULE, mod) {
  mod.doc() = "CUDA kernels: one function per op and one `_pullback` per fused pullback, named as in csrc/math/*.def.";
  if (!pb::prepare_arrays()) throw py::error_already_set();
  try {
    pb::bind_families(mod.ptr());
  } catch (const pb::PythonError&) {
    throw py::error_already_set();
  }
  py::register_local_exception_translator([](std::exception_ptr failure) {
    try {
      if (failure) std::rethrow_exception(failure);
    } catch (const py::error_already_set&) {
      throw;
    } catch (...) {
      pb::raise_current("the GPU");
    }
  });
  mod.def("register_bfloat16", [](py::handle dtype) { pb::register_bfloat16(dtype.ptr()); });
  mod.def("register_tensors", [](py::handle tensor, py::handle holders) {
    try {
      pb::register_tensors(tensor.ptr(), holders.ptr());
    } catch (const pb::PythonError&) {
      throw py::error_already_set();
    }
  });
  mod.def("register_arrays", [](py::module_ module, py::handle type) {
    try {
      pb::register_device_arrays(type.ptr());
    } catch (const pb::PythonError&) {
      throw py::error_already_set();
    }
    module.attr("array_type") = type;
  });
  mod.def("use_device", [](int device) {  // for calls without an array that tells the device
    const pb::cuda::OnDevice on_device;
    pb::cuda::use_device(device);
  });
#if defined(PB_CUDASIM)
  mod.attr("simulated") = true;
#else
  mod.attr("simulated") = false;
#endif
  mod.def("new_array", [](int64_t size, py::handle dtype) {  // of one axis: the caller's may be more than a kernel takes
    pb::View view;
    auto array = py::reinterpret_steal<py::object>(pb::new_array(pb::dtype_of(dtype.ptr()), 1, &size, view));
    if (pb::recording()) pb::tell_given_back(view.data);  // no launch writes it: to a recording it is from elsewhere
    return array;
  });
  mod.def("why_not", []() -> py::object {
    std::string why;
    return pb::cuda::device_count(why) > 0 ? py::object(py::none()) : py::str(why);
  });
  mod.def("device_count", [] {
    std::string why;
    return pb::cuda::device_count(why);
  });
  mod.def("versions", [] { return py::make_tuple(pb::cuda::driver_version(), pb::cuda::runtime_version()); });
  mod.def("stream", [](int device) {
    const pb::cuda::OnDevice on_device;
    pb::cuda::use_device(device);
    return reinterpret_cast<uintptr_t>(pb::cuda::stream());
  });
  mod.def("synchronize", [](int device) {
    const py::gil_scoped_release released;
    const pb::cuda::OnDevice on_device;
    pb::cuda::use_device(device);
    pb::cuda::synchronize();
  });
  // find(names) is called at the first large product, and gives the addresses of cuBLASLt's functions, or None.
  mod.def("find_cublaslt", [](py::object find) {
    library_finder = find.release().ptr();
    pb::cuda::find_library_by(find_library);
  });
  mod.def("trim", [] {
    const pb::cuda::OnDevice on_device;
    pb::cuda::trim();
  });
  mod.def("memory", [] {
    const pb::cuda::OnDevice on_device;
    const pb::cuda::MemoryUse use = pb::cuda::memory_use();
    return py::make_tuple(use.used, use.cached, use.free, use.total);
  });
}
