// Barriers that count arrivals and bytes (mbarrier, sm_90a).
//
// An mbarrier's phase ends when `arrivals` have come; phases are told apart by their parity, the first one's being 0.
// Waiting for a parity waits for the end of the current phase of it.
#pragma once

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ inline void mbarrier_init(unsigned long long* barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(arrivals)
                 : "memory");
}

__device__ inline void mbarrier_arrive(unsigned long long* barrier) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(
                     (unsigned)__cvta_generic_to_shared(barrier))
                 : "memory");
}

// An arrival that comes by itself, once all copies that this thread has started (cp.async) are done.
__device__ inline void mbarrier_arrive_when_copied(unsigned long long* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"((unsigned)__cvta_generic_to_shared(barrier))
                 : "memory");
}

// The same barrier in block `rank` of the cluster: one more has arrived.
__device__ inline void mbarrier_arrive_at(unsigned long long* barrier, unsigned rank) {
    asm volatile(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
        "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(
            (unsigned)__cvta_generic_to_shared(barrier)),
        "r"(rank)
        : "memory");
}

// The current phase ends no sooner than `bytes` more have come by tma_copy.
__device__ inline void mbarrier_expect(unsigned long long* barrier, unsigned bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(barrier)),
                 "r"(bytes)
                 : "memory");
}

__device__ inline void mbarrier_wait(unsigned long long* barrier, unsigned parity) {
    unsigned done = 0;
    while (!done)
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(parity)
            : "memory");
}
#endif
