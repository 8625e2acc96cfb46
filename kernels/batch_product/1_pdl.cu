// batch_product 1, pdl: a few tokens times a matrix, its weights on their way before the kernel before has ended.
//
// Purpose  between a batch's kernels the memory idles: the last blocks drain, the next ones start, and their first loads
//          take their latency. Weights depend on no earlier kernel, so every lane has STAGES chunks of them under way before
//          it waits for x. What used to be a kernel after the product happens to sums that are in registers.
// Shapes   weights [n][k] in FORMAT, n a multiple of 16, k of 64 (INT4: 64 and 128); x [batch][k] half, batch at most TOKENS;
//          out by EPILOGUE: 0 rows [batch][n] half; 1 queries [batch][heads][head_dim] half, and the row of keys and values
//          at `position` of a cache [..][batch][kv_heads][head_dim], biased and rotated, of rows in the order of
//          rooflab.ops.decoder.pair_heads; 2 SiLU of the gates times the ups [batch][n / 2] half, of rows in the order of
//          pair_gates; 3 sums [gridDim.y][batch][n] float, of a part of k each; 4 rows as of 0, and the best of each block's
//          rows, of equals the first, in best [gridDim.x][batch] of 8 bytes. All 16-byte aligned.
// Bytes    the weights once, x once a block (from L2), out.
// Launch   32 WARPS threads a block; blocks of y divide k into chunks of 64 (INT4: 128), WARPS CHUNKS of them each, and blocks
//          of x the n / 16 tiles of rows. Ring and sums in dynamic shared memory. As a dependent of the kernel that makes x.
// Macros   FORMAT = 0: of the weights: 0 FP16, 1 Q8_0 in planes, 2 INT4 in tile order;
//          TOKENS = 8: columns of the products, a multiple of 8;
//          WARPS = 4: warps, which divide the block's part of k;
//          CHUNKS = 1: of k a warp, whose x stays in registers;
//          STAGES = 4: chunks of weights that a warp has under way, a multiple of those that it multiplies at a time (PACE);
//          AHEAD = 4: of these, how many it asks for before it waits for x, STAGES at most: more would take memory's time from
//          the kernel before, where that has much to read itself;
//          TILES = 2: tiles of 16 rows whose sums the block's warps add up together, between two barriers, a multiple of TALL;
//          EPILOGUE = 0: what becomes of the sums;
//          DRAFTS = 0: 1 where the tokens are one sequence's at positions `position` + 0, 1, ..: their cache is
//          [..][kv_heads][head_dim].
// Below    cuBLAS, int4/11_tma and mmq/7_fp16_wgmma, with rope, silu_mul and half of rmsnorm as kernels after them.
// Lost     on an H200, with eight tokens: RMSNorm's weights before the product that ends a branch and its root after the next
//          product, so that no norm is a kernel (what its sums add to a product that all blocks wait for is more); a later
//          product's weights brought into L2 while memory rests (what waits for L2 then waits longer); Q8_0's weights multiplied
//          with their offset (the sums of x that take it away come before the first product); INT4's 64 rows multiplied at a
//          time, which memory did not reward; one carve-out of shared memory for all kernels of a step.
#include "common/batch_heads.cuh"
#include "common/batch_weights.cuh"
#include "common/candidate.cuh"
#include "common/ptx/cache_hints.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/dependent_launch.cuh"

// What becomes of a tile's sums of a token, in rows g and g + 8.
__device__ inline void finish(float low, float high, void* out, unsigned tile, unsigned token, unsigned n, unsigned batch,
                              const Heads& to, int position, const Turn& turn) {
    const unsigned g = threadIdx.x % 32 / 4;
#if EPILOGUE == 0 || EPILOGUE == 4
    __half* const y = static_cast<__half*>(out) + token * (size_t)n + 16 * tile + g;
    y[0] = __float2half(low);
    y[8] = __float2half(high);
#elif EPILOGUE == 1
    const int each = to.head_dim / 16, head = tile / each, i = tile % each * 8 + g, kv_head = head - to.heads;
    low += turn.low;
    high += turn.high;
    __half* y = static_cast<__half*>(out) + (token * (size_t)to.heads + head) * to.head_dim;
    const size_t cached = (DRAFTS ? position + token : position * (size_t)batch + token) * to.kv_heads;
    const float2 cos_sin = turn.cos_sin[DRAFTS ? token % 2 : 0];
    if (kv_head >= 0) y = to.keys + (cached + kv_head) * to.head_dim;
    if (kv_head >= to.kv_heads) y = to.values + (cached + kv_head - to.kv_heads) * to.head_dim;
    y[i] = __float2half(low * cos_sin.x - high * cos_sin.y);
    y[i + to.head_dim / 2] = __float2half(high * cos_sin.x + low * cos_sin.y);
#elif EPILOGUE == 2
    static_cast<__half*>(out)[token * (size_t)(n / 2) + 8 * tile + g] = __float2half(low / (1.0f + __expf(-low)) * high);
#else
    float* const y = static_cast<float*>(out) + (blockIdx.y * (size_t)batch + token) * n + 16 * tile + g;
    y[0] = low;
    y[8] = high;
#endif
}

