// Releases the GIL, and handles threads that Python ends.
//
// A daemon thread that requests the GIL while the interpreter shuts down must never run again. Python 3.14 suspends it. Earlier
// versions end it by unwinding its stack, and an unwinding that passes through certain destructors and handlers ends the process.
// Code that may request the GIL therefore catches the unwinding and suspends the thread, as Python 3.14 does.
#pragma once
#include <Python.h>
#include <unistd.h>
#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

namespace pb {

#if defined(__GLIBCXX__)
using ThreadEnd = abi::__forced_unwind;
#else
struct ThreadEnd {};  // never thrown: other systems end a thread without unwinding its stack
#endif

[[noreturn]] inline void sleep_until_exit() {
  for (;;) pause();
}

// Releases the GIL for the lifetime of the object. If the thread waits for a lock meanwhile, the holder of that lock must be able
// to release it without the GIL.
class Released {
 public:
  Released() : state_(PyEval_SaveThread()) {}
  ~Released() {
    try {
      PyEval_RestoreThread(state_);
    } catch (ThreadEnd&) {
      sleep_until_exit();
    }
  }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace pb
