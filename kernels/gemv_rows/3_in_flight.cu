// gemv_rows 3, in flight: UNROLL loads of weights are under way before the first is used.
//
// Purpose  more bytes under way, from the first moment on: weights need nothing but addresses, so their loads go
//          first; and they are used once, so L1 is asked not to keep them (x is what it should keep).
// Shapes   w [n, k] FP16 row-major, x [k] FP16, both 16-byte aligned, k a multiple of 8; y [n] FP16: y = w x.
// Bytes    2 n k + 2 k + 2 n; 16 sectors a request.
// Launch   THREADS threads a block, ceil(n / (THREADS / 32)) blocks.
// Macros   THREADS = 256: threads a block;
//          UNROLL = 4: 16-byte loads of a row that a lane has in flight;
//          RESIDENT = 4: blocks an SM that the compiler must leave registers for.
// Changed  the loop takes UNROLL chunks a turn, weights first, then x, then the sums; in the last turn a chunk past the
//          end of the row is zeros. RESIDENT blocks an SM is what the compiler must leave registers for.
#include "common/half.cuh"
#include "common/ptx/cache_hints.cuh"
#include "common/reduce.cuh"

template <bool WHOLE>
__device__ inline float turn(const uint4* weights, const uint4* x, unsigned first, unsigned chunks, float sum) {
    uint4 v[UNROLL], activations[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        v[u] = make_uint4(0, 0, 0, 0);
        if (WHOLE || first + 32 * u < chunks) v[u] = load_streaming(weights + first + 32 * u);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        activations[u] = WHOLE || first + 32 * u < chunks ? x[first + 32 * u] : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) sum = multiply_add_8(v[u], activations[u], sum);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gemv_rows_in_flight(const uint4* __restrict__ w, const uint4* __restrict__ x, __half* __restrict__ y, unsigned n,
                        unsigned k) {
    const unsigned lane = threadIdx.x % 32, row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, chunks = k / 8;
    if (row >= n) return;
    const uint4* weights = w + row * (unsigned long long)chunks;
    float sum = 0.0f;
    unsigned first = 0;
#pragma unroll 1
    for (; first + 32 * UNROLL <= chunks; first += 32 * UNROLL)
        sum = turn<true>(weights, x, first + lane, chunks, sum);
    if (first < chunks) sum = turn<false>(weights, x, first + lane, chunks, sum);
    sum = warp_sum(sum);
    if (lane == 0) y[row] = __float2half(sum);
}
