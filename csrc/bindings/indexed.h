// Functions that the bindings of all ops with indices use.
#pragma once
#include "bindings/result.h"
#include "launch/failure.h"

namespace pb {

inline View indices_or_refuse(PyObject* object) {
  const View v = view_or_refuse(object);
  if (is_float(v.dtype) || v.dtype == DType::b8) throw Refused{"indices that are not integers"};
  return v;
}

// Runs the launch, and rethrows its OutOfRange as BadIndex. That of another kernel, launched earlier on a GPU, passes unchanged.
inline void run_indexed(const Launch& launch, int64_t work) {
  try {
    run_released(launch, work);
  } catch (const OutOfRange& e) {
    if (e.kernel && e.kernel != launch.kernel->name) throw;
    throw BadIndex{e.where, e.index, e.length};
  }
}

}  // namespace pb
