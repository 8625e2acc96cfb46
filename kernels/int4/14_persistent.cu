// int4 14, persistent: blocks stay, and each has the same share of the rows.
//
// Purpose  at one token memory is the limit, and what a rung loses it loses at the ends: 28,672 rows are 448 blocks of rung 9,
//          396 of which run at a time, and the last 52 have the memory to themselves and do not fill it.
// Shapes   weights in tile order (rooflab.ops.int4.repack); x [batch, k] half; y [batch, n] half; batch <= TOKENS.
// Bytes    n k / 2 + n k / 64 weights and scales once, x once a block (from L2), 2 n batch written.
// Launch   WARPS warps, BLOCKS blocks, as many as run at a time. Of shared memory a block has 4224 WARPS STAGES bytes for its
//          ring; k + 8 halves and k / 128 floats for each token, rounded up to 16 bytes; and of each token 68 WARPS floats for
//          each 64 rows that it has a part of.
// Macros   WARPS = 2: warps a block;
//          STAGES = 3: blocks of 64 rows by 128 of k in a warp's ring;
//          TOKENS = 8: tokens at most;
//          BLOCKS = 132: blocks.
// Branch   from rung 8: tiles of 16 rows are dealt out evenly to blocks that stay, and their groups of k to a block's warps in
//          turn. Weights come through a ring of asynchronous copies that does not run dry between rows; x is kept whole, and
//          the sums of its groups are made once.
#include "common/int4.cuh"
#include "common/ptx/cache_hints.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/reduce.cuh"

constexpr int THREADS = 32 * WARPS, PARTS = (TOKENS + 7) / 8, STRIDE = INT4_TILE + 4;  // of a warp's sums, [token][row]

