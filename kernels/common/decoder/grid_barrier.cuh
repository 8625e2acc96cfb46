// Synchronise all blocks of a cooperative launch: `counter` counts arrivals of blocks, and `target` is the count to wait
// for.
#pragma once
#include "common/ptx/ordered.cuh"

__device__ inline void arrive_at_grid_barrier(const Smem& smem, unsigned* counter) {
    sync_consumers(smem);
    if (threadIdx.x == 0) add_release(counter, 1);
}

// Thread WAITER polls; the others wait for it.
template <int WAITER = 0>
__device__ inline void wait_at_grid_barrier(const Smem& smem, const unsigned* counter, unsigned target) {
    if (threadIdx.x == WAITER)
        while (load_acquire(counter) < target) {
        }
    sync_consumers(smem);
}
