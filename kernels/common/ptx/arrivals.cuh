// Barriers that count arrivals (mbarrier, sm_80 and up).
//
// A barrier's phase ends when so many have arrived; phases are told apart by their parity, the first one's being 0.
// arrivals_wait waits for the end of the current phase, or returns at once if the phase before was that parity's.
// sync_some is a __syncthreads for `threads` threads of a block, whole warps (named barrier `id`, 1 to 15); its barrier
// was begun with as many arrivals, which only the CPU counts.
#pragma once

#if __CUDA_ARCH__ >= 800
__device__ inline void arrivals_init(unsigned long long* barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(arrivals)
                 : "memory");
}

__device__ inline void arrivals_add(unsigned long long* barrier) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(
                     (unsigned)__cvta_generic_to_shared(barrier))
                 : "memory");
}

// An arrival that comes by itself, once all copies that this thread has started (cp.async) are done.
__device__ inline void arrivals_add_when_copied(unsigned long long* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"((unsigned)__cvta_generic_to_shared(barrier))
                 : "memory");
}

__device__ inline void sync_some(unsigned long long*, int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Would arrivals_wait return at once?
__device__ inline bool arrivals_over(unsigned long long* barrier, unsigned parity) {
    unsigned over;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(over)
                 : "r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(parity)
                 : "memory");
    return over;
}

__device__ inline void arrivals_wait(unsigned long long* barrier, unsigned parity) {
    unsigned done = 0;
    while (!done)
#if __CUDA_ARCH__ >= 900
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#else
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#endif
                     : "=r"(done)
                     : "r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(parity)
                     : "memory");
}
#endif
