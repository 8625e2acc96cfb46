// probe barrier: `rounds` barriers across the whole grid, by one counter in global memory.
//
// Purpose  what it costs to make every block wait for every other one inside a kernel; the alternative to ending
//          the kernel and launching the next.
// Shapes   counter [1] uint32, zero on entry and on exit; mail [gridDim.x] uint32; seen [gridDim.x] uint32, the
//          rounds in which a block found its neighbour's message of that round: `rounds` for all, if the barrier holds.
// Launch   cooperative (all blocks resident at once), THREADS threads a block.
// Macros   THREADS = 256: threads a block.
#include "common/ptx/ordered.cuh"

__device__ inline void grid_barrier(unsigned* counter, unsigned target) {
    __syncthreads();
    if (threadIdx.x == 0) {
        add_release(counter, 1);
        while (load_acquire(counter) < target) {
        }
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS)
    barrier(unsigned* counter, volatile unsigned* mail, unsigned* seen, unsigned rounds) {
    unsigned found = 0, target = 0;
    for (unsigned round = 1; round <= rounds; ++round) {
        if (threadIdx.x == 0) mail[blockIdx.x] = round;
        grid_barrier(counter, target += gridDim.x);
        // The neighbour may already have posted its next message, but never an older one.
        if (threadIdx.x == 0) found += mail[(blockIdx.x + 1) % gridDim.x] >= round;
    }
    if (threadIdx.x == 0) {
        seen[blockIdx.x] = found;
        // The last block to leave puts the counter back to zero for the next launch.
        if (add_release(counter, 1) == rounds * gridDim.x + gridDim.x - 1) *counter = 0;
    }
}
