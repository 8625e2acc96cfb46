// gemv 5, in flight: UNROLL rows are asked for before the first is used, and before x is there.
//
// Purpose  a memory at terabytes a second is kept busy by bytes under way, not by threads: the loads of the matrix
//          need nothing but addresses, so they go first, and x arrives while they travel.
// Shapes   a [k, n] float row-major, 16-byte aligned, n a multiple of 4; x [k], y [n] float: y = x a;
//          partial [gridDim.y, n] float; arrived [gridDim.x] uint32, zero on entry and on exit.
// Bytes    4 n k + 4 k + 4 n, and 8 n gridDim.y that stay in the L2; 16 sectors a request.
// Launch   THREADS threads a block, (ceil(n / 4 / THREADS), splits) blocks.
// Macros   THREADS = 64: threads a block;
//          UNROLL = 8: rows in flight a thread;
//          RESIDENT = 16: blocks an SM that the compiler must leave registers for.
// Changed  the loop takes UNROLL rows a turn, loads first; x straight from global memory (its lines stay in L1,
//          those of the matrix do not); no barrier is left in the loop.
#include "common/arrive.cuh"
#include "common/ptx/cache_hints.cuh"

__device__ inline void multiply_add(float factor, uint4 v, float4& sum) {
    sum.x = fmaf(factor, __uint_as_float(v.x), sum.x), sum.y = fmaf(factor, __uint_as_float(v.y), sum.y);
    sum.z = fmaf(factor, __uint_as_float(v.z), sum.z), sum.w = fmaf(factor, __uint_as_float(v.w), sum.w);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gemv_in_flight(const uint4* __restrict__ a, const float* __restrict__ x, float4* __restrict__ y, float4* partial,
                   unsigned* arrived, unsigned n, unsigned k) {
    const unsigned column = blockIdx.x * THREADS + threadIdx.x, columns = n / 4;
    const unsigned share = (k + gridDim.y - 1) / gridDim.y, begin = min(k, blockIdx.y * share);
    const unsigned end = min(k, begin + share);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (column < columns) {
        const uint4* column_of_a = a + column;
        unsigned row = begin;
        for (; row + UNROLL <= end; row += UNROLL) {
            uint4 v[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
                v[u] = load_streaming(column_of_a + (row + u) * (unsigned long long)columns);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) multiply_add(x[row + u], v[u], sum);
        }
#pragma unroll 1
        for (; row < end; ++row)
            multiply_add(x[row], load_streaming(column_of_a + row * (unsigned long long)columns), sum);
        partial[blockIdx.y * (unsigned long long)columns + column] = sum;
    }
    if (!arrives_last(arrived + blockIdx.x, gridDim.y) || column >= columns) return;
    sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (unsigned split = 0; split < gridDim.y; ++split) {
        const float4 v = partial[split * (unsigned long long)columns + column];
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    y[column] = sum;
}
