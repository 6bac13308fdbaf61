// Copies to shared memory that are done when a thread waits for them, and no earlier: __pipeline_memcpy_async and so on.
#pragma once

#include <cstddef>

namespace cudasim {

inline thread_local size_t pending_copies = 0;  // of all threads of the block that runs

void start_copy(void* shared, const void* global, size_t bytes, size_t zeros);
void commit_copies();
void wait_for_copies(size_t prior);   // the calling thread's, but for the last `prior` groups
void finish_copies(unsigned thread);  // all of a thread's

}  // namespace cudasim

inline void __pipeline_memcpy_async(void* shared, const void* global, size_t bytes, size_t zeros = 0) {
  cudasim::start_copy(shared, global, bytes, zeros);
}
inline void __pipeline_commit() { cudasim::commit_copies(); }
inline void __pipeline_wait_prior(size_t prior) { cudasim::wait_for_copies(prior); }
