// read 3, in flight: every thread starts UNROLL loads of 16 bytes before it uses the first.
//
// Purpose  more bytes under way per SM: by Little's law, bytes in flight = bandwidth x latency.
// Shapes   x [n] uint32, 16-byte aligned, n a multiple of 4; partial [gridDim.x] uint32.
// Bytes    4 n read.
// Launch   THREADS threads a block, ceil(n / 4 / (THREADS UNROLL)) blocks; a block owns one contiguous tile.
// Macros   THREADS = 256: threads a block;
//          UNROLL = 8: 16-byte accesses that a thread has in flight.
// Changed  UNROLL independent loads into registers, then their sum; the block sum is paid once per tile.
#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    read_in_flight(const uint4* __restrict__ x, unsigned* __restrict__ partial, unsigned long long n) {
    const unsigned long long tile = blockIdx.x * (unsigned long long)(THREADS * UNROLL), end = n / 4;
    const unsigned long long first = tile + threadIdx.x;
    unsigned sum = 0;
    if (tile + THREADS * UNROLL <= end) {  // a whole tile: no test between one load and the next
        uint4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) v[u] = x[first + u * THREADS];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) sum += v[u].x + v[u].y + v[u].z + v[u].w;
    } else {
#pragma unroll 1
        for (unsigned long long i = first; i < end; i += THREADS) {
            const uint4 v = x[i];
            sum += v.x + v.y + v.z + v.w;
        }
    }
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
