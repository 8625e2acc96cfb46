// mmq 4, cp async: weights repacked into planes, and tiles copied to shared memory by cp.async.
//
// Purpose  rung 3's loads pass through registers and come two bytes at a time; aligned planes are copied 16 bytes at a
//          time, straight to where they are read from, and several tiles ahead.
// Shapes   quants [n][k] int8 and scales [n][k / 32] half, xq [batch][k] int8 and xs [batch][k / 32] half,
//          y [batch][n] half; all 16-byte aligned, k a multiple of 128.
// Bytes    34/32 n k and 34/32 batch k read + 2 batch n written; weights are read ceil(batch / 128) times over.
// Launch   256 threads a block, (ceil(n / 64), ceil(batch / 128)) blocks: eight warps, each 16 rows by 64 tokens.
//          Dynamic shared memory: STAGES tiles of 26112 bytes.
// Macros   STAGES = 3: tiles in the ring of shared memory.
// Changed  from rung 3: planes, cp.async, a ring of STAGES tiles 128 of k long, swizzled so that ldmatrix has no bank conflicts.
#include "common/ptx/cp_async.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/q8.cuh"

constexpr int ROWS = 64, TOKENS = 128, BOTH = ROWS + TOKENS, N_TILES = TOKENS / 16;
constexpr int SLOT = BOTH * 136;  // quants of rows, then of tokens, 128 bytes each; then scales, 8 bytes each

extern "C" __global__ void __launch_bounds__(256, 2)
    mmq_cp_async(const uint4* __restrict__ quants, const uint2* __restrict__ scales, const uint4* __restrict__ xq,
              const uint2* __restrict__ xs, __half* __restrict__ y, int n, int k, int batch) {
    extern __shared__ __align__(128) unsigned char ring[];
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, chunks = k / 128;
    const int row0 = blockIdx.x * ROWS, token0 = blockIdx.y * TOKENS, m0 = warp % 4 * 16, n0 = warp / 4 * (TOKENS / 2);

    // Start the copies of tile c; rows and tokens beyond the last repeat it, and are not stored.
    const auto start = [&](int c) {
        unsigned char* slot = ring + c % STAGES * SLOT;
        if (c < chunks) {
#pragma unroll
            for (int r = thread / 8; r < BOTH; r += 32) {
                const size_t row = r < ROWS ? min(row0 + r, n - 1) : min(token0 + r - ROWS, batch - 1);
                copy_async_16(place(slot, r, thread % 8), (r < ROWS ? quants : xq) + (row * chunks + c) * 8 + thread % 8);
            }
            if (thread < BOTH) {
                const size_t row = thread < ROWS ? min(row0 + thread, n - 1) : min(token0 + thread - ROWS, batch - 1);
                copy_async_8(slot + BOTH * 128 + thread * 8, (thread < ROWS ? scales : xs) + row * chunks + c);
            }
        }
        copy_async_commit();
    };

    float sum[N_TILES][4] = {};
#pragma unroll
    for (int c = 0; c < STAGES - 1; ++c) start(c);
    for (int c = 0; c < chunks; ++c) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();  // the tile is whole, and the one before it is done with
        start(c + STAGES - 1);
        unsigned char* slot = ring + c % STAGES * SLOT;
        const __half* scale = reinterpret_cast<const __half*>(slot + BOTH * 128);
#pragma unroll 2
        for (int b = 0; b < 4; ++b) {  // blocks of 32 in the tile
            unsigned a[4];
            load_matrix_x4(a, place(slot, m0 + lane % 16, 2 * b + lane / 16));
            const float w_scale[2] = {__half2float(scale[(m0 + lane / 4) * 4 + b]),
                                      __half2float(scale[(m0 + lane / 4 + 8) * 4 + b])};
#pragma unroll
            for (int j = 0; j < N_TILES; ++j) {
                const int token = ROWS + n0 + 8 * j;
                unsigned x[2];
                load_matrix_x2(x, place(slot, token + lane % 8, 2 * b + lane / 8 % 2));
                int dot[4] = {};
                mma_m16n8k32_s8(dot, a, x);
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    sum[j][i] = fmaf(static_cast<float>(dot[i]) * w_scale[i / 2],
                                     __half2float(scale[(token + lane % 4 * 2 + i % 2) * 4 + b]), sum[j][i]);
            }
        }
    }
    copy_async_wait<0>();
#pragma unroll
    for (int j = 0; j < N_TILES; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = row0 + m0 + lane / 4 + i / 2 * 8, token = token0 + n0 + 8 * j + lane % 4 * 2 + i % 2;
            if (row < n && token < batch) y[(size_t)token * n + row] = __float2half(sum[j][i]);
        }
}
