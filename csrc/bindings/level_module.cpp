// The module _level reports the x86-64 level of this machine. Python calls it before it loads any code compiled for a level, so
// the module is built for the baseline level, without pybind11. With PB_LEVEL_MAIN this file is a program instead, whose exit
// status is the level; CMake runs it for native-best.

namespace {

// Returns 2, 3 or 4, the highest x86-64 level that both the CPU and the operating system support; 0 below v2 or on another
// architecture.
int level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
#if (defined(__clang__) && __clang_major__ >= 18) || (!defined(__clang__) && __GNUC__ >= 12)
  if (__builtin_cpu_supports("x86-64-v4")) return 4;
  if (__builtin_cpu_supports("x86-64-v3")) return 3;
  if (__builtin_cpu_supports("x86-64-v2")) return 2;
#else  // these compilers are older than the names of the levels; a CPU with the features tested here has a level's other features
  const bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("popcnt");
  const bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  if (v4) return 4;
  if (v3) return 3;
  if (v2) return 2;
#endif
#endif
  return 0;
}

}  // namespace

#ifdef PB_LEVEL_MAIN
int main() { return level(); }
#else
#include <Python.h>

namespace {

PyObject* py_level(PyObject*, PyObject*) { return PyLong_FromLong(level()); }

PyMethodDef methods[] = {
    {"level", py_level, METH_NOARGS, "level() -> int: Returns the x86-64 level of this machine: 2, 3, 4, or 0 for none."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_level", "Finds this machine's x86-64 level.", 0, methods, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__level() { return PyModule_Create(&definition); }
#endif