#if EPILOGUE == 4
// A row's sum as it is stored, and the row.
__device__ inline Candidate candidate(float sum, unsigned row) { return {__half2float(__float2half(sum)), int(row)}; }

// Of all lanes' and warps' best the best, for each token.
__device__ inline void store_best(Candidate* best, const Candidate (&most)[COLUMNS][2], unsigned batch) {
    __shared__ Candidate of_warps[TOKENS][WARPS];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            Candidate mine = most[j][e];
#pragma unroll
            for (int offset = 4; offset < 32; offset *= 2) mine = better(mine, candidate_of_lane(mine, offset));
            if (lane < 4) of_warps[8 * j + 2 * lane + e][warp] = mine;
        }
    __syncthreads();
    for (unsigned token = threadIdx.x; token < batch; token += THREADS) {
        Candidate mine = of_warps[token][0];
#pragma unroll
        for (int w = 1; w < WARPS; ++w) mine = better(mine, of_warps[token][w]);
        best[blockIdx.x * batch + token] = mine;
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    batch_product_pdl(const uint4* __restrict__ weights, const unsigned* __restrict__ scales, const uint4* x, void* out,
                      unsigned n, unsigned k, unsigned batch, const __half* __restrict__ biases,
                      const float2* __restrict__ rotary, const int* position, __half* keys, __half* values, int heads,
                      int kv_heads, int head_dim, Candidate* best) {
    extern __shared__ __align__(16) uint4 shared[];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, tiles = n / 16;
    uint4* const ring = shared + warp * STAGES * SLOT;
    float4* const sums_of_warps = reinterpret_cast<float4*>(shared + WARPS * STAGES * SLOT);
    const unsigned first = tiles * blockIdx.x / gridDim.x, last = tiles * (blockIdx.x + 1) / gridDim.x;
    const unsigned chunk = (blockIdx.y * WARPS + warp) * CHUNKS;  // the warp's first
    const unsigned long long policy = evict_first_policy();
    const Heads to = {biases, rotary, keys, values, heads, kv_heads, head_dim};
    // The same all through a step, so that it is read before x is there, like what the warp's first columns are rotated with.
    const int position_now = EPILOGUE == 1 ? __ldcg(position) : 0;
    Turn rotation = {};
    if (EPILOGUE == 1 && first < last)
        rotation = turn_of(min(first + warp / COLUMNS, last - 1), 8 * (warp % COLUMNS) + lane % 4 * 2, batch, position_now, to);

    Source from = source_of(weights, scales, first, chunk, k);
    unsigned tile_ahead = first;
    const auto next = [&](uint4* slot, int c) {
        if (tile_ahead < last) start(slot, from, c, k, policy);
        copy_async_commit();
        if (c + 1 == CHUNKS) next_tile(from, tile_ahead++, k);
    };
    const auto fill = [&](int from_slot, int to) {
#pragma unroll 1
        for (int s = from_slot, c = s % CHUNKS; s < to; ++s, c = c + 1 == CHUNKS ? 0 : c + 1) next(ring + s * SLOT, c);
    };
    fill(0, AHEAD);
    // What starts now has its own weights brought, which should not come before those above, nor before many tokens' x.
    if (COLUMNS <= 2) let_successor_start();
    wait_for_predecessor();
    if (COLUMNS > 2) let_successor_start();

    unsigned own[CHUNKS][COLUMNS][X_WORDS];
    Begin begin[CHUNKS][COLUMNS];
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            load_x(own[c][j], x + (8 * j + g) * (size_t)(k / 8), chunk + c, 8 * j + g < batch);
            begin[c][j] = begin_of(own[c][j]);
        }
    fill(AHEAD, STAGES);
#if EPILOGUE == 4
    Candidate most[COLUMNS][2];  // of this lane's two tokens in each column
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) most[j][0] = most[j][1] = no_candidate();
#endif
    uint4* slot = ring;
    Scales by;
