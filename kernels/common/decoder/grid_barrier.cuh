// A barrier across the grid.
#pragma once

__device__ inline void arrive(const Room& room, unsigned* counter) {
    sync_workers(room);
    if (threadIdx.x == 0) add_release(counter, 1);
}

template <int WAITER = 0>
__device__ inline void wait_for_all(const Room& room, const unsigned* counter, unsigned target) {
    if (threadIdx.x == WAITER)
        while (load_acquire(counter) < target) {
        }
    sync_workers(room);
}
