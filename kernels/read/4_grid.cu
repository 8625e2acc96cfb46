// read 4, grid: as many blocks as the GPU holds at once, each walking through the data.
//
// Purpose  no block is launched or retired while the stream runs; and the bytes in flight become a number that the
//          launch chooses: blocks x THREADS x UNROLL x 16. The Little's law study of lesson 01 turns that knob.
// Shapes   x [n] uint32, 16-byte aligned, n a multiple of 4; partial [gridDim.x] uint32.
// Bytes    4 n read.
// Launch   THREADS threads a block, SMs x resident blocks (or `blocks`, if given).
// Macros   THREADS = 256: threads a block;
//          UNROLL = 8: 16-byte accesses that a thread has in flight.
// Changed  a loop over tiles with the grid as its stride; one block sum in all.
#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    read_grid(const uint4* __restrict__ x, unsigned* __restrict__ partial, unsigned long long n) {
    const unsigned long long end = n / 4, step = gridDim.x * (unsigned long long)(THREADS * UNROLL);
    unsigned sum = 0;
    for (unsigned long long tile = blockIdx.x * (unsigned long long)(THREADS * UNROLL); tile < end; tile += step) {
        const unsigned long long first = tile + threadIdx.x;
        if (tile + THREADS * UNROLL <= end) {
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
    }
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
