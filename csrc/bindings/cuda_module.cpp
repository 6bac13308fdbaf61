// The Python module of CUDA kernels. Its functions have the same names and arguments as those of the CPU module.
#include <pybind11/pybind11.h>

#include "bindings/buffer.h"
#include "bindings/gil.h"
#include "bindings/recorder.h"
#include "bindings/storage.h"
#include "bindings/tables.h"
#include "cuda/cublaslt.h"
#include "cuda/device.h"

#if defined(PB_CUDASIM)
#include "cuda/launch.cuh"
#endif

namespace py = pybind11;

namespace {

PyObject* library_finder = nullptr;  // find(names) returns the addresses of these functions of a library, or None

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
  } catch (const std::exception&) {  // the finder did not return a list of addresses
  }
  return false;
}

PyObject* memory_releaser = nullptr;  // release() frees GPU memory that other libraries cache

void release_elsewhere() {
  const py::gil_scoped_acquire held;
  try {
    py::reinterpret_borrow<py::object>(memory_releaser)();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("making room on the GPU");
  }
}

// Makes `device` the device of this thread's later calls. When the object is destroyed, CUDA's own current device, which other
// libraries use, is again the caller's.
struct At {
  const pb::cuda::OnDevice on_device;
  explicit At(int device) { pb::cuda::use_device(device); }
};

py::object uploaded(py::handle array) {
  const pb::View from = pb::host_view_or_refuse(array.ptr());
  pb::View to;
  auto made = py::reinterpret_steal<py::object>(pb::new_array(from.dtype, from.ndim, from.shape, to));
  if (pb::recording()) pb::on_free(to.data);  // no launch writes it, so it is not a temporary of the recording
  pb::cuda::upload(to.data, from.data, size_t(from.bytes()));
  return made;
}

void bind_memory(py::module_& mod) {
  mod.attr("Buffer") = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(&pb::buffer_type));
  // Returns an array with one axis. The caller reshapes it, possibly to more axes than kernels support.
  mod.def("new_array", [](int64_t size, py::handle dtype) {
    pb::View view;
    auto array = py::reinterpret_steal<py::object>(pb::new_array(pb::dtype_of(dtype.ptr()), 1, &size, view));
    if (pb::recording()) pb::on_free(view.data);  // no launch writes it, so it is not a temporary of the recording
    return array;
  });
  mod.def("upload", [](py::handle array, int device) {  // returns a copy of a NumPy array in the device's memory
    const At at(device);
    return uploaded(array);
  });
  mod.def(
      "trim",
      [](int device) {  // returns the number of bytes given back to the driver
        const At at(device);
        return pb::cuda::trim();
      },
      py::arg("device") = 0);
  mod.def(
      "memory",
      [](int device) {  // returns bytes: (live, cached, peak, free, total, the live bytes of each holder)
        const At at(device);
        const pb::cuda::MemoryUse use = pb::cuda::memory_use();
        const auto of = py::make_tuple(use.of[0], use.of[1], use.of[2], use.of[3]);
        return py::make_tuple(use.live, use.cached, use.peak, use.free, use.total, of);
      },
      py::arg("device") = 0);
  mod.def("driver_calls", [] {  // returns how often memory was asked of the driver, and given back to it, on all devices
    const pb::cuda::DriverCalls calls = pb::cuda::driver_calls();
    return py::make_tuple(calls.allocations, calls.releases);
  });
  mod.def("reset_peak", [](int device) {
    const At at(device);
    pb::cuda::reset_peak();
  });
  // Sets the function that the allocator calls before its last attempt when the driver has no memory left.
  mod.def("free_memory_by", [](py::object release) {
    memory_releaser = release.release().ptr();
    pb::cuda::free_memory_by(release_elsewhere);
  });
}

