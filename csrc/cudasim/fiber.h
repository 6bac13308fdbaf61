// Fibers: stacks to switch between, so that a thread of a block can wait while others run.
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
// Pushes the registers that a function must keep, saves the stack pointer, and goes on where `load` was saved.
extern "C" void cudasim_switch_stack(void** save, void* load);
#endif

// An execution that can be left and gone back to. One that was not prepared stands for the OS thread's own stack.
class Fiber {
 public:
  // From the first switch on, runs entry on this stack. Entry calls arrived() first and never returns.
  void prepare(char* stack, size_t bytes, void (*entry)());

  // Leaves this fiber, the one that runs, for another; returns when something switches back.
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

  // What the address sanitizer is told on this side of a switch. It tells in return which stack was left, the only way
  // to learn the bounds of an OS thread's own.
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

// Fibers of one entry, kept for use again.
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
