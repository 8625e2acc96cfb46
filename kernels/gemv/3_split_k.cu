// gemv 3, split k: blocks share a column strip, each taking a part of the rows, so that the whole GPU works.
//
// Purpose  fill every SM whatever n is. The partial sums meet in one launch: the block that arrives last at a strip
//          adds them up, always in the same order, so the same input gives the same bits.
// Shapes   a [k, n] float row-major, x [k] float, y [n] float: y = x a; partial [gridDim.y, n] float;
//          arrived [gridDim.x] uint32, zero on entry and on exit. Any n and k.
// Bytes    4 n k + 4 k + 4 n, and 8 n gridDim.y that stay in the L2.
// Launch   THREADS threads a block, (ceil(n / THREADS), splits) blocks.
// Macros   THREADS = 256: threads a block;
//          TILE = 1024: floats of x in shared memory at a time.
// Changed  blockIdx.y picks the rows; partial sums, and the last block's sum over them.
#include "common/arrive.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    gemv_split_k(const float* __restrict__ a, const float* __restrict__ x, float* __restrict__ y, float* partial,
                 unsigned* arrived, unsigned n, unsigned k) {
    __shared__ float x_tile[TILE];
    const unsigned column = blockIdx.x * THREADS + threadIdx.x;
    const unsigned share = (k + gridDim.y - 1) / gridDim.y, begin = min(k, blockIdx.y * share);
    const unsigned end = min(k, begin + share);
    float sum = 0.0f;
    for (unsigned first = begin; first < end; first += TILE) {
        const unsigned rows = min(unsigned(TILE), end - first);
        __syncthreads();
        for (unsigned i = threadIdx.x; i < rows; i += THREADS) x_tile[i] = x[first + i];
        __syncthreads();
        if (column < n) {
            const float* column_of_a = a + first * (unsigned long long)n + column;
#pragma unroll 4
            for (unsigned i = 0; i < rows; ++i) sum = fmaf(x_tile[i], column_of_a[i * (unsigned long long)n], sum);
        }
    }
    if (column < n) partial[blockIdx.y * (unsigned long long)n + column] = sum;
    if (!arrives_last(arrived + blockIdx.x, gridDim.y) || column >= n) return;
    sum = 0.0f;
#pragma unroll 8
    for (unsigned split = 0; split < gridDim.y; ++split) sum += partial[split * (unsigned long long)n + column];
    y[column] = sum;
}
