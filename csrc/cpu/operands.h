// The operands of a launch in the type of its computation.
#pragma once
#include "cpu/copy.h"
#include "cpu/index.h"

namespace pb::cpu {

// The operands of a launch as contiguous arrays of T. finish() converts the result to the dtype of the output, if that is another.
template <class T> class Operands {
 public:
  explicit Operands(const Launch& launch) : launch_(launch) {
    const View& out = launch.out();
    y = out.dtype == wide_ ? out.as<T>() : scratch_.take<T>(out.size());
  }
  const T* in(int k) { return contiguous_as(wide_, launch_.in(k), scratch_).template as<T>(); }
  void finish() {
    const View& out = launch_.out();
    if (out.dtype != wide_) assign(out, contiguous_view(y, wide_, out));
  }

  T* y;

 private:
  const DType wide_ = storage_of(compute_of<T>);
  const Launch& launch_;
  Scratch scratch_;
};

}  // namespace pb::cpu
