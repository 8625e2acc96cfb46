// int4 7, mma: tensor cores multiply 16 rows of weights by up to TOKENS tokens at once.
//
// Purpose  on CUDA cores each token costs a multiply-add per weight; here eight tokens cost one mma per 256 weights.
// Shapes   weights in tile order (rooflab.ops.int4.repack); x [batch, k] half; y [batch, n] half; batch <= TOKENS.
// Bytes    n k / 2 + n k / 64 weights and scales once, x once per block of rows (from L2), 2 n batch written.
// Launch   WARPS warps for 16 TILES rows and all of k; ceil(n / (16 TILES)) blocks.
// Macros   WARPS = 8: warps a block;
//          TILES = 4: tiles of 16 rows a block;
//          TOKENS = 8: tokens at most.
// Branch   from rung 6: the weights lie in the order of the mma's first operand, so that one 16-byte load holds a
//          lane's share of 16 rows by 64 of k; warps split k group by group, x of a group goes through shared memory,
//          a group's sum is scaled in FP32, and the warps' sums meet in shared memory in a fixed order.
#include "common/int4.cuh"
#include "common/ptx/cache_hints.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/kept.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"

constexpr int ROWS = 16 * TILES, PARTS = TOKENS / 8, X_ROW = 136;  // a row of 128 halves, moved on by 4 banks

__device__ inline const uint4* block_of(const uint4* blocks, unsigned tile, unsigned last, unsigned groups, unsigned j) {
    return blocks + (min(tile / 4, last) * (unsigned long long)groups + j) * INT4_BLOCK;
}

__device__ inline void load_tile(uint4* codes, const uint4* block, unsigned tile, int lane) {
    const uint4* first = block + INT4_SCALES + tile % 4 * 64 + lane;
    codes[0] = load_streaming(first);
    codes[1] = load_streaming(first + 32);
}

__device__ inline void stage(__half* to, const __half* x, unsigned k, unsigned j, unsigned batch, int lane) {
#pragma unroll
    for (int i = 0; i < TOKENS / 2; ++i) {
        const unsigned row = 2 * i + lane / 16, piece = lane % 16 * 8;
        if (row < batch) copy_async_16(to + row * X_ROW + piece, x + row * (unsigned long long)k + j * 128 + piece);
    }
    copy_async_commit();
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    int4_mma(const uint4* __restrict__ blocks, const __half* __restrict__ x, __half* __restrict__ y, unsigned n,
             unsigned groups, unsigned batch) {
    extern __shared__ uint4 shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned first = blockIdx.x * TILES, last = (n - 1) / INT4_TILE, k = groups * 128;
    __half* staged = reinterpret_cast<__half*>(kept(shared)) + warp * (2 * TOKENS * X_ROW);  // two groups' x

    uint4 codes[TILES][2];
    unsigned scales[TILES], coming[TILES];
    float sums[TILES][PARTS][4] = {};
    if (warp < groups) {
        stage(staged, x, k, warp, batch, lane);
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
            const uint4* block = block_of(blocks, first + m, last, groups, warp);
            load_tile(codes[m], block, first + m, lane);
            scales[m] = load_streaming(reinterpret_cast<const unsigned*>(block) + lane / 4 * 4 + (first + m) % 4);
        }
    }
    for (unsigned j = warp, turn = 0; j < groups; j += WARPS, turn ^= 1) {
        const unsigned next = j + WARPS;
        const bool more = next < groups;
        if (more) {
            stage(staged + (turn ^ 1) * TOKENS * X_ROW, x, k, next, batch, lane);
#pragma unroll
            for (int m = 0; m < TILES; ++m)
                coming[m] = load_streaming(
                    reinterpret_cast<const unsigned*>(block_of(blocks, first + m, last, groups, next)) +
                    lane / 4 * 4 + (first + m) % 4);
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        __syncwarp();
        unsigned b[PARTS][16];
#pragma unroll
        for (int p = 0; p < PARTS; ++p)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                load_matrix_x4(&b[p][4 * i], staged + turn * TOKENS * X_ROW + min(8 * p + lane % 8, batch - 1) * X_ROW + 32 * i + lane / 8 * 8);
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
            float partial[PARTS][4] = {};
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const unsigned words[4] = {codes[m][h].x, codes[m][h].y, codes[m][h].z, codes[m][h].w};
#pragma unroll
                for (int step = 0; step < 4; ++step) {
                    unsigned a[4];
                    int4_tile_to_halves(words[step], a);
#pragma unroll
                    for (int p = 0; p < PARTS; ++p) mma_m16n8k16_f16(partial[p], a, &b[p][8 * h + 2 * step]);
                }
            }
            if (more) load_tile(codes[m], block_of(blocks, first + m, last, groups, next), first + m, lane);
            const float2 scale = __half22float2(as_half2(scales[m]));
#pragma unroll
            for (int p = 0; p < PARTS; ++p) {
                sums[m][p][0] += scale.x * partial[p][0];
                sums[m][p][1] += scale.x * partial[p][1];
                sums[m][p][2] += scale.y * partial[p][2];
                sums[m][p][3] += scale.y * partial[p][3];
            }
            scales[m] = coming[m];
        }
        __syncwarp();  // all lanes have read this turn's x before it is written over
    }

    // Sums of all warps in shared memory, [warp][token][row], rows moved on so that a warp's writes hit all banks.
    __syncthreads();
    float* all = reinterpret_cast<float*>(shared);
    constexpr int STRIDE = ROWS + 4;
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
        for (int p = 0; p < PARTS; ++p)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const unsigned token = 8 * p + lane % 4 * 2 + e % 2;
                if (token < batch) all[(warp * TOKENS + token) * STRIDE + 16 * m + lane / 4 + e / 2 * 8] = sums[m][p][e];
            }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < ROWS * batch; i += 32 * WARPS) {
        const unsigned token = i / ROWS, r = i % ROWS;
        float sum = 0.0f;
#pragma unroll
        for (int v = 0; v < WARPS; ++v) sum += all[(v * TOKENS + token) * STRIDE + r];
        if (first * 16 + r < n) y[token * (unsigned long long)n + first * 16 + r] = __float2half(sum);
    }
}
