// CUDA, from the toolkit or from the simulator, and the one name of dynamic shared memory.
#pragma once

#if defined(__CUDACC__)
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda_pipeline.h>
#include <cuda_runtime.h>
#else
#include "cudasim/cudasim.h"
#endif

// Kernels cast it to what they keep in it; a name in each kernel would have one type for all of them anyway.
extern __shared__ __align__(16) unsigned char pb_shared[];
