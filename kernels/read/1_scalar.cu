// read 1, scalar: every thread loads one 4-byte word.
//
// Purpose  stream x once from memory and use every word, so that nothing but reading costs time.
// Shapes   x [n] uint32; partial [gridDim.x] uint32, the wrapping sum of each block's words (exact, any order).
// Bytes    4 n read (the partial sums, 4 per block, are not counted).
// Launch   THREADS threads a block, ceil(n / THREADS) blocks.
// Macros   THREADS = 256: threads a block.
// Below    this is the first rung.
#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    read_scalar(const unsigned* __restrict__ x, unsigned* __restrict__ partial, unsigned long long n) {
    const unsigned long long i = blockIdx.x * (unsigned long long)THREADS + threadIdx.x;
    unsigned sum = i < n ? x[i] : 0;
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
