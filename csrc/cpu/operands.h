// The operands of a launch in the type of its computation.
#pragma once
#include "cpu/copy.h"
#include "cpu/index.h"

namespace pb::cpu {

// The operands of a launch as contiguous arrays of T. finish() converts the results to the dtype of the outputs, if that is another.
template <class T> class Operands {
 public:
  explicit Operands(const Launch& launch) : launch_(launch) {
    for (int k = 0; k < launch.outputs && k < kOutputs; ++k) {
      const View& out = launch.out(k);
      outs_[k] = out.dtype == wide_ || !out.data ? out.as<T>() : scratch_.take<T>(out.size());
    }
    y = outs_[0];
  }
  const T* in(int k) { return contiguous_as(wide_, launch_.in(k), scratch_).template as<T>(); }
  // Returns null for an output that is not needed.
  T* out(int k) const { return outs_[k]; }
  void finish() {
    for (int k = 0; k < launch_.outputs && k < kOutputs; ++k) {
      const View& out = launch_.out(k);
      if (out.dtype != wide_ && out.data) assign(out, contiguous_view(outs_[k], wide_, out));
    }
  }

  T* y;  // the first output

 private:
  static constexpr int kOutputs = 2;
  const DType wide_ = storage_of(compute_of<T>);
  const Launch& launch_;
  Scratch scratch_;
  T* outs_[kOutputs] = {};
};

}  // namespace pb::cpu
