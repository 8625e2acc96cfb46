// int4 9, shared x: a block's warps share x, so that larger batches don't flood L2.
//
// Purpose  at 16 tokens and more, x read again for every 64 rows is as much traffic as the weights; here a block of
//          16 TILES ROW_WARPS rows reads it once.
// Shapes   weights in tile order (rooflab.ops.int4.repack); x [batch, k] half; y [batch, n] half; any batch.
// Bytes    n k / 2 + n k / 64 weights and scales for every TOKENS tokens (all but the first from L2), x once per block of
//          rows (from L2), 2 n batch written.
// Launch   ROW_WARPS x K_WARPS warps for 16 TILES ROW_WARPS rows and all of k; a block for each such stretch of rows and
//          each TOKENS tokens, (ceil(batch / TOKENS), ceil(n / (16 TILES ROW_WARPS))).
// Macros   ROW_WARPS = 4: warps that divide a block's rows;
//          K_WARPS = 2: warps that divide k;
//          TILES = 2: tiles of 16 rows a warp;
//          TOKENS = 16: tokens a block;
//          STAGES = 3: stages in the block's ring;
//          RESIDENT = 1: blocks an SM that the compiler must leave registers for.
// Branch   from rung 8: warps divide the block's rows, and k only K_WARPS ways; one ring of STAGES stages for the block
//          holds codes, scales and x, filled by asynchronous copies. Beyond 16 tokens the offsets' mma and a group's own
//          sums cost more than exact weights do, so there weights are scaled to FP16 when they are unpacked.
// Lost     on an H200, at one token and 28,672 rows by 8192: as many blocks as run at a time, each with the same share of the rows, so
//          that none is left with the memory to itself at the end. It took longer, the fewer warps the longer: what a
//          multiprocessor's warps unpack is the limit before memory is.
#include "common/int4.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/kept.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/store_four.cuh"

