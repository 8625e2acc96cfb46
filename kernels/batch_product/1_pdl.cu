// batch_product 1, pdl: a few tokens times a matrix, its weights on their way before the kernel before has ended.
//
// Purpose  between a batch's kernels the memory idles: the last blocks drain, the next ones start, and their first loads
//          take their latency. Weights depend on no earlier kernel, so every lane has STAGES chunks of them under way before
//          it waits for x. What used to be a kernel after the product happens to sums that are in registers.
// Shapes   weights [n][k] in FORMAT, n a multiple of 16, k of 64 (INT4: 64 and 128); x [batch][k] half, batch at most TOKENS;
//          out by EPILOGUE: 0 rows [batch][n] half; 1 queries [batch][heads][head_dim] half, and the row of keys and values
//          at `position` of a cache [..][batch][kv_heads][head_dim], biased and rotated, of rows in the order of
//          rooflab.ops.decoder.pair_heads; 2 SiLU of the gates times the ups [batch][n / 2] half, of rows in the order of
//          pair_gates; 3 sums [gridDim.y][batch][n] float, of a part of k each. All 16-byte aligned.
// Bytes    the weights once, x once a block (from L2), out.
// Launch   32 WARPS threads a block; blocks of y divide k into chunks of 64, WARPS CHUNKS of them each, and blocks of x the
//          n / 16 tiles of rows. Ring and sums in dynamic shared memory. As a dependent of the kernel that makes x.
// Macros   FORMAT = 0: of the weights: 0 FP16, 1 Q8_0 in planes, 2 INT4 in tile order;
//          TOKENS = 8: columns of the products, a multiple of 8;
//          WARPS = 4: warps, which divide the block's part of k;
//          CHUNKS = 1: of 64 of k a warp, whose x stays in registers;
//          STAGES = 4: chunks of weights that a warp has under way, a multiple of those that it multiplies at a time (PACE);
//          TILES = 1: tiles of 16 rows whose sums the block's warps add up together, between two barriers;
//          EPILOGUE = 0: what becomes of the sums;
//          DRAFTS = 0: 1 where the tokens are one sequence's at positions `position` + 0, 1, ..: their cache is
//          [..][kv_heads][head_dim].
// Below    cuBLAS, int4/11_tma and mmq/7_fp16_wgmma, with rope, silu_mul and half of rmsnorm as kernels after them.
// Lost     on an H200, with eight tokens: RMSNorm's weights before the product that ends a branch and its root after the next
//          product, so that no norm is a kernel (what its sums add to a product that all blocks wait for is more); a later
//          product's weights brought into L2 while memory rests, and two kernels' blocks on an SM (what waits for L2 then waits
//          longer); weights multiplied with their offset (the sums of x that take it away come before the first product).
#include "common/int4.cuh"
#include "common/ptx/cache_hints.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/dependent_launch.cuh"
#include "common/ptx/mma.cuh"

constexpr int THREADS = 32 * WARPS, COLUMNS = TOKENS / 8;
constexpr int PIECES = FORMAT == 0 ? 4 : FORMAT == 1 ? 2 : 1;  // of 16 bytes that a lane copies of a chunk
constexpr int SCALES = FORMAT == 0 ? 0 : FORMAT == 1 ? 2 : 1;  // words of scales
constexpr int SLOT = 32 * PIECES + 8 * SCALES;                 // a chunk of a warp, in units of 16 bytes
// Chunks that a warp multiplies at a time: products of one wait for each other, unless other columns come between.
constexpr int PACE = COLUMNS > 2 ? 1 : CHUNKS % 3 == 0 ? 3 : CHUNKS % 2 == 0 ? 2 : 1;
constexpr int CHAINS = 2 * (PACE < 3 ? PACE : 2);  // sums of a column that do not wait for each other
static_assert(STAGES % PACE == 0);

// Start copying this lane's share of a chunk: rows g and g + 8 of 16, by 64 of k. What a lane copies it reads itself, so that
// none waits for another.
__device__ inline void start(uint4* slot, const uint4* weights, const unsigned* scales, unsigned tile, unsigned chunk,
                             unsigned k, unsigned long long policy) {
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const size_t row = 16 * tile + g;
    unsigned* const words = reinterpret_cast<unsigned*>(slot + 32 * PIECES) + lane;
#if FORMAT == 0
    const uint4* from = weights + row * (k / 8) + chunk * 8 + t;  // of 32 of k lane t takes 8 t to 8 t + 7
#pragma unroll
    for (int i = 0; i < 4; ++i) copy_async_16_of_line(slot + 32 * i + lane, from + i % 2 * (k + 0ull) + i / 2 * 4, policy);
#elif FORMAT == 1
    const uint4* from = weights + row * (k / 16) + chunk * 4 + t;  // of 64 of k lane t takes 16 t to 16 t + 15
    const unsigned* scale = scales + row * (k / 64) + chunk;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        copy_async_16_of_line(slot + 32 * i + lane, from + i * (k / 2 + 0ull), policy);
        copy_async_4(words + 32 * i, scale + i * (k / 8 + 0ull));
    }
