// Instructions that the decoder alone uses.
#pragma once

// Nanoseconds by a clock that all SMs share; it ticks more coarsely than they do.
__device__ inline unsigned long long global_ns() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

// The same number, of which the compiler knows no more: what is computed from it is computed where it is used, rather than
// kept in registers from before a loop.
__device__ inline int recomputed(int v) {
    asm volatile("" : "+r"(v));
    return v;
}
