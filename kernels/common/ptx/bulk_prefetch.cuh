// Data asked for ahead of their use, many bytes at a time (cp.async.bulk.prefetch, sm_90 and up).
#pragma once

// Bring bytes into L2, and go on at once. Place and number are multiples of 16. Below sm_90 nothing is asked for.
__device__ inline void prefetch_bytes_l2(const void* p, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}
