// Implements the switch between fibers, in assembly for x86-64 and by ucontext for other machines, and allocates their stacks.
#include "cudasim/fiber.h"

#include <sys/mman.h>

#include <atomic>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace cudasim {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStack = 256 << 10;  // bytes; the sanitizer's red zones make frames larger
#else
constexpr size_t kStack = 64 << 10;  // bytes
#endif
constexpr size_t kGuard = 4 << 10;  // bytes below every stack that cannot be accessed, so that an overflow stops the program
constexpr int kFibersPerSlab = 32;
constexpr int kGuardedSlabs = 512;  // later slabs have no guards: each guard adds mappings, of which Linux allows 65,530
std::atomic<int> slab_count{0};

}  // namespace

#if defined(CUDASIM_HAS_UCONTEXT)

void Fiber::prepare(char* stack, size_t bytes, void (*entry)()) {
  stack_ = stack;
  bytes_ = bytes;
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = bytes;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
}

#else

// By the System V ABI a function preserves rbx, rbp and r12 to r15. The caller saves all other registers.
asm(R"(
  .text
  .p2align 4
  .globl cudasim_switch_stack
  .hidden cudasim_switch_stack
  .type cudasim_switch_stack, @function
cudasim_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size cudasim_switch_stack, .-cudasim_switch_stack
)");

void Fiber::prepare(char* stack, size_t bytes, void (*entry)()) {
  stack_ = stack;
  bytes_ = bytes;
  // Pushes what the switch pops: six registers and the address of entry. The return address of entry is 0, where backtraces end.
  void** top = reinterpret_cast<void**>(stack + bytes);
  *--top = nullptr;  // also misaligns the stack pointer by 8 from a multiple of 16, as at the start of any called function
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  stack_pointer_ = top;
}

#endif

struct FiberPool::Slab {
  char* memory;
  Fiber fibers[kFibersPerSlab];

  static constexpr size_t kEach = kGuard + kStack, kBytes = kFibersPerSlab * kEach;
};

void FiberPool::grow() {
  void* memory = mmap(nullptr, Slab::kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  Slab* slab = new Slab;
  slab->memory = static_cast<char*>(memory);
  slabs_.push_back(slab);
  const bool guarded = slab_count++ < kGuardedSlabs;
  for (int k = kFibersPerSlab; k-- > 0;) {
    char* low = slab->memory + k * Slab::kEach;
    if (guarded) mprotect(low, kGuard, PROT_NONE);
    slab->fibers[k].prepare(low + kGuard, kStack, entry_);
    idle_.push_back(&slab->fibers[k]);
  }
}

FiberPool::~FiberPool() {
  for (Slab* slab : slabs_) {
#if defined(__SANITIZE_ADDRESS__)
    for (int k = 0; k < kFibersPerSlab; ++k) __asan_unpoison_memory_region(slab->memory + k * Slab::kEach + kGuard, kStack);
#endif
    munmap(slab->memory, Slab::kBytes);
    delete slab;
    --slab_count;
  }
}

}  // namespace cudasim
