// Asynchronous copies to shared memory: __pipeline_memcpy_async and so on. A copy is performed when its thread waits for it, and no
// earlier.
#pragma once

#include <cstddef>

namespace cudasim {

inline thread_local size_t pending_copies = 0;  // copies that threads of the running block have started but not performed

void start_copy(void* shared, const void* global, size_t bytes, size_t zeros);
void commit_copies();
void wait_for_copies(size_t prior);   // performs the calling thread's copies, except the last `prior` groups
void finish_copies(unsigned thread);  // performs all copies of a thread

}  // namespace cudasim

inline void __pipeline_memcpy_async(void* shared, const void* global, size_t bytes, size_t zeros = 0) {
  cudasim::start_copy(shared, global, bytes, zeros);
}
inline void __pipeline_commit() { cudasim::commit_copies(); }
inline void __pipeline_wait_prior(size_t prior) { cudasim::wait_for_copies(prior); }
