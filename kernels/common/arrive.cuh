// Find the last of the blocks that share an output, which adds up their parts within the same launch.
#pragma once
#include "common/ptx/ordered.cuh"

// True in every thread of the block that is the last of `parts` to arrive at `counter`, which is then zero again for
// the next launch. What the other blocks wrote before they arrived can be read from here on. Every thread must call it.
__device__ inline bool arrives_last(unsigned* counter, unsigned parts) {
    __shared__ bool last;
    __syncthreads();  // all of this block's writes precede its arrival
    if (threadIdx.x == 0) {
        last = add_release(counter, 1) == parts - 1;
        if (last) {
            load_acquire(counter);
            *counter = 0;
        }
    }
    __syncthreads();
    return last;
}
