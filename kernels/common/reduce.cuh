// Reductions over a warp and over a block, by shuffles: fixed order, so the same input gives the same bits.
#pragma once

template <typename T>
__device__ inline T warp_sum(T value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

// Sum over a block of BLOCK_THREADS threads; the result is valid in thread 0. Every thread must call it.
template <int BLOCK_THREADS, typename T>
__device__ inline T block_sum(T value) {
    __shared__ T warp_sums[BLOCK_THREADS / 32];
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x < 32) value = warp_sum(threadIdx.x < BLOCK_THREADS / 32 ? warp_sums[threadIdx.x] : T(0));
    return value;
}
