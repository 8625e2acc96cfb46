// A word of the host's memory that the host waits for while the kernel runs on.
#pragma once

// Store 8 bytes, which the host sees whole or not yet; nothing around them is ordered.
__device__ inline void store_for_host(unsigned long long* p, unsigned long long v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
