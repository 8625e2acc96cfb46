// read 3, in flight: every thread starts UNROLL loads of 16 bytes before it uses the first.
//
// Purpose  more bytes under way per SM: by Little's law, bytes in flight = bandwidth x latency.
// Shapes   x [n] uint32, 16-byte aligned, n a multiple of 4; partial [gridDim.x] uint32.
// Bytes    4 n read.
// Launch   THREADS threads a block, ceil(n / 4 / (THREADS UNROLL)) blocks; a block owns one contiguous tile.
// Changed  UNROLL independent loads into registers, then their sum; the block sum is paid once per tile.
#include "common/reduce.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef UNROLL
#define UNROLL 8
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    read_in_flight(const uint4* __restrict__ x, unsigned* __restrict__ partial, unsigned long long n) {
    const unsigned long long first = blockIdx.x * (unsigned long long)(THREADS * UNROLL) + threadIdx.x;
    uint4 v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned long long i = first + u * THREADS;
        v[u] = i < n / 4 ? x[i] : make_uint4(0, 0, 0, 0);
    }
    unsigned sum = 0;
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) sum += v[u].x + v[u].y + v[u].z + v[u].w;
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
