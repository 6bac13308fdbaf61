// CUDA from the toolkit or from the simulator, and the common name of dynamic shared memory.
#pragma once

#if defined(__CUDACC__)
#include <cuda_pipeline.h>
#include <cuda_runtime.h>
#else
#include "cudasim/cudasim.h"
#endif

// Kernels cast this array to the type that they need. The name must be shared, because an extern array has one type in all kernels.
extern __shared__ __align__(16) unsigned char pb_shared[];
