// NVIDIA's cuBLASLt for large products. The library is looked up at run time and is optional.
#pragma once
#include "cuda/gemm.h"

namespace pb::cuda {

// The names of the library functions that are called here. The table of their addresses has the same order.
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

// A function that looks up the library: it fills in the addresses, or returns false. It is called at the first large product, from
// any thread; its answer is kept.
using FindLibrary = bool (*)(void* (&addresses)[kLibraryCount]);
void find_library_by(FindLibrary find);

bool has_library();
// Returns false if the library is missing or cannot compute the product. The caller then uses pullback's own kernels.
bool multiply_by_library(const Product& product);

}  // namespace pb::cuda
