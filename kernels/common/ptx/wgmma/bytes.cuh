// Products of bytes by a warpgroup: 64 rows by 64 columns, 32 of k (sm_90a).
//
// Both operands come from shared memory: rows or columns of 128 bytes, laid out as wgmma_columns says, of which it takes 32
// (add 2 for the next). Products add to their sums or, unless `add`, overwrite them: the registers then
// need no zeros before.
#pragma once
#include "common/ptx/wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SUMS_4(c, d, i) c((d)[i]), c((d)[i + 1]), c((d)[i + 2]), c((d)[i + 3])
#define SUMS_16(c, d, i) SUMS_4(c, d, i), SUMS_4(c, d, i + 4), SUMS_4(c, d, i + 8), SUMS_4(c, d, i + 12)

__device__ inline void wgmma_m64n64k32_s8(int* d, unsigned long long a, unsigned long long b, bool add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %34, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {%0,%1,%2,"
        "%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,"
        "%29,%30,%31}, %32, %33, p; }"
        : SUMS_16("+r", d, 0), SUMS_16("+r", d, 16)
        : "l"(a), "l"(b), "r"((int)add));
}

#undef SUMS_16
#undef SUMS_4
#endif
