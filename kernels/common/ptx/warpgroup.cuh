// What warpgroups do besides products: hand over registers, take turns, and order their stores before asynchronous
// reads (sm_90a).
#pragma once

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// From here on a thread of this warpgroup may have REGISTERS (a multiple of 8): more than the launch gave it, or fewer.
template <int REGISTERS>
__device__ inline void setmaxnreg_more() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ inline void setmaxnreg_fewer() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// What ordinary stores and asynchronous copies of this thread put into shared memory, wgmma may read after this.
__device__ inline void warpgroup_shared_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Named barrier `id` (1 to 15) opens when `threads` have come to it: those that wait and those that only pass by.
__device__ inline void warpgroup_wait_turn(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ inline void warpgroup_pass_turn(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
#endif