#else
    const uint4* block = weights + (tile / 4 * (size_t)(k / 128) + chunk / 2) * INT4_BLOCK;
    copy_async_16_of_line(slot + lane, block + INT4_SCALES + tile % 4 * 64 + chunk % 2 * 32 + lane, policy);
    copy_async_4(words, reinterpret_cast<const unsigned*>(block) + g * 4 + tile % 4);
#endif
}

// x of a chunk and eight tokens, as its products take it: word 2 s + i is b[i] of the s-th of four.
__device__ inline void load_x(unsigned (&x)[8], const uint4* row, unsigned chunk, bool there) {
    const unsigned t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const unsigned place = FORMAT == 1 ? 2 * t + h : 4 * h + t;
        const uint4 v = there ? __ldcg(row + chunk * 8 + place) : make_uint4(0, 0, 0, 0);
        x[4 * h] = v.x, x[4 * h + 1] = v.y, x[4 * h + 2] = v.z, x[4 * h + 3] = v.w;
#if FORMAT == 2
        // The order of k in a word of codes is that of the mma: lane t needs word t of every lane of its four.
        unsigned* const w = x + 4 * h;
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
#endif
    }
}

// Two of a word's four bytes as halves.
__device__ inline __half2 q8_pair(unsigned word, unsigned which) {
    return __hsub2(as_half2(__byte_perm(word ^ 0x80808080u, 0x64646464u, which)), as_half2(0x64806480u));
}

// Add a chunk's products to two sums of each column.
__device__ inline void multiply(float (*sums)[COLUMNS][4], const uint4* slot, const unsigned (&x)[COLUMNS][8]) {
    const unsigned lane = threadIdx.x % 32;
    const unsigned* const words = reinterpret_cast<const unsigned*>(slot + 32 * PIECES) + lane;
#if FORMAT == 0
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const uint4 low = slot[64 * h + lane], high = slot[64 * h + 32 + lane];
        const unsigned first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            mma_m16n8k16_f16(sums[0][j], first, x[j] + 4 * h);
            mma_m16n8k16_f16(sums[1][j], second, x[j] + 4 * h + 2);
        }
    }
#elif FORMAT == 1
    const uint4 low = slot[lane], high = slot[32 + lane];
    const unsigned lows[4] = {low.x, low.y, low.z, low.w}, highs[4] = {high.x, high.y, high.z, high.w};
    const __half2 scale_low = as_half2(words[0]), scale_high = as_half2(words[32]);
    const bool second = lane % 4 / 2;  // of the chunk's two blocks
    const __half2 by_low = second ? __high2half2(scale_low) : __low2half2(scale_low);
    const __half2 by_high = second ? __high2half2(scale_high) : __low2half2(scale_high);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        unsigned a[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            a[2 * i] = as_word(__hmul2(q8_pair(lows[s], i ? 0x4342 : 0x4140), by_low));
            a[2 * i + 1] = as_word(__hmul2(q8_pair(highs[s], i ? 0x4342 : 0x4140), by_high));
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) mma_m16n8k16_f16(sums[s % 2][j], a, x[j] + 2 * s);
    }
#else
    const uint4 codes = slot[lane];
    const unsigned steps[4] = {codes.x, codes.y, codes.z, codes.w};
    const float2 by = __half22float2(as_half2(words[0]));  // of rows g and g + 8
    float part[COLUMNS][4] = {};
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        unsigned a[4];
        int4_tile_to_halves(steps[s], a);
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) mma_m16n8k16_f16(part[j], a, x[j] + 2 * s);
    }
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[0][j][e] = fmaf(e < 2 ? by.x : by.y, part[j][e], sums[0][j][e]);
#endif
}

// Where rows of queries, keys and values go.
struct Heads {
    const __half* biases;
    const float2* rotary;
    __half *keys, *values;
    int heads, kv_heads, head_dim;
};

