// Blocks that divide k: a cluster of SPLITS blocks of one column of the grid, or a block alone.
#pragma once
#include "common/ptx/cluster.cuh"

#if SPLITS > 1
#define OF_SPLITS __cluster_dims__(1, SPLITS, 1)
#else
#define OF_SPLITS
#endif

// All threads of all these blocks wait here; what each wrote into shared memory before, all see after.
__device__ inline void wait_for_splits() {
#if SPLITS > 1
    cluster_wait();
#else
    __syncthreads();
#endif
}

// What the block of part `split` has at this place of its shared memory.
__device__ inline float4 of_split(const float4* shared, unsigned split) {
#if SPLITS > 1
    return cluster_load(shared, split);
#else
    return *shared;
#endif
}
