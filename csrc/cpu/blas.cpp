// OpenBLAS always runs with one thread here. Products from kShareFrom on are cut into strips of C that run on pullback's own pool, so
// that there is one pool instead of two that compete for the cores. The strips follow from the shape alone, so the bits do not depend
// on the number of threads.
#include "cpu/blas.h"

#include <cblas.h>
#include <lapacke.h>
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>

#include "cpu/allocator.h"
#include "cpu/pool.h"

extern "C" {
char* scipy_openblas_get_corename(void);
char* scipy_openblas_get_config(void);
void scipy_openblas_set_num_threads(int);
}

namespace pb::cpu {
namespace {

[[maybe_unused]] const bool one_thread = [] {
  scipy_openblas_set_num_threads(1);
  return true;
}();

constexpr size_t kBuffer = size_t{33} << 20;  // bytes of a buffer of OpenBLAS, and some more
// A test for room costs about 3 us, and holds for calls that begin within this time.
constexpr auto kHolds = std::chrono::microseconds(200);

bool has_room(int buffers, size_t more = 0) {
  const size_t bytes = size_t(buffers) * kBuffer + more;
  void* const room = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return false;
  munmap(room, bytes);
  return true;
}

std::atomic<int> inside{0};  // calls that run

#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))
struct ThreadLocal {
  size_t module, offset;
};
extern "C" void* __tls_get_addr(ThreadLocal*);

// Returns glibc's number of the library that has this address, whose thread-local data it finds by it; 0 if there is none.
size_t module_of(uintptr_t address) {
  struct Search {
    uintptr_t address;
    size_t module;
  } search{address, 0};
  const auto visit = [](dl_phdr_info* info, size_t, void* data) {
    auto* const search = static_cast<Search*>(data);
    for (int k = 0; k < info->dlpi_phnum; ++k) {
      const auto& part = info->dlpi_phdr[k];
      if (part.p_type == PT_LOAD && search->address - (info->dlpi_addr + part.p_vaddr) < part.p_memsz) {
        search->module = info->dlpi_tls_modid;
        return 1;
      }
    }
    return 0;
  };
  dl_iterate_phdr(visit, &search);
  return search.module;
}
#endif

// Makes glibc allocate the thread-local data of OpenBLAS, 143 kB, before a thread's first call. If malloc had no memory for it during
// the call, glibc would end the process. Waits for other calls, whose buffers may take that memory.
void take_thread_local() {
#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))
  constexpr size_t kLocal = size_t{160} << 10;  // bytes, with what malloc takes besides
  static thread_local bool taken __attribute__((tls_model("initial-exec"))) = false;
  if (taken) return;
  const auto has_local = [](int others) {
    void* volatile const block = std::malloc(kLocal);
    std::free(block);
    return block && (others == 0 || has_room(others, kLocal));
  };
  static const size_t module = module_of(reinterpret_cast<uintptr_t>(&scipy_openblas_get_corename));
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  for (int others = inside.load(); !has_local(others); others = inside.load()) {
    if (others == 0) {
      trim_cache();
      if (!has_local(0)) throw std::bad_alloc();
      break;
    }
    std::this_thread::yield();
  }
  ThreadLocal first{module, 0};
  if (module) __tls_get_addr(&first);
  taken = true;
#endif
}

// Makes OpenBLAS take its first buffer, which it keeps: a call of LAPACK takes one for a matrix of any size.
void take_first_buffer() {
  static std::atomic<bool> taken{false};
  static std::mutex mutex;
  if (taken.load(std::memory_order_acquire)) return;
  std::lock_guard<std::mutex> lock(mutex);
  if (taken.load(std::memory_order_relaxed)) return;
  if (!has_room(1)) {
    trim_cache();
    if (!has_room(1)) throw std::bad_alloc();
  }
  double one = 1;
  scipy_LAPACKE_dpotrf_work(LAPACK_COL_MAJOR, 'U', 1, &one, 1);
  taken.store(true, std::memory_order_release);
}

// Returns true if there is room for the buffers of so many calls besides the first.
bool has_room_beside(int calls) {
  static std::atomic<int> tested{0};
  static std::atomic<int64_t> until{0};
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  if (calls <= tested.load() && std::chrono::nanoseconds(now).count() < until.load()) return true;
  if (!has_room(calls)) return false;
  tested.store(calls), until.store(std::chrono::nanoseconds(now + kHolds).count());
  return true;
}

constexpr double kShareFrom = 2.5e6;  // the fewest multiply-adds of a product that is shared by threads: about 20 us
// The multiply-adds of a strip. For products of up to 1e6 OpenBLAS has AVX-512 kernels that do not pack: 10x128x1000 then takes 17 us
// on one core instead of 36 us.
constexpr double kStripWork = 1e6;
constexpr int64_t kLeastStrip = 64;  // rows or columns
constexpr int64_t kMaxBlas = std::numeric_limits<int>::max();

template <class T>
struct Product {
  bool ta, tb;
  int64_t m, n, k;
  T alpha;
  const T* a;
  int64_t lda;
  const T* b;
  int64_t ldb;
  T beta;
  T* c;
  int64_t ldc;
};

CBLAS_TRANSPOSE flag(bool transposed) { return transposed ? CblasTrans : CblasNoTrans; }

void call(const Product<float>& p) {
  if (p.n == 1) {
    scipy_cblas_sgemv(CblasRowMajor, flag(p.ta), int(p.ta ? p.k : p.m), int(p.ta ? p.m : p.k), p.alpha, p.a, int(p.lda), p.b,
                      p.tb ? 1 : int(p.ldb), p.beta, p.c, int(p.ldc));
  } else if (p.m == 1) {
    scipy_cblas_sgemv(CblasRowMajor, flag(!p.tb), int(p.tb ? p.n : p.k), int(p.tb ? p.k : p.n), p.alpha, p.b, int(p.ldb), p.a,
                      p.ta ? int(p.lda) : 1, p.beta, p.c, 1);
  } else {
    scipy_cblas_sgemm(CblasRowMajor, flag(p.ta), flag(p.tb), int(p.m), int(p.n), int(p.k), p.alpha, p.a, int(p.lda), p.b,
                      int(p.ldb), p.beta, p.c, int(p.ldc));
  }
}

void call(const Product<double>& p) {
  if (p.n == 1) {
    scipy_cblas_dgemv(CblasRowMajor, flag(p.ta), int(p.ta ? p.k : p.m), int(p.ta ? p.m : p.k), p.alpha, p.a, int(p.lda), p.b,
                      p.tb ? 1 : int(p.ldb), p.beta, p.c, int(p.ldc));
  } else if (p.m == 1) {
    scipy_cblas_dgemv(CblasRowMajor, flag(!p.tb), int(p.tb ? p.n : p.k), int(p.tb ? p.k : p.n), p.alpha, p.b, int(p.ldb), p.a,
                      p.ta ? int(p.lda) : 1, p.beta, p.c, 1);
  } else {
    scipy_cblas_dgemm(CblasRowMajor, flag(p.ta), flag(p.tb), int(p.m), int(p.n), int(p.k), p.alpha, p.a, int(p.lda), p.b,
                      int(p.ldb), p.beta, p.c, int(p.ldc));
  }
}

template <class T> void guarded(const Product<T>& p) {
  const BlasCall running;
  call(p);
}

// Computes rows [i0, i1) and columns [j0, j1) of C.
template <class T>
void tile(Product<T> p, int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
  p.a += p.ta ? i0 : i0 * p.lda;
  p.b += p.tb ? j0 * p.ldb : j0;
  p.c += i0 * p.ldc + j0;
  p.m = i1 - i0;
  p.n = j1 - j0;
  guarded(p);
}

template <class T>
void run(const Product<T>& p) {
  if (p.m <= 0 || p.n <= 0) return;
  if (p.k <= 0) {  // OpenBLAS's matrix-vector product would return without applying beta
    for (int64_t i = 0; i < p.m; ++i) {
      T* row = p.c + i * p.ldc;
      for (int64_t j = 0; j < p.n; ++j) row[j] = p.beta == 0 ? 0 : p.beta * row[j];
    }
    return;
  }
  const double depth = double(p.k), work = double(p.m) * double(p.n) * depth;
  if (work < kShareFrom) return guarded(p);
  const bool tall = p.m > p.n;
  const int64_t side = tall ? p.m : p.n;
  const int64_t fits = static_cast<int64_t>(kStripWork / (double(std::min(p.m, p.n)) * depth)) / 16 * 16;
  const int64_t strip = std::max(fits, kLeastStrip);
  parallel_for((side + strip - 1) / strip, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t first = t * strip, last = std::min(first + strip, side);
      if (tall) tile(p, first, last, 0, p.n);
      else tile(p, 0, p.m, first, last);
    }
  });
}