constexpr int ROWS = 16 * TILES * ROW_WARPS, PARTS = TOKENS / 8, THREADS = 32 * ROW_WARPS * K_WARPS;
constexpr int WARPS = ROW_WARPS * K_WARPS, CODES = WARPS * TILES * 64;  // codes of a stage in units of 16 bytes
constexpr int WEIGHTS = CODES + WARPS * INT4_SCALES, X_ROW = 16 * K_WARPS + 1;
constexpr int PASS = THREADS / (16 * K_WARPS);  // tokens that the block copies at a time

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    int4_shared_x(const uint4* __restrict__ blocks, const __half* __restrict__ x, __half* __restrict__ y, unsigned n,
                unsigned groups, unsigned all_tokens) {
    const unsigned minus[4] = {INT4_OFFSETS[0] ^ 0x80008000u, INT4_OFFSETS[1] ^ 0x80008000u,
                               INT4_OFFSETS[0] ^ 0x80008000u, INT4_OFFSETS[1] ^ 0x80008000u};
    extern __shared__ uint4 memory[];  // stages of: codes [warp][tile], scales [warp], x [token][k]
    uint4* const shared = kept(memory);
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, k_group = warp / ROW_WARPS;  // of the stage's groups
    const unsigned token0 = blockIdx.x * TOKENS, batch = min(all_tokens - token0, (unsigned)TOKENS);
    x += token0 * (groups * 128ull), y += token0 * (unsigned long long)n;
    const unsigned first = blockIdx.y * (ROWS / 16), tile = warp % ROW_WARPS * TILES;  // of the matrix, of the block
    const unsigned stride = (WEIGHTS + batch * X_ROW + 7) / 8 * 8;  // whole lines of 128 bytes: no access spans more banks
    const unsigned scales = CODES + warp * INT4_SCALES;

    const uint4* block = blocks + lane +
        (min((first + tile) / 4, (n - 1) / INT4_TILE) * (unsigned long long)groups + k_group) * INT4_BLOCK;
    const unsigned codes = INT4_SCALES + (first + tile) % 4 * 64;
    const unsigned token = threadIdx.x / (16 * K_WARPS), piece = threadIdx.x % (16 * K_WARPS);
    const __half* x_at = x + token * (groups * 128ull) + 8 * piece;
    unsigned filled = 0;  // groups of this warp's kind that lie before the next fill
    // Start the copies of the next K_WARPS groups: each warp its own codes, all warps together x.
    const auto fill = [&](uint4* stage) {
        if (filled + k_group < groups) {
            if (lane < INT4_SCALES) copy_async_16(stage + scales + lane, block);
#pragma unroll
            for (int i = 0; i < 2 * TILES; ++i)
                copy_async_16(stage + (warp * TILES * 2 + i) * 32 + lane, block + codes + 32 * i);
        }
        if (filled + piece / 16 < groups) {
#pragma unroll
            for (int i = 0; i < (TOKENS + PASS - 1) / PASS; ++i)
                if (token + i * PASS < batch)
                    copy_async_16(stage + WEIGHTS + (token + i * PASS) * X_ROW + piece, x_at + i * PASS * (groups * 128ull));
        }
        copy_async_commit();
        filled += K_WARPS;
        block += K_WARPS * INT4_BLOCK;
        x_at += K_WARPS * 128;
    };

#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) fill(shared + s * stride);
    float sums[TILES][PARTS][4] = {};
    unsigned turn = 0, ahead = (STAGES - 1) * stride;
    for (unsigned j = 0; j < groups; j += K_WARPS) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();  // all copies of this stage are there, and all warps have left the stage before it
        fill(shared + ahead);
        const uint4* stage = shared + turn;
        const unsigned turn_of = turn;
        ahead = turn;
        turn = turn + stride == STAGES * stride ? 0 : turn + stride;
        if (j + k_group >= groups) continue;

        const uint4* words_at = memory + turn_of + warp * TILES * 64 + lane;
        const unsigned* scales_at = reinterpret_cast<const unsigned*>(memory + turn_of + scales) + lane / 4 * 4 + (first + tile) % 4;
        if constexpr (PARTS <= 2) {  // as in rung 8
            unsigned b[PARTS][16];
            float start[PARTS][4] = {};
#pragma unroll
            for (int p = 0; p < PARTS; ++p) {
                float other[4] = {};
                const uint4* row = stage + WEIGHTS + 16 * k_group + min(8 * p + lane % 8, batch - 1) * X_ROW + lane / 8;
#pragma unroll
                for (int i = 0; i < 4; ++i) load_matrix_x4(&b[p][4 * i], row + 4 * i);
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
                    const uint4 word = words_at[64 * m + 32 * h];
                    const unsigned words[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
                    for (int step = 0; step < 4; ++step) {
                        unsigned a[4];
                        int4_tile_to_offset_halves(words[step], a);
#pragma unroll
                        for (int p = 0; p < PARTS; ++p) mma_m16n8k16_f16(partial[p], a, &b[p][8 * h + 2 * step]);
                    }
                }
                const float2 scale = __half22float2(as_half2(scales_at[m]));
#pragma unroll
                for (int p = 0; p < PARTS; ++p)
#pragma unroll
                    for (int e = 0; e < 4; ++e) sums[m][p][e] += (e < 2 ? scale.x : scale.y) * partial[p][e];
            }
        } else {
            __half2 low[TILES], high[TILES];  // scales of rows g and g + 8, twice each
#pragma unroll
            for (int m = 0; m < TILES; ++m) {
                low[m] = __low2half2(as_half2(scales_at[m])), high[m] = __high2half2(as_half2(scales_at[m]));
            }
            const uint4* row[PARTS];
#pragma unroll
            for (int p = 0; p < PARTS; p += 2)
                row[p] = stage + WEIGHTS + 16 * k_group + min(8 * p + lane / 16 * 8 + lane % 8, batch - 1) * X_ROW + lane / 8 % 2;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                unsigned words[TILES][4];
#pragma unroll
                for (int m = 0; m < TILES; ++m) {
                    const uint4 word = words_at[64 * m + 32 * h];
                    words[m][0] = word.x, words[m][1] = word.y, words[m][2] = word.z, words[m][3] = word.w;
                }
#pragma unroll
                for (int step = 0; step < 4; ++step) {
                    unsigned b[PARTS][2];
#pragma unroll
                    for (int p = 0; p < PARTS; p += 2) load_matrix_x4(b[p], row[p] + 8 * h + 2 * step);
#pragma unroll
                    for (int m = 0; m < TILES; ++m) {
                        unsigned a[4];
                        int4_tile_to_halves(words[m][step], a);
#pragma unroll
                        for (int r = 0; r < 4; ++r) a[r] = as_word(__hmul2(as_half2(a[r]), r % 2 ? high[m] : low[m]));
#pragma unroll
                        for (int p = 0; p < PARTS; ++p) mma_m16n8k16_f16(sums[m][p], a, b[p]);
                    }
                }
            }
        }
    }

    // Sums of the K_WARPS warps of a row in shared memory, [part of k][token][row].
    copy_async_wait<0>();
    __syncthreads();
    float* all = reinterpret_cast<float*>(memory);
    constexpr int STRIDE = ROWS + 4;
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
        for (int p = 0; p < PARTS; ++p)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const unsigned token = 8 * p + lane % 4 * 2 + e % 2, row = 16 * (tile + m) + lane / 4 + e / 2 * 8;
                if (token < batch) all[(k_group * batch + token) * STRIDE + row] = sums[m][p][e];
            }
    __syncthreads();
#pragma unroll 2
    for (unsigned i = threadIdx.x; i < ROWS / 4 * batch; i += THREADS) {  // four rows at a time
        const unsigned column = i / (ROWS / 4), r = i % (ROWS / 4) * 4, at = first * 16 + r;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int v = 0; v < K_WARPS; ++v) {
            const float4 more = *reinterpret_cast<const float4*>(all + (v * batch + column) * STRIDE + r);
            sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
        }
        store_four(y + column * (unsigned long long)n, at, n, sum);
    }
}
