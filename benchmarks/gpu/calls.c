// Counts the calls of the CUDA driver that allocate or free memory, or may wait for the device: LD_PRELOAD=calls.so.
//
// CUDA's runtime, linked statically (as in pullback) or dynamically (as in CuPy and cuBLAS), opens libcuda.so.1 and asks dlsym for
// cuGetProcAddress, and that for all other functions. This library takes the place of dlsym, and hands out functions that count
// and then call the driver's. A program that is linked with libcuda itself would not be counted.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// (name without the suffix of a version, parameters, arguments). The asynchronous copies wait if the host's memory is not pinned.
// The first version of cuCtxSynchronize has no parameter, and ignores the register.
#define DRIVER(F)                                                                                                      \
  F(cuMemAlloc, (uint64_t* data, size_t bytes), (data, bytes))                                                         \
  F(cuMemAllocPitch, (uint64_t* data, size_t* pitch, size_t width, size_t rows, unsigned element),                     \
    (data, pitch, width, rows, element))                                                                               \
  F(cuMemAllocManaged, (uint64_t* data, size_t bytes, unsigned flags), (data, bytes, flags))                           \
  F(cuMemAllocAsync, (uint64_t* data, size_t bytes, void* stream), (data, bytes, stream))                              \
  F(cuMemAllocFromPoolAsync, (uint64_t* data, size_t bytes, void* pool, void* stream), (data, bytes, pool, stream))    \
  F(cuMemAllocHost, (void** data, size_t bytes), (data, bytes))                                                        \
  F(cuMemHostAlloc, (void** data, size_t bytes, unsigned flags), (data, bytes, flags))                                 \
  F(cuMemHostRegister, (void* data, size_t bytes, unsigned flags), (data, bytes, flags))                               \
  F(cuMemFree, (uint64_t data), (data))                                                                                \
  F(cuMemFreeAsync, (uint64_t data, void* stream), (data, stream))                                                     \
  F(cuMemFreeHost, (void* data), (data))                                                                               \
  F(cuCtxSynchronize, (void* context), (context))                                                                      \
  F(cuStreamSynchronize, (void* stream), (stream))                                                                     \
  F(cuEventSynchronize, (void* event), (event))                                                                        \
  F(cuMemcpy, (uint64_t to, uint64_t from, size_t bytes), (to, from, bytes))                                           \
  F(cuMemcpyHtoD, (uint64_t to, const void* from, size_t bytes), (to, from, bytes))                                    \
  F(cuMemcpyDtoH, (void* to, uint64_t from, size_t bytes), (to, from, bytes))                                          \
  F(cuMemcpyDtoD, (uint64_t to, uint64_t from, size_t bytes), (to, from, bytes))                                       \
  F(cuMemcpyPeer, (uint64_t to, void* there, uint64_t from, void* here, size_t bytes), (to, there, from, here, bytes)) \
  F(cuMemcpy2D, (const void* copy), (copy))                                                                            \
  F(cuMemcpy2DUnaligned, (const void* copy), (copy))                                                                   \
  F(cuMemcpy3D, (const void* copy), (copy))                                                                            \
  F(cuMemcpyAsync, (uint64_t to, uint64_t from, size_t bytes, void* stream), (to, from, bytes, stream))                \
  F(cuMemcpyHtoDAsync, (uint64_t to, const void* from, size_t bytes, void* stream), (to, from, bytes, stream))         \
  F(cuMemcpyDtoHAsync, (void* to, uint64_t from, size_t bytes, void* stream), (to, from, bytes, stream))

enum {
#define ID(name, parameters, arguments) of_##name,
  DRIVER(ID)
#undef ID
      kFunctions
};

// A function has several forms in the driver: for the default stream of the process and of a thread, and of old versions.
enum { kForms = 4 };

static struct {
  long calls;
  void* real[kForms];
} functions[kFunctions];
static void (*listener)(int);  // called before each counted call with the number of the function

static void count(int function) {
  __atomic_add_fetch(&functions[function].calls, 1, __ATOMIC_RELAXED);
  if (listener) listener(function);
}

