// gemv_rows 4, rows: a warp ROWS rows, which share each load of x.
//
// Purpose  fewer instructions a weight: x is loaded and widened to FP32 once for ROWS rows, and the loads in flight
//          of short rows grow by the same factor. Where rows are few, half as many warps cost more than that saves.
// Shapes   w [n, k] FP16 row-major, x [k] FP16, both 16-byte aligned, k a multiple of 8; y [n] FP16: y = w x.
// Bytes    2 n k + 2 k + 2 n; 16 sectors a request.
// Launch   THREADS threads a block, ceil(n / (ROWS THREADS / 32)) blocks.
// Macros   THREADS = 256: threads a block;
//          UNROLL = 4: 16-byte loads of a row that a lane has in flight;
//          ROWS = 2: rows of the matrix a warp;
//          RESIDENT = 3: blocks an SM that the compiler must leave registers for.
// Changed  from one row to ROWS: the last warp's missing rows are computed as row n - 1 again and not stored.
#include "common/half.cuh"
#include "common/ptx/cache_hints.cuh"
#include "common/reduce.cuh"

template <bool WHOLE>
__device__ inline void turn(const uint4* const (&weights)[ROWS], const uint4* x, unsigned first, unsigned chunks,
                            float (&sum)[ROWS]) {
    uint4 v[UNROLL][ROWS], activations[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            v[u][r] = make_uint4(0, 0, 0, 0);
            if (WHOLE || first + 32 * u < chunks) v[u][r] = load_streaming(weights[r] + first + 32 * u);
        }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        activations[u] = WHOLE || first + 32 * u < chunks ? x[first + 32 * u] : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
#pragma unroll
        for (int r = 0; r < ROWS; ++r) sum[r] = multiply_add_8(v[u][r], activations[u], sum[r]);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gemv_rows_rows(const uint4* __restrict__ w, const uint4* __restrict__ x, __half* __restrict__ y, unsigned n,
                   unsigned k) {
    const unsigned lane = threadIdx.x % 32, chunks = k / 8;
    const unsigned row = (blockIdx.x * (THREADS / 32) + threadIdx.x / 32) * ROWS;
    if (row >= n) return;
    const uint4* weights[ROWS];
    float sum[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        weights[r] = w + min(row + r, n - 1) * (unsigned long long)chunks;
        sum[r] = 0.0f;
    }
    unsigned first = 0;
#pragma unroll 1
    for (; first + 32 * UNROLL <= chunks; first += 32 * UNROLL) turn<true>(weights, x, first + lane, chunks, sum);
    if (first < chunks) turn<false>(weights, x, first + lane, chunks, sum);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        sum[r] = warp_sum(sum[r]);
        if (lane == 0 && row + r < n) y[row + r] = __float2half(sum[r]);
    }
}
