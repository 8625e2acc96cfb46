// mmq 6, wgmma: Hopper's own int8 products, four warps at once, both operands read from shared memory.
//
// Purpose  rung 5's warps load fragments, copy tiles and turn scales into floats between the scaling; here they scale.
// Shapes   quants [n][k] int8 and scales [n][k / 32] half, xq [batch][k] int8 and xs [batch][k / 32] half,
//          y [batch][n] half; all 16-byte aligned, k a multiple of 128. sm_90a.
// Bytes    34/32 n k and 34/32 batch k read + 2 batch n written.
// Launch   three warpgroups a block: one copies, two multiply and scale 64 rows by 128 tokens each; (ceil(batch / 128),
//          ceil(n / 128)) blocks. Dynamic shared memory: STAGES tiles of 36864 bytes.
// Changed  from rung 5: wgmma, two blocks of k at a time, of which the second runs while the first is scaled; a warpgroup
//          that only copies, and lays the scales of a block side by side as floats.
#include "common/ptx.cuh"
#include "common/q8.cuh"

#ifndef STAGES
#define STAGES 5
#endif

constexpr int ROWS = 128, TOKENS = 128, BOTH = ROWS + TOKENS, SUMS = TOKENS / 2;
constexpr int SLOT = BOTH * 144;  // quants of rows, then of tokens, 128 bytes each; then scales [4][rows, then tokens]
constexpr int LAG = 2;            // tiles under way while the copies of the one before them are waited for

extern "C" __global__ void __launch_bounds__(384, 1)
    mmq_wgmma(const uint4* __restrict__ quants, const uint2* __restrict__ scales, const uint4* __restrict__ xq,
              const uint2* __restrict__ xs, __half* __restrict__ y, int n, int k, int batch) {
    extern __shared__ __align__(1024) unsigned char ring[];
    __shared__ unsigned long long full[STAGES], empty[STAGES];
    const int thread = threadIdx.x % 128, lane = thread % 32, group = threadIdx.x / 128, chunks = k / 128;
    const int row0 = blockIdx.y * ROWS, token0 = blockIdx.x * TOKENS;
    if (threadIdx.x < STAGES) {
        mbarrier_init(full + threadIdx.x, 128);
        mbarrier_init(empty + threadIdx.x, 8);
    }
    __syncthreads();

    if (group == 2) {  // copies; rows and tokens beyond the last repeat it, and are not stored
        setmaxnreg_fewer<72>();
        const size_t row = min(row0 + thread, n - 1), token = min(token0 + thread, batch - 1);
        for (int c = 0; c < chunks + LAG; ++c) {
            if (c < chunks) {
                unsigned char* slot = ring + c % STAGES * SLOT;
                const uint2 raw[2] = {scales[row * chunks + c], xs[token * chunks + c]};
                if (c >= STAGES) mbarrier_wait(empty + c % STAGES, (c / STAGES + 1) % 2);
#pragma unroll
                for (int i = 0; i < BOTH / 16; ++i) {
                    const int r = thread / 8 + 16 * i;
                    const size_t from = r < ROWS ? min(row0 + r, n - 1) : min(token0 + r - ROWS, batch - 1);
                    copy_async_16(place(slot, r, thread % 8), (r < ROWS ? quants : xq) + (from * chunks + c) * 8 + thread % 8);
                }
                float* scale = reinterpret_cast<float*>(slot + BOTH * 128) + thread;
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const __half2* pair = reinterpret_cast<const __half2*>(raw + i);
#pragma unroll
                    for (int b = 0; b < 4; ++b)
                        scale[b * BOTH + i * ROWS] = __half2float(b % 2 ? __high2half(pair[b / 2]) : __low2half(pair[b / 2]));
                }
            }
            copy_async_commit();
            if (c >= LAG) {
                copy_async_wait<LAG>();
                warpgroup_shared_fence();
                mbarrier_arrive(full + (c - LAG) % STAGES);
            }
        }
        return;
    }
    setmaxnreg_more<216>();

    const int row = group * 64 + thread / 32 * 16 + lane / 4;
    float sum[SUMS] = {};
    const auto scaled = [&](const int (&dot)[SUMS], const float* scale) {  // add the product of a block
        const float ws[2] = {scale[row], scale[row + 8]};
#pragma unroll
        for (int p = 0; p < TOKENS / 8; ++p) {
            const float2 s = *reinterpret_cast<const float2*>(scale + ROWS + 8 * p + lane % 4 * 2);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                sum[4 * p + i] = fmaf(static_cast<float>(dot[4 * p + i]) * ws[i / 2], i % 2 ? s.y : s.x, sum[4 * p + i]);
        }
    };
    for (int c = 0; c < chunks; ++c) {
        mbarrier_wait(full + c % STAGES, c / STAGES % 2);
        const unsigned char* slot = ring + c % STAGES * SLOT;
        const unsigned long long rows = wgmma_columns(slot + group * 8192), tokens = wgmma_columns(slot + ROWS * 128);
        const float* scale = reinterpret_cast<const float*>(slot + BOTH * 128);
#pragma unroll
        for (int b = 0; b < 4; b += 2) {
            int even[SUMS], odd[SUMS];
            warpgroup_arrive();
            wgmma_m64n128k32_s8(even, rows + 2 * b, tokens + 2 * b, false);
            warpgroup_commit();
            wgmma_m64n128k32_s8(odd, rows + 2 * b + 2, tokens + 2 * b + 2, false);
            warpgroup_commit();
            warpgroup_wait<1>();
            scaled(even, scale + b * BOTH);
            warpgroup_wait<0>();
            scaled(odd, scale + (b + 1) * BOTH);
        }
        if (lane == 0) mbarrier_arrive(empty + c % STAGES);
    }
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {
        const int r = row0 + row + i / 2 % 2 * 8, token = token0 + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (r < n && token < batch) y[(size_t)token * n + r] = __float2half(sum[i]);
    }
}