// What a lane's rows g and g + 8 of a tile are biased and rotated with: at `position`, or drafts `token` and the one after it
// at their own.
struct Turn {
    unsigned tile, token;
    float low, high;
    float2 cos_sin[1 + DRAFTS];
};

__device__ inline Turn turn_of(unsigned tile, unsigned token, unsigned batch, int position, const Heads& to) {
    const unsigned g = threadIdx.x % 32 / 4, each = to.head_dim / 16, i = tile % each * 8 + g;
    const bool rotated = tile / each < unsigned(to.heads + to.kv_heads);
    Turn found = {tile, token, __half2float(to.biases[16 * tile + g]), __half2float(to.biases[16 * tile + g + 8])};
#pragma unroll
    for (int d = 0; d <= DRAFTS; ++d) {
        const size_t at = position + (DRAFTS ? min(token + d, batch - 1) : 0);
        found.cos_sin[d] = rotated ? to.rotary[at * (to.head_dim / 2) + i] : make_float2(1.0f, 0.0f);
    }
    return found;
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
    batch_product_pdl(const uint4* __restrict__ weights, const unsigned* __restrict__ scales, const uint4* x, void* out,
                      unsigned n, unsigned k, unsigned batch, const __half* __restrict__ biases,
                      const float2* __restrict__ rotary, const int* position, __half* keys, __half* values, int heads,
                      int kv_heads, int head_dim) {
    extern __shared__ __align__(16) uint4 shared[];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, tiles = n / 16;
    uint4* const ring = shared + warp * STAGES * SLOT;
    float4* const sums_of_warps = reinterpret_cast<float4*>(shared + WARPS * STAGES * SLOT);
    const unsigned first = tiles * blockIdx.x / gridDim.x, last = tiles * (blockIdx.x + 1) / gridDim.x;
    const unsigned chunk = blockIdx.y * (WARPS * CHUNKS) + warp;  // the warp's first: the others follow WARPS apart
    const unsigned long long policy = evict_first_policy();
    const Heads to = {biases, rotary, keys, values, heads, kv_heads, head_dim};
    // The same all through a step, so that it is read before x is there, like what the warp's first columns are rotated with.
    const int position_now = EPILOGUE == 1 ? __ldcg(position) : 0;
    Turn rotation = {};
    if (EPILOGUE == 1 && first < last)
        rotation = turn_of(min(first + warp / COLUMNS, last - 1), 8 * (warp % COLUMNS) + lane % 4 * 2, batch, position_now, to);

    unsigned tile_ahead = first, c_ahead = 0, slot = 0;
    const auto next = [&](unsigned place) {
        if (tile_ahead < last) start(ring + place * SLOT, weights, scales, tile_ahead, chunk + c_ahead * WARPS, k, policy);
        copy_async_commit();
        if (++c_ahead == CHUNKS) c_ahead = 0, ++tile_ahead;
    };
#pragma unroll 1
    for (int s = 0; s < STAGES; ++s) next(s);
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
    for (unsigned tile = first, places = 0; tile < last; ++tile) {
        float sums[CHAINS][COLUMNS][4] = {};
#pragma unroll
        for (int c = 0; c < CHUNKS; c += PACE) {
            copy_async_wait<STAGES - PACE>();
#pragma unroll
            for (int p = 0; p < PACE; ++p) multiply(sums + 2 * p % CHAINS, ring + (slot + p) * SLOT, own[c + p]);
#pragma unroll
            for (int p = 0; p < PACE; ++p) next(slot + p);
            slot = slot + PACE == STAGES ? 0 : slot + PACE;
        }
        float4* const here = sums_of_warps + places % (2 * TILES) * (WARPS * COLUMNS * 32);
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
            for (int chain = 1; chain < CHAINS; ++chain)
#pragma unroll
                for (int e = 0; e < 4; ++e) sums[0][j][e] += sums[chain][j][e];
            here[(warp * COLUMNS + j) * 32 + lane] = make_float4(sums[0][j][0], sums[0][j][1], sums[0][j][2], sums[0][j][3]);
        }
        if (++places % TILES && tile + 1 < last) continue;
        // Sums of all warps have met in half of the places: who adds them up is done before the next barrier but one.
        __syncthreads();
        const unsigned there = (places - 1) % TILES + 1, turn = places - there;
#pragma unroll 1
        for (unsigned i = (warp + WARPS - turn * COLUMNS % WARPS) % WARPS; i < there * COLUMNS; i += WARPS) {
            const unsigned j = i % COLUMNS, of = tile + 1 - there + i / COLUMNS;
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
        }
    }
}
