// Declares in C++17 what kernels use of <cuda_runtime.h>, <cooperative_groups.h> and <cuda_pipeline.h>, for machines without CUDA.
#pragma once

#include "cudasim/async_copy.h"
#include "cudasim/atomics.h"
#include "cudasim/cooperative_groups.h"
#include "cudasim/device.h"
#include "cudasim/error.h"
#include "cudasim/graph.h"
#include "cudasim/language.h"
#include "cudasim/launch.h"
#include "cudasim/load_store.h"
#include "cudasim/memory.h"
#include "cudasim/numbers.h"
#include "cudasim/shared.h"
#include "cudasim/stream.h"
#include "cudasim/synchronize.h"
#include "cudasim/warp.h"
