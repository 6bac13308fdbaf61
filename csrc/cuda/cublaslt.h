// NVIDIA's library for large products, cuBLASLt, if the machine has it: found at run time, and never needed.
#pragma once
#include "cuda/gemm.h"

namespace pb::cuda {

// The library's functions that are called here, by name; the table of their addresses has this order.
constexpr const char* kLibraryFunctions[] = {"cublasLtCreate",
                                             "cublasLtMatmulDescCreate",
                                             "cublasLtMatmulDescDestroy",
                                             "cublasLtMatmulDescSetAttribute",
                                             "cublasLtMatrixLayoutCreate",
                                             "cublasLtMatrixLayoutDestroy",
                                             "cublasLtMatrixLayoutSetAttribute",
                                             "cublasLtMatmulPreferenceCreate",
                                             "cublasLtMatmulPreferenceDestroy",
                                             "cublasLtMatmulPreferenceSetAttribute",
                                             "cublasLtMatmulAlgoGetHeuristic",
                                             "cublasLtMatmul"};
constexpr int kLibraryCount = sizeof kLibraryFunctions / sizeof *kLibraryFunctions;

// Who finds the library: fills in the addresses, or says false. Asked once, at the first large product, from any thread.
using FindLibrary = bool (*)(void* (&addresses)[kLibraryCount]);
void find_library_by(FindLibrary find);

bool has_library();
// False where the library is missing or has no way to do it: then our own kernels do.
bool multiply_by_library(const Product& product);

}  // namespace pb::cuda
