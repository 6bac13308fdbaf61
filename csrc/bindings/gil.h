// Work without the GIL, and threads that Python ends.
//
// A daemon thread that asks for the GIL while the interpreter goes away is never to run again. Python 3.14 lets it sleep; earlier
// versions end it by unwinding its stack, through destructors and handlers that such an end is fatal to. So wherever it could come
// from, it is caught, and the thread sleeps as in 3.14.
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
struct ThreadEnd {};  // other systems end a thread without unwinding it
#endif

[[noreturn]] inline void sleep_until_exit() {
  for (;;) pause();
}

// The GIL is released while it lives. Nobody may need the GIL to let go of what the thread waits for without it.
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