#pragma unroll 1
    for (unsigned tile = first, places = 0; tile < last; tile += TALL) {
        float sums[TALL][CHAINS][COLUMNS][4] = {};
#pragma unroll
        for (int c = 0; c < CHUNKS * TALL; c += PACE) {
            copy_async_wait<STAGES - PACE>();
            if (SCALES) __syncwarp();  // the other lanes' scales have arrived too
#pragma unroll
            for (int p = 0; p < PACE; ++p) {
                const int up = TALL > 1 ? p : 0, i = c + p - up;  // of tile + up, which may be none of the block's, chunk i
                const uint4* const its = slot + (up > 0 && tile + up >= last ? 0 : p) * SLOT;  // of none: the first's again
                if (SCALES && i % SPAN == 0) load_scales(by, its, tile + up);
                multiply(sums[up] + (TALL > 1 ? 0 : SUMS * p % CHAINS), its, own[i], begin[i], by, i % SPAN);
            }
            if (SCALES) __syncwarp();  // all lanes have read them
#pragma unroll
            for (int p = 0; p < PACE; ++p) next(slot + p * SLOT, (STAGES + c + p) % CHUNKS);
            slot += PACE * SLOT;
            if (slot == ring + STAGES * SLOT) slot = ring;
        }
#pragma unroll
        for (int up = 0; up < TALL; ++up) {
            if (up > 0 && tile + up >= last) break;
            float4* const here = sums_of_warps + places++ % (2 * TILES) * (WARPS * COLUMNS * 32);
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                float(&all)[4] = sums[up][0][j];
#pragma unroll
                for (int chain = 1; chain < CHAINS; ++chain)
#pragma unroll
                    for (int e = 0; e < 4; ++e) all[e] += sums[up][chain][j][e];
                here[(warp * COLUMNS + j) * 32 + lane] = make_float4(all[0], all[1], all[2], all[3]);
            }
        }
        if (places % TILES && tile + TALL < last) continue;
        // Sums of all warps have met in half of the places: who adds them up is done before the next barrier but one.
        __syncthreads();
        const unsigned there = (places - 1) % TILES + 1, turn = places - there;
#pragma unroll 1
        for (unsigned i = (warp + WARPS - turn * COLUMNS % WARPS) % WARPS; i < there * COLUMNS; i += WARPS) {
            const unsigned j = i % COLUMNS, of = min(tile + TALL, last) - there + i / COLUMNS;
            const float4* const from = sums_of_warps + (turn + i / COLUMNS) % (2 * TILES) * (WARPS * COLUMNS * 32) + j * 32 + lane;
            float4 all = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                const float4 more = from[w * COLUMNS * 32];
                all.x += more.x, all.y += more.y, all.z += more.z, all.w += more.w;
            }
            const unsigned token = 8 * j + lane % 4 * 2;
            if (EPILOGUE == 1 && (of != rotation.tile || (DRAFTS && token != rotation.token)))
                rotation = turn_of(of, token, batch, position_now, to);
            if (token < batch) finish(all.x, all.z, out, of, token, n, batch, to, position_now, rotation);
            if (token + 1 < batch) finish(all.y, all.w, out, of, token + 1, n, batch, to, position_now, rotation);
#if EPILOGUE == 4
#pragma unroll
            for (unsigned c = 0; c < COLUMNS; ++c) {
                if (c != j) continue;
                most[c][0] = better(most[c][0], better(candidate(all.x, 16 * of + g), candidate(all.z, 16 * of + g + 8)));
                most[c][1] = better(most[c][1], better(candidate(all.y, 16 * of + g), candidate(all.w, 16 * of + g + 8)));
            }
#endif
        }
    }
#if EPILOGUE == 4
    store_best(best, most, batch);
#endif
}
