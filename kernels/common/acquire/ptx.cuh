// An atomic addition with both orders, at GPU scope.
#pragma once

// What this thread, and those it met at a barrier, wrote before is published by it; what others published so before, can be
// read after it.
__device__ inline unsigned add_acquire_release(unsigned* p, unsigned v) {
    unsigned old;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}
