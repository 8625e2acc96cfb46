// Words that several GPUs share: what one stores and another waits for, ordered over the whole system.
#pragma once

// Store a word after all that this thread, and those it met at a barrier, wrote before, as every GPU sees it.
__device__ inline void store_release_system(unsigned* p, unsigned v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// Load a word, and with it all that was written before it was stored.
__device__ inline unsigned load_acquire_system(const unsigned* p) {
    unsigned v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// Two 8-byte words in one 16-byte access. Each arrives whole; nothing is ordered, neither between them nor around them.
__device__ inline void store_pair_system(ulonglong2* p, ulonglong2 v) {
    asm volatile("st.volatile.global.v2.u64 [%0], {%1,%2};" ::"l"(p), "l"(v.x), "l"(v.y) : "memory");
}

__device__ inline ulonglong2 load_pair_system(const ulonglong2* p) {
    ulonglong2 v;
    asm volatile("ld.volatile.global.v2.u64 {%0,%1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(p) : "memory");
    return v;
}