#define COUNTING(form, name, parameters, arguments)                       \
  static int name##_##form parameters {                                   \
    count(of_##name);                                                     \
    return ((int(*) parameters)functions[of_##name].real[form])arguments; \
  }
#define ALL_FORMS(name, parameters, arguments) \
  COUNTING(0, name, parameters, arguments)     \
  COUNTING(1, name, parameters, arguments)     \
  COUNTING(2, name, parameters, arguments)     \
  COUNTING(3, name, parameters, arguments)
DRIVER(ALL_FORMS)

static const struct {
  const char* name;
  void* counting[kForms];
} names[kFunctions] = {
#define NAMES(name, parameters, arguments) {#name, {(void*)name##_0, (void*)name##_1, (void*)name##_2, (void*)name##_3}},
    DRIVER(NAMES)
#undef NAMES
};

static void fail(const char* why, const char* name) {
  fprintf(stderr, "calls.c: %s %s\n", why, name);
  abort();
}

// Returns the counting form of a function of the driver.
static void* counting(int function, void* real) {
  for (int form = 0; form < kForms; ++form) {
    void* found = NULL;
    if (__atomic_compare_exchange_n(&functions[function].real[form], &found, real, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) ||
        found == real)
      return names[function].counting[form];
  }
  fail("too many forms of", names[function].name);
  return NULL;
}

// Returns the number of the function that a symbol is a form of, or -1.
static int function_of(const char* symbol) {
  static const char* const suffixes[] = {"", "_v2", "_v3", "_ptds", "_ptsz", "_v2_ptds", "_v2_ptsz"};
  for (int k = 0; k < kFunctions; ++k) {
    const size_t length = strlen(names[k].name);
    if (strncmp(symbol, names[k].name, length) != 0) continue;
    for (size_t s = 0; s < sizeof suffixes / sizeof *suffixes; ++s)
      if (strcmp(symbol + length, suffixes[s]) == 0) return k;
  }
  return -1;
}

// ---- the two functions that hand out the driver's functions

static int (*real_get)(const char*, void**, int, uint64_t);
static int (*real_get_v2)(const char*, void**, int, uint64_t, int*);
static int get_v2(const char* symbol, void** function, int version, uint64_t flags, int* status);
static int get(const char* symbol, void** function, int version, uint64_t flags);

// Returns what a program gets for a symbol in place of `real`. version: the CUDA version that it asks for, or 0 if the symbol has
// the suffix of its version.
static void* replaced(const char* symbol, void* real, int version) {
  if (!real) return real;
  if (strcmp(symbol, "cuGetProcAddress_v2") == 0 || (version >= 12000 && strcmp(symbol, "cuGetProcAddress") == 0)) {
    real_get_v2 = (int (*)(const char*, void**, int, uint64_t, int*))real;
    return (void*)get_v2;
  }
  if (strcmp(symbol, "cuGetProcAddress") == 0) {
    real_get = (int (*)(const char*, void**, int, uint64_t))real;
    return (void*)get;
  }
  const int function = function_of(symbol);
  return function < 0 ? real : counting(function, real);
}

static int get(const char* symbol, void** function, int version, uint64_t flags) {
  const int error = real_get(symbol, function, version, flags);
  if (error == 0 && function) *function = replaced(symbol, *function, version);
  return error;
}
static int get_v2(const char* symbol, void** function, int version, uint64_t flags, int* status) {
  const int error = real_get_v2(symbol, function, version, flags, status);
  if (error == 0 && function) *function = replaced(symbol, *function, version);
  return error;
}

static void* (*real_dlsym)(void*, const char*);

static void find_dlsym(void) {
  static const char* const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
  for (size_t k = 0; k < sizeof versions / sizeof *versions && !real_dlsym; ++k)
    real_dlsym = (void* (*)(void*, const char*))dlvsym(RTLD_NEXT, "dlsym", versions[k]);
  if (!real_dlsym) fail("the C library has no", "dlsym");
}

// For RTLD_NEXT glibc's dlsym looks where it is called from. With -O2 its first call here is a jump, which does not change that.
void* dlsym(void* handle, const char* symbol) {
  if (!real_dlsym) find_dlsym();
  if (strncmp(symbol, "cu", 2) != 0) return real_dlsym(handle, symbol);
  return replaced(symbol, real_dlsym(handle, symbol), 0);
}

// ---- for the program that reads the counts

int calls_functions(void) { return kFunctions; }
const char* calls_name(int function) { return names[function].name; }
long calls_made(int function) { return __atomic_load_n(&functions[function].calls, __ATOMIC_RELAXED); }
void calls_listen(void (*f)(int)) { listener = f; }
