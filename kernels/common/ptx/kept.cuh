// Values that the compiler is to keep in a register, or to compute anew.
#pragma once

// The same pointer, in a register: the compiler can't work it out anew at every use, as it does with addresses of shared
// memory (on Hopper by way of a slow special register).
template <typename T>
__device__ inline T* kept(T* p) {
    asm("mov.b64 %0, %0;" : "+l"(p));
    return p;
}

// The same number, of which the compiler knows no more: what is computed from it is computed where it is used, rather than
// kept in registers from before a loop.
__device__ inline int recomputed(int v) {
    asm volatile("" : "+r"(v));
    return v;
}
