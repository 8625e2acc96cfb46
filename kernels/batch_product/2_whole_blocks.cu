// batch_product 2, whole blocks: of INT4 a warp multiplies all rows of a block of weights that its thread block has.
//
// Purpose  the tile order keeps 64 rows by 128 of k together, 4224 bytes. Rung 1 reads a quarter of each on its way along k and
//          comes back for the next one: memory opens each page four times, and the scales of all rows are copied for each 16.
// Shapes   as rung 1, FORMAT 2 alone.
// Bytes    as rung 1.
// Launch   as rung 1, but a place of the ring takes TALL tiles of 16 rows and scales, 512 TALL + 128 bytes; sums as of TALL tiles.
// Macros   TOKENS = 8: as rung 1;
//          WARPS = 4: as rung 1;
//          CHUNKS = 1: as rung 1;
//          STAGES = 4: chunks of 64 of k, of TALL tiles each, that a warp has under way;
//          EPILOGUE = 0: as rung 1;
//          DRAFTS = 0: as rung 1.
// Changed  from rung 1: TALL tiles of one block of weights are copied, multiplied and added up together, of the first and the
//          last block those that are this thread block's.
#define FORMAT 2
#include "common/batch_heads.cuh"
#include "common/int4.cuh"
#include "common/ptx/cache_hints.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/dependent_launch.cuh"
#include "common/ptx/mma.cuh"

constexpr int THREADS = 32 * WARPS, COLUMNS = TOKENS / 8;
constexpr int TALL = COLUMNS == 1 ? 4 : 2;  // tiles at a time: all of a block of weights, or with many tokens half of them
constexpr int SLOT = 32 * TALL + INT4_SCALES;

// x of a chunk and eight tokens, as its products take it: word 2 s + i is b[i] of the s-th of four.
__device__ inline void load_x(unsigned (&x)[8], const uint4* row, unsigned chunk, bool there) {
    const unsigned t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const uint4 v = there ? __ldcg(row + chunk * 8 + 4 * h + t) : make_uint4(0, 0, 0, 0);
        unsigned* const w = x + 4 * h;
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
        // The order of k in a word of codes is that of the mma: lane t needs word t of every lane of its four.
#pragma unroll
        for (int r = 1; r < 4; r *= 2) {
            const bool upper = t & r;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (i & r) continue;
                const unsigned other = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i + r], r);
                w[i] = upper ? other : w[i];
                w[i + r] = upper ? w[i + r] : other;
            }
        }
    }
}

