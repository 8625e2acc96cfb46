// gemv 6, column strips: a block takes a narrow strip of columns and all of its rows, so that no sum crosses blocks.
//
// Purpose  the partial sums of split K cost a trip to the L2 and a wait for the last block, at the very end, when
//          nothing else is under way. With strips of COLUMNS floats there are enough blocks without splitting, and the
//          sum over the block's rows is made by shuffles and one step through shared memory.
// Shapes   a [k, n] float row-major, 16-byte aligned, n a multiple of 4; x [k], y [n] float: y = x a.
// Bytes    4 n k + 4 k + 4 n; a row of a strip is 4 COLUMNS bytes, 128 by default: one line of the L2.
// Launch   THREADS threads a block, ceil(n / COLUMNS) blocks.
// Macros   THREADS = 1024: threads a block;
//          COLUMNS = 32: columns a block;
//          UNROLL = 8: rows in flight a thread;
//          RESIDENT = 1: blocks an SM that the compiler must leave registers for;
//          PAD = 1: floats between rows of sums in shared memory, against bank conflicts.
// Changed  a block's threads cover COLUMNS / 4 vectors of many rows; the sum over rows moved from global memory to
//          shared memory. PAD floats keep its rows out of each other's banks (0 shows what happens without).
#include "common/ptx/cache_hints.cuh"
#include "common/reduce.cuh"

constexpr unsigned LANES = COLUMNS / 4, HIGH = THREADS / LANES, WARPS = THREADS / 32;

__device__ inline void multiply_add(float factor, uint4 v, float (&sum)[4]) {
    sum[0] = fmaf(factor, __uint_as_float(v.x), sum[0]), sum[1] = fmaf(factor, __uint_as_float(v.y), sum[1]);
    sum[2] = fmaf(factor, __uint_as_float(v.z), sum[2]), sum[3] = fmaf(factor, __uint_as_float(v.w), sum[3]);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gemv_column_strips(const uint4* __restrict__ a, const float* __restrict__ x, float* __restrict__ y, unsigned n, unsigned k) {
    __shared__ float sums[WARPS][COLUMNS + PAD];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, columns = n / 4;
    const unsigned column = blockIdx.x * LANES + threadIdx.x % LANES;
    float sum[4] = {};
    if (column < columns) {
        unsigned row = threadIdx.x / LANES;
        const uint4* next = a + row * (unsigned long long)columns + column;
        const unsigned long long step = HIGH * (unsigned long long)columns;
        for (; row + (UNROLL - 1) * HIGH < k; row += UNROLL * HIGH, next += UNROLL * step) {
            uint4 v[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) v[u] = load_streaming(next + u * step);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) multiply_add(x[row + u * HIGH], v[u], sum);
        }
#pragma unroll 1
        for (; row < k; row += HIGH, next += step) multiply_add(x[row], load_streaming(next), sum);
    }
#pragma unroll
    for (unsigned offset = 16; offset >= LANES; offset /= 2)  // rows of this warp
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[c] += __shfl_xor_sync(0xffffffffu, sum[c], offset);
    if (lane < LANES)
#pragma unroll
        for (int c = 0; c < 4; ++c) sums[warp][4 * lane + c] = sum[c];
    __syncthreads();
#pragma unroll
    for (unsigned first = 0; first < COLUMNS; first += WARPS) {  // a warp a column: its lanes read down the column
        const unsigned c = first + warp;
        float total = 0.0f;
#pragma unroll
        for (unsigned w = 0; w < WARPS; w += 32) total += c < COLUMNS && w + lane < WARPS ? sums[w + lane][c] : 0.0f;
        total = warp_sum(total);
        if (lane == 0 && c < COLUMNS && blockIdx.x * COLUMNS + c < n) y[blockIdx.x * COLUMNS + c] = total;
    }
}
