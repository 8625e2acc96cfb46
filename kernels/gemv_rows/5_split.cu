// gemv_rows 5, split: SPLIT warps of a block share their rows, each taking a part of k.
//
// Purpose  a matrix that is short and wide has too few rows to fill a GPU with a warp a row, and a small one has too
//          few bytes a warp to wait for; with SPLIT, ROWS and UNROLL the whole matrix can be asked for at once, and
//          no sum leaves the block. The op knows which of them suit which shape.
// Shapes   w [n, k] FP16 row-major, x [k] FP16, both 16-byte aligned, k a multiple of 8; y [n] FP16: y = w x.
// Bytes    2 n k + 2 k + 2 n; 16 sectors a request.
// Launch   THREADS threads a block, ceil(n / (ROWS THREADS / 32 / SPLIT)) blocks.
// Macros   THREADS = 128: threads a block;
//          UNROLL = 4: 16-byte loads of a row that a lane has in flight;
//          ROWS = 1: rows that warps share x for;
//          SPLIT = 4: warps that divide a row;
//          RESIDENT = 8: blocks an SM that the compiler must leave registers for.
// Changed  from a warp to SPLIT warps a row: they take turns along k, and meet in shared memory, in a fixed order.
#include "common/half.cuh"
#include "common/ptx/cache_hints.cuh"
#include "common/reduce.cuh"

constexpr unsigned TEAMS = THREADS / 32 / SPLIT;  // of SPLIT warps each

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
    gemv_rows_split(const uint4* __restrict__ w, const uint4* __restrict__ x, __half* __restrict__ y, unsigned n,
                    unsigned k) {
    __shared__ float sums[TEAMS][SPLIT][ROWS];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, team = warp / SPLIT, part = warp % SPLIT;
    const unsigned row = (blockIdx.x * TEAMS + team) * ROWS, chunks = k / 8;
    const uint4* weights[ROWS];
    float sum[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        weights[r] = w + min(row + r, n - 1) * (unsigned long long)chunks;
        sum[r] = 0.0f;
    }
    unsigned first = part * (32 * UNROLL);
#pragma unroll 1
    for (; first + 32 * UNROLL <= chunks; first += SPLIT * 32 * UNROLL)
        turn<true>(weights, x, first + lane, chunks, sum);
    if (first < chunks) turn<false>(weights, x, first + lane, chunks, sum);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        sum[r] = warp_sum(sum[r]);
        if (lane == 0) sums[team][part][r] = sum[r];
    }
    if (SPLIT > 1) __syncthreads();
    else __syncwarp();
    if (part == 0 && lane < ROWS && row + lane < n) {
        float total = 0.0f;
#pragma unroll
        for (int p = 0; p < SPLIT; ++p) total += sums[team][p][lane];
        y[row + lane] = __float2half(total);
    }
}
