// read 5, streaming: rung 3 with loads that do not ask L1 to keep the line.
//
// Purpose  every byte is used once, so a line that stays in L1 only pushes out another one.
// Shapes   x [n] uint32, 16-byte aligned, n a multiple of 4; partial [gridDim.x] uint32.
// Bytes    4 n read.
// Launch   THREADS threads a block, ceil(n / 4 / (THREADS UNROLL)) blocks.
// Macros   THREADS = 256: threads a block;
//          UNROLL = 8: 16-byte accesses that a thread has in flight.
// Changed  from rung 3 (rung 4's persistent grid did not pay): load_streaming instead of a plain load.
#include "common/ptx/cache_hints.cuh"
#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    read_streaming(const uint4* __restrict__ x, unsigned* __restrict__ partial, unsigned long long n) {
    const unsigned long long tile = blockIdx.x * (unsigned long long)(THREADS * UNROLL), end = n / 4;
    const unsigned long long first = tile + threadIdx.x;
    unsigned sum = 0;
    if (tile + THREADS * UNROLL <= end) {  // a whole tile: no test between one load and the next
        uint4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) v[u] = load_streaming(x + first + u * THREADS);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) sum += v[u].x + v[u].y + v[u].z + v[u].w;
    } else {
#pragma unroll 1
        for (unsigned long long i = first; i < end; i += THREADS) {
            const uint4 v = load_streaming(x + i);
            sum += v.x + v.y + v.z + v.w;
        }
    }
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
