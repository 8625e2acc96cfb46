// gemv 4, vector: a thread four columns, so that a load is 16 bytes.
//
// Purpose  a quarter of the load instructions for the same bytes. But also a quarter of the threads, so there are no
//          more bytes under way than before: it stays in the ladder to show that width alone wins nothing.
// Shapes   a [k, n] float row-major, 16-byte aligned, n a multiple of 4; x [k], y [n] float: y = x a;
//          partial [gridDim.y, n] float; arrived [gridDim.x] uint32, zero on entry and on exit.
// Bytes    4 n k + 4 k + 4 n, and 8 n gridDim.y that stay in the L2; 16 sectors a request.
// Launch   THREADS threads a block, (ceil(n / 4 / THREADS), splits) blocks.
// Macros   THREADS = 64: threads a block;
//          TILE = 1024: floats of x in shared memory at a time.
// Changed  float4 for float: a quarter of the threads cover the same 256 columns.
#include "common/arrive.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    gemv_vector(const float4* __restrict__ a, const float* __restrict__ x, float4* __restrict__ y, float4* partial,
                unsigned* arrived, unsigned n, unsigned k) {
    __shared__ float x_tile[TILE];
    const unsigned column = blockIdx.x * THREADS + threadIdx.x, columns = n / 4;
    const unsigned share = (k + gridDim.y - 1) / gridDim.y, begin = min(k, blockIdx.y * share);
    const unsigned end = min(k, begin + share);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (unsigned first = begin; first < end; first += TILE) {
        const unsigned rows = min(unsigned(TILE), end - first);
        __syncthreads();
        for (unsigned i = threadIdx.x; i < rows; i += THREADS) x_tile[i] = x[first + i];
        __syncthreads();
        if (column < columns) {
            const float4* column_of_a = a + first * (unsigned long long)columns + column;
#pragma unroll 4
            for (unsigned i = 0; i < rows; ++i) {
                const float4 v = column_of_a[i * (unsigned long long)columns];
                const float factor = x_tile[i];
                sum.x = fmaf(factor, v.x, sum.x), sum.y = fmaf(factor, v.y, sum.y);
                sum.z = fmaf(factor, v.z, sum.z), sum.w = fmaf(factor, v.w, sum.w);
            }
        }
    }
    if (column < columns) partial[blockIdx.y * (unsigned long long)columns + column] = sum;
    if (!arrives_last(arrived + blockIdx.x, gridDim.y) || column >= columns) return;
    sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (unsigned split = 0; split < gridDim.y; ++split) {
        const float4 v = partial[split * (unsigned long long)columns + column];
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    y[column] = sum;
}
