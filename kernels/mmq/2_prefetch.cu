// mmq 2, prefetch: the next block of k is on its way into registers while this one is multiplied.
//
// Purpose  in rung 1 every barrier waits for a load from memory; here the load has a tile's time to arrive.
// Shapes   w [n][k / 32] Q8_0 blocks, xq [batch][k] int8 and xs [batch][k / 32] half, y [batch][n] half; xq 16-byte
//          aligned, k a multiple of 32.
// Bytes    34/32 n k and 34/32 batch k read + 2 batch n written; weights are read ceil(batch / 64) times over.
// Launch   256 threads a block, (ceil(n / 64), ceil(batch / 64)) blocks: eight warps, each 16 rows by 32 tokens.
// Changed  from rung 1: two tiles in shared memory, one barrier a block of k; loads go to registers first. cp.async
//          could not do it: it copies 4, 8 or 16 aligned bytes, and these quants start at multiples of 2.
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/q8.cuh"

constexpr int STRIDE = 48;  // bytes from row to row of a tile: ldmatrix then meets no bank twice
constexpr int TOKENS = 64, N_TILES = TOKENS / 16;  // of a warp, 8 tokens each

struct Tile {
    __align__(16) unsigned char w[64 * STRIDE];
    __align__(16) unsigned char x[TOKENS * STRIDE];
    float w_scale[64], x_scale[TOKENS];
};

extern "C" __global__ void __launch_bounds__(256, 2)
    mmq_prefetch(const unsigned char* __restrict__ w, const unsigned char* __restrict__ xq,
                 const __half* __restrict__ xs, __half* __restrict__ y, int n, int k, int batch) {
    __shared__ Tile tiles[2];
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, blocks = k / Q8_BLOCK;
    const int row0 = blockIdx.x * 64, token0 = blockIdx.y * TOKENS, m0 = warp % 4 * 16, n0 = warp / 4 * (TOKENS / 2);
    int word[2];
    uint4 x = {};
    float scale = 0.0f;

    // A thread's share of block b: two words of weights, 16 bytes of activations, a scale of either.
    // Rows and tokens beyond the last repeat it, and are not stored.
    const auto load = [&](int b) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const size_t row = min(row0 + thread / 8 + 32 * i, n - 1);
            word[i] = word_of(w + (row * blocks + b) * Q8_0_BYTES + 2 + thread % 8 * 4);
        }
        if (thread < 2 * TOKENS) {
            const size_t token = min(token0 + thread / 2, batch - 1);
            x = *reinterpret_cast<const uint4*>(xq + token * k + b * Q8_BLOCK + thread % 2 * 16);
        }
        if (thread < 64)
            scale = scale_of(w + ((size_t)min(row0 + thread, n - 1) * blocks + b) * Q8_0_BYTES);
        else if (thread < 64 + TOKENS)
            scale = __half2float(xs[(size_t)min(token0 + thread - 64, batch - 1) * blocks + b]);
    };
    const auto store = [&](Tile& tile) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
            *reinterpret_cast<int*>(tile.w + (thread / 8 + 32 * i) * STRIDE + thread % 8 * 4) = word[i];
        if (thread < 2 * TOKENS) *reinterpret_cast<uint4*>(tile.x + thread / 2 * STRIDE + thread % 2 * 16) = x;
        if (thread < 64)
            tile.w_scale[thread] = scale;
        else if (thread < 64 + TOKENS)
            tile.x_scale[thread - 64] = scale;
    };

    float sum[N_TILES][4] = {};
    load(0);
    store(tiles[0]);
    for (int b = 0; b < blocks; ++b) {
        __syncthreads();
        if (b + 1 < blocks) load(b + 1);
        const Tile& tile = tiles[b % 2];
        unsigned a[4];
        load_matrix_x4(a, tile.w + (m0 + lane % 16) * STRIDE + lane / 16 * 16);
#pragma unroll
        for (int j = 0; j < N_TILES; ++j) {
            unsigned both[2];
            load_matrix_x2(both, tile.x + (n0 + 8 * j + lane % 8) * STRIDE + lane / 8 % 2 * 16);
            int dot[4] = {};
            mma_m16n8k32_s8(dot, a, both);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                sum[j][i] = fmaf(static_cast<float>(dot[i]) * tile.w_scale[m0 + lane / 4 + i / 2 * 8],
                                 tile.x_scale[n0 + 8 * j + lane % 4 * 2 + i % 2], sum[j][i]);
        }
        if (b + 1 < blocks) store(tiles[(b + 1) % 2]);
    }
#pragma unroll
    for (int j = 0; j < N_TILES; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = row0 + m0 + lane / 4 + i / 2 * 8, token = token0 + n0 + 8 * j + lane % 4 * 2 + i % 2;
            if (row < n && token < batch) y[(size_t)token * n + row] = __float2half(sum[j][i]);
        }
}
