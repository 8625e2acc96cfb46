// q8_0 4, planes: the weights repacked, scales in one plane and quants in another, so that a load takes 16 quants.
//
// Purpose  34-byte blocks forbid wide loads; in a plane of their own the quants are aligned, and half a block is a load.
// Shapes   quants [n][k] int8 and scales [n][k / 32] half, xq [k] int8 and xs [k / 32] half, y [n] half; quants and xq
//          16-byte aligned, k a multiple of 32.
// Bytes    34/32 n k read; x and y beside.
// Launch   THREADS threads a block, a warp to a row, ceil(n / (THREADS / 32)) blocks.
// Macros   THREADS = 128: threads a block;
//          UNROLL = 4: 16-byte loads that a lane has in flight;
//          RESIDENT = 4: blocks an SM that the compiler must leave registers for.
// Changed  from rung 3: two planes for blocks; UNROLL loads of 16 bytes under way a lane, past L1. The launch bounds name
//          RESIDENT blocks a multiprocessor: left to itself the compiler aims at twice as many, has registers for one
//          load at a time, and waits for each.
#include "common/ptx/cache_hints.cuh"
#include "common/q8.cuh"
#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    q8_0_planes(const uint4* __restrict__ quants, const __half* __restrict__ scales, const uint4* __restrict__ xq,
                const __half* __restrict__ xs, __half* __restrict__ y, int n, int k) {
    const int row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    const int chunks = k / 16;  // of 16 quants, two to a block
    quants += (size_t)row * chunks;
    scales += (size_t)row * (chunks / 2);
    float sum = 0.0f;
    int first = 0;
    for (; first + 32 * UNROLL <= chunks; first += 32 * UNROLL) {  // no test between one load and the next
        uint4 q[UNROLL];
        float scale[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) q[u] = load_streaming(quants + first + 32 * u + lane);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int block = (first + 32 * u + lane) / 2;
            scale[u] = __half2float(scales[block]) * __half2float(xs[block]);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            sum = fmaf(static_cast<float>(dot16(q[u], __ldg(xq + first + 32 * u + lane))), scale[u], sum);
    }
#pragma unroll 1
    for (int c = first + lane; c < chunks; c += 32)
        sum = fmaf(static_cast<float>(dot16(load_streaming(quants + c), __ldg(xq + c))),
                   __half2float(scales[c / 2]) * __half2float(xs[c / 2]), sum);
    sum = warp_sum(sum);
    if (lane == 0) y[row] = __float2half(sum);
}