// A block of weights that a warp multiplies: rows by 64, and of k 128.
struct Unit {
    unsigned rows, group;
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    int4_persistent(const uint4* __restrict__ blocks, const __half* __restrict__ x, __half* __restrict__ y, unsigned n,
                    unsigned groups, unsigned batch) {
    extern __shared__ __align__(16) uint4 shared[];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
    const unsigned tiles = (n + 15) / 16, x_row = 16 * groups + 1;  // of x in units of 16 bytes: rows lie in other banks
    const unsigned first = tiles * (unsigned long long)blockIdx.x / gridDim.x;
    const unsigned last = tiles * (unsigned long long)(blockIdx.x + 1) / gridDim.x;
    const unsigned rows = first / 4, rows_end = (last + 3) / 4;  // by 64
    const unsigned long long policy = evict_first_policy();
    uint4 *const ring = shared + warp * STAGES * INT4_BLOCK, *const all_x = shared + WARPS * STAGES * INT4_BLOCK;
    float* const x_sums = reinterpret_cast<float*>(all_x + batch * x_row);  // [token][group]
    float* const all = x_sums + (batch * groups + 3) / 4 * 4;               // [64 rows][warp][token][row]

    const auto go_on = [&](Unit& u) {
        for (u.group += WARPS; u.group >= groups; u.group -= groups) ++u.rows;
    };
    const auto is_own = [&](const Unit& u, int tile) { return 4 * u.rows + tile >= first && 4 * u.rows + tile < last; };
    // Start copying a unit to a place of the ring: scales, and codes of the tiles that are this block's.
    const auto start = [&](uint4* slot, const Unit& u) {
        if (u.rows < rows_end) {
            const uint4* const from = blocks + (u.rows * (unsigned long long)groups + u.group) * INT4_BLOCK;
            if (lane < INT4_SCALES) copy_async_16_of_line(slot + lane, from + lane, policy);
#pragma unroll
            for (int i = 0; i < 8; ++i)
                if (is_own(u, i / 2))
                    copy_async_16_of_line(slot + INT4_SCALES + 32 * i + lane, from + INT4_SCALES + 32 * i + lane, policy);
        }
        copy_async_commit();
    };
    Unit now = {rows, 0}, ahead = now;
    for (now.group = warp; now.group >= groups; now.group -= groups) ++now.rows;
    ahead = now;
#pragma unroll 1
    for (int s = 0; s < STAGES; ++s, go_on(ahead)) start(ring + s * INT4_BLOCK, ahead);

    for (unsigned i = threadIdx.x; i < batch * groups * 16; i += THREADS)
        all_x[i / (groups * 16) * x_row + i % (groups * 16)] = reinterpret_cast<const uint4*>(x)[i];
    for (unsigned i = threadIdx.x; i < (rows_end - rows) * WARPS * batch * STRIDE; i += THREADS) all[i] = 0.0f;
    __syncthreads();
    for (unsigned i = warp; i < batch * groups; i += WARPS) {
        const __half2* const four = reinterpret_cast<const __half2*>(all_x + i / groups * x_row + i % groups * 16) + 2 * lane;
        const float2 low = __half22float2(four[0]), high = __half22float2(four[1]);
        const float sum = warp_sum(low.x + low.y + high.x + high.y);
        if (lane == 0) x_sums[i] = sum;
    }
    __syncthreads();

    // Of the sums of a tile's rows g and g + 8 and of eight tokens a lane has tokens 2 t and 2 t + 1; beyond the last one
    // those of another, which nothing uses.
    const uint4* x_at[PARTS];
    const float *even[PARTS], *odd[PARTS];
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        x_at[p] = all_x + min(8 * p + lane % 8, batch - 1) * x_row + lane / 8;
        even[p] = x_sums + min(8 * p + 2 * t, batch - 1) * groups;
        odd[p] = x_sums + min(8 * p + 2 * t + 1, batch - 1) * groups;
    }
    float sums[4][PARTS][4] = {};
    unsigned slot = 0;
    while (now.rows < rows_end) {
        copy_async_wait<STAGES - 1>();
        __syncwarp();  // the other lanes' scales have arrived too
        const uint4* const here = ring + slot * INT4_BLOCK;
        const uint4 scales = here[lane / 4];
        const unsigned by_tile[4] = {scales.x, scales.y, scales.z, scales.w};
        uint4 codes[4][2];
#pragma unroll
        for (int i = 0; i < 8; ++i)
            codes[i / 2][i % 2] = is_own(now, i / 2) ? here[INT4_SCALES + 32 * i + lane] : make_uint4(0, 0, 0, 0);
        __syncwarp();  // all lanes have read the slot
        start(ring + slot * INT4_BLOCK, ahead);
        go_on(ahead);
        slot = slot + 1 == STAGES ? 0 : slot + 1;

        unsigned b[PARTS][16];
        float offsets[PARTS][4];  // weights carry one of 264 in row g and of 24 in row g + 8
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
#pragma unroll
            for (int i = 0; i < 4; ++i) load_matrix_x4(&b[p][4 * i], x_at[p] + now.group * 16 + 4 * i);
#pragma unroll
            for (int e = 0; e < 4; ++e) offsets[p][e] = (e < 2 ? -264.0f : -24.0f) * (e % 2 ? odd[p] : even[p])[now.group];
        }
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            if (!is_own(now, m)) continue;
            float partial[2][PARTS][4] = {};  // of the halves of the group, which do not wait for each other
#pragma unroll
            for (int p = 0; p < PARTS; ++p)
#pragma unroll
                for (int e = 0; e < 4; ++e) partial[0][p][e] = offsets[p][e];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const unsigned words[4] = {codes[m][h].x, codes[m][h].y, codes[m][h].z, codes[m][h].w};
#pragma unroll
                for (int step = 0; step < 4; ++step) {
                    unsigned a[4];
                    int4_tile_to_offset_halves(words[step], a);
#pragma unroll
                    for (int p = 0; p < PARTS; ++p) mma_m16n8k16_f16(partial[h][p], a, &b[p][8 * h + 2 * step]);
                }
            }
            const float2 scale = __half22float2(as_half2(by_tile[m]));
#pragma unroll
            for (int p = 0; p < PARTS; ++p)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    sums[m][p][e] += (e < 2 ? scale.x : scale.y) * (partial[0][p][e] + partial[1][p][e]);
        }
        const unsigned done = now.rows;
        go_on(now);
        if (now.rows == done) continue;
        float* const own = all + ((done - rows) * WARPS + warp) * batch * STRIDE;
#pragma unroll
        for (int m = 0; m < 4; ++m)
#pragma unroll
            for (int p = 0; p < PARTS; ++p)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const unsigned token = 8 * p + 2 * t + e % 2;
                    if (token < batch) own[token * STRIDE + 16 * m + lane / 4 + e / 2 * 8] = sums[m][p][e];
                    sums[m][p][e] = 0.0f;
                }
    }
    copy_async_wait<0>();
    __syncthreads();
    for (unsigned i = threadIdx.x; i < 16 * (last - first) * batch; i += THREADS) {
        const unsigned token = i / (16 * (last - first)), row = 16 * first + i % (16 * (last - first));
        const float* const from = all + ((row / INT4_TILE - rows) * WARPS * batch + token) * STRIDE + row % INT4_TILE;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += from[w * batch * STRIDE];
        if (row < n) y[token * (unsigned long long)n + row] = __float2half(sum);
    }
}