// What becomes of a tile's sums of a token, in rows g and g + 8.
__device__ inline void finish(float low, float high, void* out, unsigned tile, unsigned token, unsigned n, unsigned batch,
                              const Heads& to, int position, const Turn& turn) {
    const unsigned g = threadIdx.x % 32 / 4;
#if EPILOGUE == 0
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

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    batch_product_whole_blocks(const uint4* __restrict__ weights, const unsigned* __restrict__, const uint4* x, void* out, unsigned n,
                               unsigned k, unsigned batch, const __half* __restrict__ biases, const float2* __restrict__ rotary,
                               const int* position, __half* keys, __half* values, int heads, int kv_heads, int head_dim) {
    extern __shared__ __align__(16) uint4 shared[];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, tiles = n / 16;
    uint4* const ring = shared + warp * STAGES * SLOT;
    float4* const sums_of_warps = reinterpret_cast<float4*>(shared + WARPS * STAGES * SLOT);
    const unsigned first = tiles * blockIdx.x / gridDim.x, last = tiles * (blockIdx.x + 1) / gridDim.x;
    const unsigned chunk = blockIdx.y * (WARPS * CHUNKS) + warp;  // the warp's first: the others follow WARPS apart
    const unsigned long long policy = evict_first_policy();
    const Heads to = {biases, rotary, keys, values, heads, kv_heads, head_dim};
    const int position_now = EPILOGUE == 1 ? __ldcg(position) : 0;
    Turn rotation = {};
    if (EPILOGUE == 1 && first < last)
        rotation = turn_of(min(first + warp / COLUMNS, last - 1), 8 * (warp % COLUMNS) + lane % 4 * 2, batch, position_now, to);

    const auto is_own = [&](unsigned tile) { return tile >= first && tile < last; };
    // TALL tiles begin at `ahead`, of which the next chunk is to be copied.
    unsigned ahead = first / TALL * TALL, slot = 0;
    const auto next = [&](unsigned place, int c) {
        const unsigned at = chunk + c * WARPS;
        const uint4* const block = weights + (ahead / 4 * (size_t)(k / 128) + at / 2) * INT4_BLOCK + lane;
        uint4* const there = ring + place * SLOT + lane;
        if (ahead < last && lane < INT4_SCALES) copy_async_16_of_line(there + 32 * TALL, block, policy);
#pragma unroll
        for (int i = 0; i < TALL; ++i)
            if (is_own(ahead + i))
                copy_async_16_of_line(there + 32 * i, block + INT4_SCALES + (ahead % 4 + i) * 64 + at % 2 * 32, policy);
        copy_async_commit();
        if (c + 1 == CHUNKS) ahead += TALL;
    };
#pragma unroll 1
    for (int s = 0, c = 0; s < STAGES; ++s, c = c + 1 == CHUNKS ? 0 : c + 1) next(s, c);
    // What starts now has its own weights brought, which should not come before those above, nor before many tokens' x.
    if (COLUMNS <= 2) let_successor_start();
    wait_for_predecessor();
    if (COLUMNS > 2) let_successor_start();

    unsigned own[CHUNKS][COLUMNS][8];
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j)
            load_x(own[c][j], x + (8 * j + g) * (size_t)(k / 8), chunk + c * WARPS, 8 * j + g < batch);
#pragma unroll 1
    for (unsigned tile = first / TALL * TALL, places = 0; tile < last; tile += TALL) {
        float sums[TALL][COLUMNS][4] = {};
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            copy_async_wait<STAGES - 1>();
            __syncwarp();  // the other lanes' scales have arrived too
            const uint4* const here = ring + slot * SLOT;
            const uint4 scales = here[32 * TALL + g];
            const unsigned by_tile[4] = {TALL == 2 && tile % 4 ? scales.z : scales.x, TALL == 2 && tile % 4 ? scales.w : scales.y,
                                         scales.z, scales.w};
            uint4 codes[TALL];
#pragma unroll
            for (int i = 0; i < TALL; ++i) codes[i] = is_own(tile + i) ? here[32 * i + lane] : make_uint4(0, 0, 0, 0);
            __syncwarp();  // all lanes have read the slot
            next(slot, (STAGES + c) % CHUNKS);
            slot = slot + 1 == STAGES ? 0 : slot + 1;
#pragma unroll
            for (int i = 0; i < TALL; ++i) {
                if (!is_own(tile + i)) continue;
                const unsigned steps[4] = {codes[i].x, codes[i].y, codes[i].z, codes[i].w};
                const float2 by = __half22float2(as_half2(by_tile[i]));  // of rows g and g + 8
                float part[COLUMNS][4] = {};
#pragma unroll
                for (int s = 0; s < 4; ++s) {
                    unsigned a[4];
                    int4_tile_to_halves(steps[s], a);
#pragma unroll
                    for (int j = 0; j < COLUMNS; ++j) mma_m16n8k16_f16(part[j], a, own[c][j] + 2 * s);
                }
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) sums[i][j][e] = fmaf(e < 2 ? by.x : by.y, part[j][e], sums[i][j][e]);
            }
        }
        const unsigned low = max(first, tile), there = min(last, tile + TALL) - low;
#pragma unroll
        for (int i = 0; i < TALL; ++i) {
            if (!is_own(tile + i)) continue;
            float4* const here = sums_of_warps + (places + tile + i - low) % (2 * TALL) * (WARPS * COLUMNS * 32);
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j)
                here[(warp * COLUMNS + j) * 32 + lane] = make_float4(sums[i][j][0], sums[i][j][1], sums[i][j][2], sums[i][j][3]);
        }
        // Sums of all warps have met in half of the places: who adds them up is done before the next barrier but one.
        __syncthreads();
#pragma unroll 1
        for (unsigned i = (warp + WARPS - places * COLUMNS % WARPS) % WARPS; i < there * COLUMNS; i += WARPS) {
            const unsigned j = i % COLUMNS, of = low + i / COLUMNS;
            const float4* const from = sums_of_warps + (places + i / COLUMNS) % (2 * TALL) * (WARPS * COLUMNS * 32) + j * 32 + lane;
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
        }
        places += there;
    }
}