// Functions that order the device's work with the streams of other libraries: see StreamNumber in cuda/device.h.
void bind_streams(py::module_& mod) {
  mod.def("stream", [](int device) {
    const At at(device);
    return reinterpret_cast<uintptr_t>(pb::cuda::stream());
  });
  mod.def("synchronize", [](int device) {
    const pb::Released released;
    const At at(device);
    pb::cuda::synchronize();
  });
  mod.def("wait_for", [](int device, uintptr_t stream) {
    const At at(device);
    pb::cuda::order(stream, 0);
  });
  mod.def("let_wait", [](int device, uintptr_t stream) {
    const At at(device);
    pb::cuda::order(0, stream);
  });
  mod.def("wait_for_all", [](int device) {
    const pb::Released released;
    const At at(device);
    pb::cuda::wait_for_all();
  });
  // Returns a number for `passed`, which the caller must call until it returns true. Returns 0 if the driver refuses.
  mod.def("moment", [](int device, uintptr_t stream) {
    const At at(device);
    return reinterpret_cast<uintptr_t>(pb::cuda::moment_in(stream));
  });
  mod.def("passed", [](uintptr_t moment) {  // returning true frees the moment
    return pb::cuda::passed(reinterpret_cast<pb::cuda::Moment*>(moment));
  });
}

#if defined(PB_CUDASIM)
// Functions of the simulator that tests use to play another library: its streams, its memory, and a capture that is discarded.
void bind_simulator(py::module_& mod) {
  py::module_ sim = mod.def_submodule("simulator");
  sim.def("new_stream", [](bool late) {
    cudaStream_t stream = nullptr;
    pb::cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    pb::cuda::check(cudasim::make_late(stream, late), "making a stream late");
    return reinterpret_cast<uintptr_t>(stream);
  });
  sim.def("make_late", [](uintptr_t stream, bool late) {
    pb::cuda::check(cudasim::make_late(reinterpret_cast<cudaStream_t>(stream), late), "making a stream late");
  });
  sim.def("order", &pb::cuda::order);
  sim.def("synchronize", [](uintptr_t stream) {
    pb::cuda::check(cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(stream)), "waiting for a stream");
  });
  sim.def("allocate", [](size_t bytes) {
    void* data = nullptr;
    pb::cuda::check(cudaMalloc(&data, bytes), "allocating memory");
    return reinterpret_cast<uintptr_t>(data);
  });
  sim.def("release", [](uintptr_t data, uintptr_t stream) {  // frees in the order of the stream, as a memory pool does
    pb::cuda::check(cudaFreeAsync(reinterpret_cast<void*>(data), reinterpret_cast<cudaStream_t>(stream)), "releasing memory");
  });
  sim.def("copy", [](uintptr_t stream, uintptr_t to, uintptr_t from, size_t bytes) {
    pb::cuda::check(cudaMemcpyAsync(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes, cudaMemcpyDefault,
                                    reinterpret_cast<cudaStream_t>(stream)),
                    "copying");
  });
  sim.def(
      "capture",
      // Calls work() while this thread's launches are captured into a graph that never runs. Returns the number of its nodes.
      [](py::object work, int mode) {
        cudaStream_t stream = nullptr;
        pb::cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
        const pb::cuda::OnStream redirected(stream);
        pb::cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureMode(mode)), "beginning a graph");
        work();
        cudaGraph_t graph = nullptr;
        pb::cuda::check(cudaStreamEndCapture(stream, &graph), "ending a graph");
        size_t count = 0;
        (void)cudaGraphGetNodes(graph, nullptr, &count);
        (void)cudaGraphDestroy(graph);
        (void)cudaStreamDestroy(stream);
        return count;
      },
      py::arg("work"), py::arg("mode") = int(cudaStreamCaptureModeRelaxed));
}
#endif

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
  mod.def("use_device", [](int device) {  // selects the device of calls whose arguments do not include an array
    const At at(device);
  });
#if defined(PB_CUDASIM)
  mod.attr("simulated") = true;
#else
  mod.attr("simulated") = false;
#endif
  mod.def("why_not", []() -> py::object {
    std::string why;
    return pb::cuda::device_count(why) > 0 ? py::object(py::none()) : py::str(why);
  });
  mod.def("device_count", [] {
    std::string why;
    return pb::cuda::device_count(why);
  });
  mod.def("versions", [] { return py::make_tuple(pb::cuda::driver_version(), pb::cuda::runtime_version()); });
  // Sets the function that the first large product calls. find(names) returns the addresses of cuBLASLt's functions, or None.
  mod.def("find_cublaslt", [](py::object find) {
    library_finder = find.release().ptr();
    pb::cuda::find_library_by(find_library);
  });
  bind_memory(mod);
  bind_streams(mod);
#if defined(PB_CUDASIM)
  bind_simulator(mod);
#endif
}
