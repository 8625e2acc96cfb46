// q8_0 6, mma: up to 8 tokens by the int8 tensor cores, on 16-byte loads of the same planes.
//
// Purpose  rung 5 spends an instruction on four products; a warp's mma makes 4096, and 8 tokens fill its width.
// Shapes   quants [n][k] int8 and scales [n][k / 32] half, xq [batch][k] int8 and xs [batch][k / 32] half,
//          y [batch][n] half; batch at most 8, quants and xq 16-byte aligned, k a multiple of 64.
// Bytes    34/32 n k read; x and y beside.
// Launch   THREADS threads a block, ceil(n / 16) blocks: 16 rows to a block, whose warps divide k.
// Changed  from rung 5: m16n8k32. A lane's 16 bytes are half a block, and the four lanes of a row hold two blocks: the
//          product for one block takes the activations with the other block's lanes set to zero, so half of each
//          product is spent on zeros, which the tensor cores have to spare.
#include "common/ptx.cuh"
#include "common/q8.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef UNROLL
#define UNROLL 2
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    q8_0_mma(const uint4* __restrict__ quants, const __half2* __restrict__ scales, const uint4* __restrict__ xq,
             const __half2* __restrict__ xs, __half* __restrict__ y, int n, int k, int batch) {
    __shared__ float sums[THREADS / 32][16][8];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int pairs = k / 64, first_row = blockIdx.x * 16;  // pairs of blocks, 64 bytes of a row
    // Rows and tokens beyond the last repeat it, and are not stored.
    const size_t row[2] = {(size_t)min(first_row + g, n - 1), (size_t)min(first_row + g + 8, n - 1)};
    const size_t token = min(g, batch - 1);
    const size_t column[2] = {(size_t)min(2 * t, batch - 1), (size_t)min(2 * t + 1, batch - 1)};
    float sum[4] = {};
    for (int first = warp; first < pairs; first += THREADS / 32 * UNROLL) {
        uint4 q[UNROLL][2];
        float2 scale[UNROLL][2];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const size_t pair = row[r] * pairs + min(first + u * (THREADS / 32), pairs - 1);
                q[u][r] = load_streaming(quants + pair * 4 + t);
                scale[u][r] = __half22float2(scales[pair]);
            }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int pair = min(first + u * (THREADS / 32), pairs - 1);
            const float within = first + u * (THREADS / 32) < pairs ? 1.0f : 0.0f;  // what lies beyond counts nothing
            const uint4 x = __ldg(xq + (token * pairs + pair) * 4 + t);
            float2 x_scale[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float2 both = __half22float2(xs[column[i] * pairs + pair]);
                x_scale[i] = make_float2(both.x * within, both.y * within);
            }
            const unsigned a[2][4] = {{q[u][0].x, q[u][1].x, q[u][0].y, q[u][1].y},
                                      {q[u][0].z, q[u][1].z, q[u][0].w, q[u][1].w}};
#pragma unroll
            for (int block = 0; block < 2; ++block) {
                const bool mine = t / 2 == block;
                const unsigned b[2][2] = {{mine ? x.x : 0, mine ? x.y : 0}, {mine ? x.z : 0, mine ? x.w : 0}};
                int dot[4] = {};
                mma_m16n8k32_s8(dot, a[0], b[0]);
                mma_m16n8k32_s8(dot, a[1], b[1]);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float2 ws = scale[u][i / 2], s = x_scale[i % 2];
                    sum[i] = fmaf(static_cast<float>(dot[i]) * (block ? ws.y : ws.x), block ? s.y : s.x, sum[i]);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[warp][g + i / 2 * 8][2 * t + i % 2] = sum[i];
    __syncthreads();
    for (int i = threadIdx.x; i < 128; i += THREADS) {
        const int r = i % 16, b = i / 16;
        float total = 0.0f;
        for (int part = 0; part < THREADS / 32; ++part) total += sums[part][r][b];
        if (b < batch && first_row + r < n) y[(size_t)b * n + first_row + r] = __float2half(total);
    }
}
