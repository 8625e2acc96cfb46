// A clock that all SMs share; the CPU has none.
#pragma once

#ifdef __CUDA_ARCH__
// Nanoseconds by a clock that all SMs share; it ticks more coarsely than they do.
__device__ inline unsigned long long global_ns() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}
#endif
