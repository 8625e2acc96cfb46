// kernels/common/ptx/split_blocks.cuh on the CPU, which has no clusters: a block alone.
#pragma once
#include "rooflab_simt.h"

static_assert(SPLITS == 1, "clusters of blocks are for GPUs");
#define OF_SPLITS
static inline void wait_for_splits() { __syncthreads(); }
static inline float4 of_split(const float4* shared, unsigned) { return *shared; }
