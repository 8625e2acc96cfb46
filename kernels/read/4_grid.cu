// read 4, grid: as many blocks as the GPU holds at once, each walking through the data.
//
// Purpose  no block is launched or retired while the stream runs; and the bytes in flight become a number that the
//          launch chooses: blocks x THREADS x UNROLL x 16. The Little's law study of lesson 01 turns that knob.
// Shapes   x [n] uint32, 16-byte aligned, n a multiple of 4; partial [gridDim.x] uint32.
// Bytes    4 n read.
// Launch   THREADS threads a block, SMs x resident blocks (or `blocks`, if given).
// Changed  a loop over tiles with the grid as its stride; one block sum in all.
#include "common/reduce.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef UNROLL
#define UNROLL 8
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    read_grid(const uint4* __restrict__ x, unsigned* __restrict__ partial, unsigned long long n) {
    const unsigned long long step = gridDim.x * (unsigned long long)(THREADS * UNROLL);
    unsigned sum = 0;
    for (unsigned long long first = blockIdx.x * (unsigned long long)(THREADS * UNROLL) + threadIdx.x; first < n / 4;
         first += step) {
        uint4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const unsigned long long i = first + u * THREADS;
            v[u] = i < n / 4 ? x[i] : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) sum += v[u].x + v[u].y + v[u].z + v[u].w;
    }
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
