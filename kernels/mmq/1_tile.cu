// mmq 1, tile: a tile of 64 rows and 64 tokens, a Q8_0 block of k at a time, by int8 mma.
//
// Purpose  a prompt's product on the bytes as they are: each weight is read as int8, and no FP16 copy is written.
// Shapes   w [n][k / 32] Q8_0 blocks, xq [batch][k] int8 and xs [batch][k / 32] half, y [batch][n] half; xq 16-byte
//          aligned, k a multiple of 32.
// Bytes    34/32 n k and 34/32 batch k read + 2 batch n written; weights are read ceil(batch / 64) times over.
// Launch   256 threads a block, (ceil(n / 64), ceil(batch / 64)) blocks: eight warps, each 16 rows by 32 tokens.
// Macros   SCALE_BYTES = 0: 1 to load a block's scale as two bytes instead of one half.
// Below    this is the first rung. One tile lies in shared memory at a time: load, barrier, multiply, barrier. The int32
//          product of a block of k is exact; it is scaled by both scales and added up in float.
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/q8.cuh"

constexpr int STRIDE = 48;  // bytes from row to row of a tile: ldmatrix then meets no bank twice

extern "C" __global__ void __launch_bounds__(256, 2)
    mmq_tile(const unsigned char* __restrict__ w, const unsigned char* __restrict__ xq, const __half* __restrict__ xs,
             __half* __restrict__ y, int n, int k, int batch) {
    __shared__ __align__(16) unsigned char w_tile[64 * STRIDE], x_tile[64 * STRIDE];
    __shared__ float w_scale[64], x_scale[64];
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, blocks = k / Q8_BLOCK;
    const int row0 = blockIdx.x * 64, token0 = blockIdx.y * 64, m0 = warp % 4 * 16, n0 = warp / 4 * 32;
    float sum[4][4] = {};
    for (int b = 0; b < blocks; ++b) {
        // Rows and tokens beyond the last repeat it, and are not stored.
        for (int i = thread; i < 512; i += 256) {
            const unsigned char* block = w + ((size_t)min(row0 + i / 8, n - 1) * blocks + b) * Q8_0_BYTES;
            *reinterpret_cast<int*>(w_tile + i / 8 * STRIDE + i % 8 * 4) = word_of(block + 2 + i % 8 * 4);
        }
        if (thread < 128) {
            const size_t token = min(token0 + thread / 2, batch - 1);
            const unsigned char* from = xq + token * k + b * Q8_BLOCK + thread % 2 * 16;
            *reinterpret_cast<uint4*>(x_tile + thread / 2 * STRIDE + thread % 2 * 16) = *reinterpret_cast<const uint4*>(from);
        } else if (thread < 192) {
            const unsigned char* block = w + ((size_t)min(row0 + thread - 128, n - 1) * blocks + b) * Q8_0_BYTES;
            w_scale[thread - 128] = SCALE_BYTES ? scale_by_bytes(block) : scale_of(block);
        } else {
            x_scale[thread - 192] = __half2float(xs[(size_t)min(token0 + thread - 192, batch - 1) * blocks + b]);
        }
        __syncthreads();
        unsigned a[4];
        load_matrix_x4(a, w_tile + (m0 + lane % 16) * STRIDE + lane / 16 * 16);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            unsigned both[2];
            load_matrix_x2(both, x_tile + (n0 + 8 * j + lane % 8) * STRIDE + lane / 8 % 2 * 16);
            int dot[4] = {};
            mma_m16n8k32_s8(dot, a, both);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                sum[j][i] = fmaf(static_cast<float>(dot[i]) * w_scale[m0 + lane / 4 + i / 2 * 8],
                                 x_scale[n0 + 8 * j + lane % 4 * 2 + i % 2], sum[j][i]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = row0 + m0 + lane / 4 + i / 2 * 8, token = token0 + n0 + 8 * j + lane % 4 * 2 + i % 2;
            if (row < n && token < batch) y[(size_t)token * n + row] = __float2half(sum[j][i]);
        }
}
