// Matrix products of a warpgroup (wgmma, sm_90a alone): their order, and operands in shared memory. The products by widths
// and formats are in wgmma/narrow.cuh, wgmma/wide.cuh and wgmma/bytes.cuh.
//
// Four neighbouring warps multiply 64 rows at once: warp w holds rows 16 w to 16 w + 15 of the first operand in the
// registers of mma_m16n8k16_f16 and gets their sums, d[4 p + e] being element e of columns 8 p to 8 p + 7. The second
// operand lies in shared memory, which a descriptor names. Products run on their own: between warpgroup_arrive and a
// warpgroup_wait that covers them no thread may touch their registers.
#pragma once

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ inline void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ inline void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Descriptor of columns of 64 halves (128 bytes) each, column after column from a multiple of 1024 bytes on, with
// 16-byte piece c of column n at place c ^ n % 8 (128-byte swizzle). A product takes 16 of the 64: add 2 for the next.
__device__ inline unsigned long long wgmma_columns(const void* shared) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(shared);
    return 1ull << 62 | 64ull << 32 | 1ull << 16 | (address & 0x3ffffu) >> 4;
}

// Descriptor of rows stored [k][n] as values are: blocks of 64 columns, row after row of 128 bytes, each row's 16-byte
// pieces swizzled alike; `apart` bytes are from a block to the next. 16 rows on add 128.
__device__ inline unsigned long long wgmma_rows(const void* shared, unsigned apart) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(shared);
    return 1ull << 62 | 64ull << 32 | (unsigned long long)(apart >> 4) << 16 | (address & 0x3ffffu) >> 4;
}
#endif