template <class T>
void checked(Product<T> p) {
  if (p.n > kMaxBlas || p.k > kMaxBlas || p.lda > kMaxBlas || p.ldb > kMaxBlas || p.ldc > kMaxBlas) {
    throw std::length_error("gemm: more than 2^31 - 1 columns");
  }
  // OpenBLAS rejects a row distance of 0, which an empty matrix has.
  p.lda = std::max<int64_t>(p.lda, 1);
  p.ldb = std::max<int64_t>(p.ldb, 1);
  p.ldc = std::max<int64_t>(p.ldc, 1);
  constexpr int64_t kRows = int64_t{1} << 30;
  const Product<T> whole = p;
  for (int64_t i = 0; i < whole.m; i += kRows) {
    p.m = std::min(kRows, whole.m - i);
    p.a = whole.a + (whole.ta ? i : i * whole.lda);
    p.c = whole.c + i * whole.ldc;
    run(p);
  }
}

}  // namespace

BlasCall::BlasCall() {
  take_thread_local();
  take_first_buffer();
  for (int others = inside.fetch_add(1); others > 0 && !has_room_beside(others); others = inside.fetch_add(1)) {
    inside.fetch_sub(1);
    std::this_thread::yield();
  }
}
BlasCall::~BlasCall() { inside.fetch_sub(1); }

void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda, const float* b,
          int64_t ldb, float beta, float* c, int64_t ldc) {
  checked(Product<float>{ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc});
}

void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, double alpha, const double* a, int64_t lda, const double* b,
          int64_t ldb, double beta, double* c, int64_t ldc) {
  checked(Product<double>{ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc});
}

const char* blas_core() { return scipy_openblas_get_corename(); }
const char* blas_config() { return scipy_openblas_get_config(); }

}  // namespace pb::cpu
