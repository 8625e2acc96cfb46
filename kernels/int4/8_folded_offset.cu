// int4 8, folded offset: the tensor core takes the offset away, and the loop is stripped of what is not needed.
//
// Purpose  eight weights cost rung 7 one mma, but nine instructions to unpack, which all wait for the same few slots.
// Shapes   weights in tile order (rooflab.ops.int4.repack); x [batch, k] half; y [batch, n] half; batch <= TOKENS.
// Bytes    n k / 2 + n k / 64 weights and scales once, x once per block of rows (from L2), 2 n batch written.
// Launch   WARPS warps for 16 TILES rows and all of k; ceil(n / (16 TILES)) blocks.
// Macros   WARPS = 4: warps a block;
//          TILES = 2: tiles of 16 rows a block;
//          TOKENS = 8: tokens at most;
//          RESIDENT = 3: blocks an SM that the compiler must leave registers for.
// Changed  weights go into the mma with the offset that the unpacking leaves (264 and 24), which costs a shift and four
//          ORs a word; the sums start from minus the offsets times the group's x, which one mma of constants makes for
//          all rows of the warp; the ring starts at a kept address.
#include "common/int4.cuh"
#include "common/ptx/cache_hints.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/kept.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"

constexpr int ROWS = 16 * TILES, PARTS = (TOKENS + 7) / 8;
constexpr int X_ROW = 17, SLOT = TOKENS * X_ROW + INT4_SCALES;  // 16-byte units: 128 halves, moved on by 4 banks

// A group's x (128 of k of each token) and scales, into one of the warp's two slots.
__device__ inline void stage(uint4* to, const __half* from, unsigned k, unsigned batch, const uint4* block, uint4* scales, int lane) {
    if (lane < INT4_SCALES) copy_async_16(scales, block);
#pragma unroll
    for (int i = 0; i < (TOKENS + 1) / 2; ++i)
        if (2 * i + lane / 16 < batch) copy_async_16(to + 2 * i * X_ROW, from + 2 * i * (unsigned long long)k);
    copy_async_commit();
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)
    int4_folded_offset(const uint4* __restrict__ blocks, const __half* __restrict__ x, __half* __restrict__ y, unsigned n,
                unsigned groups, unsigned batch) {
    extern __shared__ uint4 shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned first = blockIdx.x * TILES, k = groups * 128;
    // Weights and x of this warp's next group; where x and scales go, and where they are read from.
    const uint4* block = blocks + (first / 4 * (unsigned long long)groups + warp) * INT4_BLOCK + lane;
    const unsigned tile = INT4_SCALES + first % 4 * 64;
    const __half* x_at = x + lane / 16 * (unsigned long long)k + warp * 128 + lane % 16 * 8;
    uint4* slots = kept(shared) + warp * (2 * SLOT);
    uint4* put = slots + lane / 16 * X_ROW + lane % 16;
    const uint4* get[PARTS];
#pragma unroll
    for (int p = 0; p < PARTS; ++p) get[p] = slots + min(8 * p + lane % 8, batch - 1) * X_ROW + lane / 8;

    uint4* put_scales = slots + TOKENS * X_ROW + lane;
    const unsigned* get_scales = reinterpret_cast<const unsigned*>(shared + warp * (2 * SLOT) + TOKENS * X_ROW) + lane / 4 * 4 + first % 4;

    uint4 codes[TILES][2];
    if (warp < groups) {
        stage(put, x_at, k, batch, block, put_scales, lane);
#pragma unroll
        for (int i = 0; i < 2 * TILES; ++i) codes[i / 2][i % 2] = load_streaming(block + tile + 32 * i);
    }
    float sums[TILES][PARTS][4] = {};
    const unsigned minus[4] = {INT4_OFFSETS[0] ^ 0x80008000u, INT4_OFFSETS[1] ^ 0x80008000u,
                               INT4_OFFSETS[0] ^ 0x80008000u, INT4_OFFSETS[1] ^ 0x80008000u};
    unsigned turn = 0;
    for (unsigned j = warp; j < groups; j += WARPS) {
        const bool more = j + WARPS < groups;
        block += WARPS * INT4_BLOCK;
        x_at += WARPS * 128;
        if (more) {
            stage(put + (turn ^ SLOT), x_at, k, batch, block, put_scales + (turn ^ SLOT), lane);
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        __syncwarp();
        unsigned b[PARTS][16];
        float start[PARTS][4] = {};
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
            float other[4] = {};  // two sums, so that one mma need not wait for the one before it
#pragma unroll
            for (int i = 0; i < 4; ++i) load_matrix_x4(&b[p][4 * i], get[p] + turn + 4 * i);
#pragma unroll
            for (int step = 0; step < 8; ++step)
                mma_m16n8k16_f16(step % 2 ? other : start[p], minus, &b[p][2 * step]);
#pragma unroll
            for (int e = 0; e < 4; ++e) start[p][e] += other[e];
        }
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
            float partial[PARTS][4];
#pragma unroll
            for (int p = 0; p < PARTS; ++p)
#pragma unroll
                for (int e = 0; e < 4; ++e) partial[p][e] = start[p][e];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const unsigned words[4] = {codes[m][h].x, codes[m][h].y, codes[m][h].z, codes[m][h].w};
#pragma unroll
                for (int step = 0; step < 4; ++step) {
                    unsigned a[4];
                    int4_tile_to_offset_halves(words[step], a);
#pragma unroll
                    for (int p = 0; p < PARTS; ++p) mma_m16n8k16_f16(partial[p], a, &b[p][8 * h + 2 * step]);
                }
                if (more) codes[m][h] = load_streaming(block + tile + 64 * m + 32 * h);
            }
            const float2 scale = __half22float2(as_half2(get_scales[4 * turn + m]));
#pragma unroll
            for (int p = 0; p < PARTS; ++p) {
                sums[m][p][0] += scale.x * partial[p][0];
                sums[m][p][1] += scale.x * partial[p][1];
                sums[m][p][2] += scale.y * partial[p][2];
                sums[m][p][3] += scale.y * partial[p][3];
            }
        }
        turn ^= SLOT;
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
