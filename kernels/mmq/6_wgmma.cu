// mmq 6, wgmma: Hopper's own int8 products, four warps at once, both operands read from shared memory.
//
// Purpose  rung 5's warps load fragments, copy tiles and turn scales into floats between the scaling; here they scale.
// Shapes   quants [n][k] int8 and scales [n][k / 32] half, xq [batch][k] int8 and xs [batch][k / 32] half,
//          y [batch][n] half; all 16-byte aligned, k a multiple of 128. sm_90a.
// Bytes    34/32 n k and 34/32 batch k read + 2 batch n written.
// Launch   five warpgroups a block: one copies, four multiply and scale 64 tokens by 64 rows each; (ceil(batch / 128),
//          ceil(n / 128)) blocks. Dynamic shared memory: STAGES tiles of 37376 bytes.
// Changed  from rung 5: wgmma, and while one warpgroup waits for its product, three scale theirs; tiles come by the
//          tensor memory accelerator, which one thread starts; the warpgroup around it lays the scales of a block side
//          by side as floats.
#include "common/ptx.cuh"
#include "common/q8.cuh"

#ifndef STAGES
#define STAGES 5
#endif

constexpr int ROWS = 128, TOKENS = 128, TILE = (ROWS + TOKENS) * 128;  // quants of tokens, then of rows
constexpr int APART = 20;  // floats from the scales of a lane's 16 rows to the next lane's: all banks
constexpr int SCALES = 4 * (8 * APART + TOKENS);  // of a tile: rows' [block of k][64 rows][lane], then tokens' [block of k]

extern "C" __global__ void __launch_bounds__(640, 1)
    mmq_wgmma(const __grid_constant__ TensorMap quants, const uint2* __restrict__ scales,
              const __grid_constant__ TensorMap xq, const uint2* __restrict__ xs, __half* __restrict__ y, int n, int k,
              int batch) {
    extern __shared__ __align__(1024) unsigned char ring[];
    __shared__ unsigned long long full[STAGES], empty[STAGES];
    float* const ring_scales = reinterpret_cast<float*>(ring + STAGES * TILE);
    const int thread = threadIdx.x % 128, lane = thread % 32, group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    const int row0 = blockIdx.y * ROWS, token0 = blockIdx.x * TOKENS, chunks = k / 128;
    const int halves = batch - token0 > 64 ? 2 : 1;  // of the tile's tokens, that there are any of
    if (threadIdx.x < STAGES) {
        mbarrier_init(full + threadIdx.x, 128);
        mbarrier_init(empty + threadIdx.x, 256 * halves);
    }
    __syncthreads();

    if (group == 4) {  // copies; rows and tokens beyond the last are zeros, or repeat it, and are not stored
        setmaxnreg_fewer<32>();
        const uint2* of_row = kept(scales + (size_t)min(row0 + thread, n - 1) * chunks);
        const uint2* of_token = kept(xs + (size_t)min(token0 + thread, batch - 1) * chunks);
        float* const row_to = ring_scales + (thread / 64 * 4 + thread % 8 / 2) * APART + thread % 64 / 8 * 2 + thread % 2;
        float* const token_to = ring_scales + 32 * APART + thread;
        const auto lay = [](float* to, int apart, uint2 raw) {
            const __half2 *low = reinterpret_cast<const __half2*>(&raw.x), *high = reinterpret_cast<const __half2*>(&raw.y);
            to[0] = __low2float(*low);
            to[apart] = __high2float(*low);
            to[2 * apart] = __low2float(*high);
            to[3 * apart] = __high2float(*high);
        };
        uint2 row = *of_row, token = *of_token;
        for (int c = 0; c < chunks; ++c) {
            const int s = c % STAGES;
            if (c >= STAGES) mbarrier_wait(empty + s, (c / STAGES + 1) % 2);
            if (thread == 0) {
                mbarrier_expect(full + s, TILE);
                tma_copy_box(ring + s * TILE, &xq, c * 128, token0, full + s);
                tma_copy_box(ring + s * TILE + TOKENS * 128, &quants, c * 128, row0, full + s);
            }
            lay(row_to + s * SCALES, 8 * APART, row);
            lay(token_to + s * SCALES, TOKENS, token);
            mbarrier_arrive(full + s);
            if (c + 1 < chunks) row = *++of_row, token = *++of_token;
        }
        return;
    }
    setmaxnreg_more<112>();
    if (group / 2 >= halves) return;  // nothing to multiply: the block's others have the multiprocessor to themselves

    const int token = group / 2 * 64 + thread / 32 * 16 + lane / 4;
    const unsigned long long tokens = wgmma_columns(ring + group / 2 * 8192);
    const unsigned long long rows = wgmma_columns(ring + TOKENS * 128 + group % 2 * 8192);
    int dot[32];
    float sum[32] = {};
    const float* all_tokens = ring_scales + 32 * APART + token;
    const float* all_rows = ring_scales + (group % 2 * 4 + lane % 4) * APART;
    for (int c = 0; c < chunks; ++c) {
        const int s = c % STAGES;
        const float* of_tokens = all_tokens + s * SCALES;
        const float4* of_rows = reinterpret_cast<const float4*>(all_rows + s * SCALES);
        mbarrier_wait(full + s, c / STAGES % 2);
#pragma unroll
        for (int b = 0; b < 4; ++b) {  // blocks of 32 in the tile
            warpgroup_arrive();
            wgmma_m64n64k32_s8(dot, tokens + s * (TILE / 16) + 2 * b, rows + s * (TILE / 16) + 2 * b, false);
            warpgroup_commit();
            const float of_token[2] = {of_tokens[b * TOKENS], of_tokens[b * TOKENS + 8]};
            float4 four[4];
#pragma unroll
            for (int p = 0; p < 4; ++p) four[p] = of_rows[b * 2 * APART + p];
            warpgroup_wait<0>();
            if (b == 3) mbarrier_arrive(empty + s);  // every thread for what it has read
#pragma unroll
            for (int j = 0; j < 32; ++j) {
                const float4 w = four[j / 8];
                const float of_row = j / 4 % 2 ? (j % 2 ? w.w : w.z) : (j % 2 ? w.y : w.x);
                sum[j] = fmaf(static_cast<float>(dot[j]) * of_token[j / 2 % 2], of_row, sum[j]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 32; j += 2) {
        const int t = token0 + token + j / 2 % 2 * 8, r = row0 + group % 2 * 64 + j / 4 * 8 + lane % 4 * 2;
        __half* to = y + (size_t)t * n + r;
        if (t < batch && r + 1 < n && n % 2 == 0) {
            *reinterpret_cast<__half2*>(to) = __floats2half2_rn(sum[j], sum[j + 1]);
        } else if (t < batch && r < n) {
            to[0] = __float2half(sum[j]);
            if (r + 1 < n) to[1] = __float2half(sum[j + 1]);
        }
    }
}
