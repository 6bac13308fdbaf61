// Fibers: stacks that an OS thread switches between, so that a thread of a block can wait while other threads run.
#pragma once

#include <cstddef>
#include <vector>

#if !defined(__x86_64__) || defined(CUDASIM_UCONTEXT)
#include <ucontext.h>
#define CUDASIM_HAS_UCONTEXT 1
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace cudasim {

#if !defined(CUDASIM_HAS_UCONTEXT)
// Pushes the registers that a function must preserve, stores the stack pointer in *save, and resumes the execution whose stack
// pointer is `load`.
extern "C" void cudasim_switch_stack(void** save, void* load);
#endif

// An execution that can be suspended and resumed. A fiber that was not prepared represents the OS thread's own stack.
class Fiber {
 public:
  // Makes the first switch to this fiber call `entry` on this stack. `entry` must call arrived() first, and must not return.
  void prepare(char* stack, size_t bytes, void (*entry)());

  // Suspends this fiber, which must be the running one, and resumes `to`. Returns when a fiber switches back to this one.
  void switch_to(Fiber& to) {
#if defined(__SANITIZE_ADDRESS__)
    left = this;
    __sanitizer_start_switch_fiber(&fake_stack_, to.stack_, to.bytes_);
#endif
#if defined(CUDASIM_HAS_UCONTEXT)
    swapcontext(&context_, &to.context_);
#else
    cudasim_switch_stack(&stack_pointer_, to.stack_pointer_);
#endif
    arrived(fake_stack_);
  }

  // Notifies the address sanitizer that a switch has ended. The sanitizer returns the bounds of the stack that was left, which is
  // the only way to learn the bounds of an OS thread's own stack.
  static void arrived([[maybe_unused]] void* fake_stack = nullptr) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, &left->stack_, &left->bytes_);
#endif
  }

 private:
  const void* stack_ = nullptr;
  size_t bytes_ = 0;
  void* fake_stack_ = nullptr;
#if defined(CUDASIM_HAS_UCONTEXT)
  ucontext_t context_;
#else
  void* stack_pointer_ = nullptr;
#endif
#if defined(__SANITIZE_ADDRESS__)
  static inline thread_local Fiber* left = nullptr;
#endif
};

// Fibers with the same entry function, kept for reuse.
class FiberPool {
 public:
  explicit FiberPool(void (*entry)()) : entry_(entry) {}
  FiberPool(const FiberPool&) = delete;
  ~FiberPool();

  Fiber* take() {
    if (idle_.empty()) grow();
    Fiber* fiber = idle_.back();
    idle_.pop_back();
    return fiber;
  }
  void give(Fiber* fiber) { idle_.push_back(fiber); }

 private:
  struct Slab;
  void grow();

  void (*entry_)();
  std::vector<Fiber*> idle_;
  std::vector<Slab*> slabs_;
};

}  // namespace cudasim
