// int4 14, bytes: x as two bytes a number, so that codes are multiplied as bytes; and warps that wait for no other.
//
// Purpose  up to four tokens rung 9's warps unpack for as long as memory sends: five operations a word, at half rate, and a
//          barrier every K_WARPS groups. As bytes a word takes three, and half the products. Every warp has its own part of k,
//          x of which stays in registers, and its own ring, so that blocks can stay for all their rows.
// Shapes   weights in tile order (rooflab.ops.int4.repack); x [batch, k] half; y [batch, n] half; k up to 128 WARPS CHUNKS.
// Bytes    n k / 2 + n k / 64 weights and scales for every TOKENS tokens, x once a block (from L2), 2 n batch written.
// Launch   as many blocks as run at a time, of WARPS warps, by ceil(batch / TOKENS); they divide tiles of 16 rows, and warps
//          groups of 128 of k. Ring and sums in dynamic shared memory.
// Macros   WARPS = 16: warps a block;
//          CHUNKS = 1: groups of k a warp;
//          TOKENS = 1: tokens, at most 4;
//          STAGES = 3: tiles whose weights a warp has under way;
//          AHEAD = 2: of these, those that it asks for before x is converted;
//          TILES = 8: tiles whose sums meet between two barriers.
// Branch   from rung 9: x is quantised to 16 bits in the scale of its group, a high and a low byte, which are two columns of
//          the int8 product; codes are masked to bytes of four times their value, and 32 times the sum of x is subtracted.
// Lost     on an H200: x asked for after the first weights, behind which it queues (28,672 rows by 8192 took 11 % longer); one
//          tile's weights before x is converted, which is too little for that time (4 to 14 %); rings beyond 144 KiB (2 to
//          14 %); fewer warps (2 to 8 %).
#include "common/int4.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/mma.cuh"

constexpr int THREADS = 32 * WARPS, SLOT = 2 * 32 + INT4_SCALES;  // a tile's group, in units of 16 bytes
constexpr unsigned CODES = 0x3c3c3c3cu;  // a word in tile order begins with the two upper bits of its last code

// A group of x as the second operand, columns of high and of low bytes in turn, a pair a token; and of token t, which this
// lane's sums are of, the scale of a code times four and what the offset of codes adds.
struct Group {
    unsigned words[8];
    float scale;
    int offset;
};

// The warp's group of x, four neighbours a lane, through 256 bytes of shared memory a token. A word's bytes are elements 2 t,
// 2 t + 8, 2 t + 1 and 2 t + 9 of 16, as its codes are.
__device__ inline Group group_of(const uint2 (&bits)[TOKENS], unsigned char* bytes) {
    const int lane = threadIdx.x % 32;
    Group found = {};
#pragma unroll
    for (int token = 0; token < TOKENS; ++token) {
        const float2 a = __half22float2(as_half2(bits[token].x)), b = __half22float2(as_half2(bits[token].y));
        const float v[4] = {a.x, a.y, b.x, b.y};
        float most = 0.0f;
        int sum = 0;
        bool number = true;
#pragma unroll
        for (int e = 0; e < 4; ++e) most = fmaxf(most, fabsf(v[e])), number &= v[e] == v[e];
#pragma unroll
        for (int bit = 1; bit < 32; bit *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, bit));
        if (!__all_sync(0xffffffffu, number)) most = __int_as_float(0x7fffffff);  // fmaxf drops what is not a number
        const float inverse = most > 0.0f ? __fdividef(32512.0f, most) : 0.0f;
        unsigned char* const to = bytes + token * 256 + lane / 16 * 64 + lane % 2 * 32 + lane % 16 / 4 * 4 + lane / 2 % 2;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int whole = __float2int_rn(v[e] * inverse);
            sum += whole;
            to[e / 2 * 16 + e % 2 * 2] = (unsigned char)((whole + 128) >> 8 & 255);
            to[e / 2 * 16 + e % 2 * 2 + 128] = (unsigned char)(whole & 255);
        }
#pragma unroll
        for (int bit = 1; bit < 32; bit *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, bit);
        if (lane % 4 == token) found.scale = most * (1.0f / (4 * 32512.0f)), found.offset = -32 * sum;
    }
    __syncwarp();  // all lanes have stored their bytes
    const int column = min(lane / 8, TOKENS - 1) * 2 + lane / 4 % 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint4 w = reinterpret_cast<const uint4*>(bytes)[column * 8 + half * 4 + lane % 4];
        unsigned* const words = found.words + 4 * half;
        words[0] = w.x, words[1] = w.y, words[2] = w.z, words[3] = w.w;
    }
    __syncwarp();  // all lanes have read them
    return found;
}

// Add a tile's products with a group: rows g and g + 8 of token t.
__device__ inline void multiply(float2& sum, const uint4* slot, const Group& x, unsigned tile) {
    const int lane = threadIdx.x % 32;
    int sums[2][4] = {};  // two chains of products, because each waits for the one before it
    sums[0][1] = sums[0][3] = x.offset;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint4 codes = slot[32 * half + lane];
        const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            unsigned a[4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const unsigned word = words[2 * pair + i];
                a[2 * i] = word & CODES, a[2 * i + 1] = (word >> 4 | word << 28) & CODES;
            }
            mma_m16n8k32_s8(sums[pair], a, x.words + 4 * half + 2 * pair);
        }
    }
    const float2 scale = __half22float2(as_half2(reinterpret_cast<const unsigned*>(slot + 64)[lane / 4 * 4 + tile % 4]));
    sum.x = fmaf(scale.x * x.scale, __int2float_rn(256 * (sums[0][0] + sums[1][0]) + sums[0][1] + sums[1][1]), sum.x);
    sum.y = fmaf(scale.y * x.scale, __int2float_rn(256 * (sums[0][2] + sums[1][2]) + sums[0][3] + sums[1][3]), sum.y);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    int4_bytes(const uint4* __restrict__ blocks, const __half* __restrict__ x, __half* __restrict__ y, unsigned n,
               unsigned groups, unsigned all_tokens) {
    extern __shared__ __align__(16) uint4 shared[];
    const unsigned token0 = blockIdx.y * TOKENS, batch = all_tokens - token0;
    x += token0 * (groups * 128ull), y += token0 * (unsigned long long)n;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, tiles = (n + 15) / 16;
    uint4* const ring = shared + warp * (STAGES * CHUNKS * SLOT);
    float* const sums = reinterpret_cast<float*>(shared + WARPS * STAGES * CHUNKS * SLOT);
    const unsigned first = tiles * (unsigned long long)blockIdx.x / gridDim.x, last = tiles * (blockIdx.x + 1ull) / gridDim.x;
    // Warps take groups in turn; of the last ones not all have as many.
    const auto there = [&](int c) { return c * WARPS + warp < groups; };
    // Start copying the warp's c-th group of a tile.
    const auto start = [&](uint4* slot, unsigned tile, int c) {
        const uint4* const block = blocks + (tile / 4 * (unsigned long long)groups + c * WARPS + warp) * INT4_BLOCK + lane;
        if (tile < last && there(c)) {
            copy_async_16(slot + lane, block + INT4_SCALES + tile % 4 * INT4_TILE);
            copy_async_16(slot + 32 + lane, block + INT4_SCALES + tile % 4 * INT4_TILE + 32);
            if (lane < INT4_SCALES) copy_async_16(slot + 64 + lane, block);
        }
        copy_async_commit();
    };
    const auto fill = [&](int from, int to) {
#pragma unroll 1
        for (int s = from; s < to; ++s)
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) start(ring + (s * CHUNKS + c) * SLOT, first + s, c);
    };
    // Before the weights, which it would queue behind.
    uint2 bits[CHUNKS][TOKENS] = {};
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
        for (int token = 0; token < TOKENS; ++token)
            if (there(c) && token < batch)
                bits[c][token] = *reinterpret_cast<const uint2*>(x + (token * groups + c * WARPS + warp) * 128ull + 4 * lane);
    fill(0, AHEAD);
    Group own[CHUNKS] = {};
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
        if (there(c)) own[c] = group_of(bits[c], reinterpret_cast<unsigned char*>(sums) + 256 * TOKENS * warp);
    fill(AHEAD, STAGES);
    __syncthreads();  // sums will be where bytes of x were
    uint4* slot = ring;
#pragma unroll 1
    for (unsigned tile = first; tile < last; ++tile) {
        float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c, slot += SLOT) {
            copy_async_wait<STAGES * CHUNKS - 1>();
            __syncwarp();  // the other lanes' scales have arrived too
            if (there(c)) multiply(sum, slot, own[c], tile);
            __syncwarp();  // all lanes have read them
            start(slot, tile + STAGES, c);
        }
        if (slot == ring + STAGES * CHUNKS * SLOT) slot = ring;
        const unsigned place = tile - first, turn = place / TILES % 2 * (TILES * WARPS * TOKENS * 16);
        if (lane % 4 < TOKENS) {
            float* const here = sums + turn + ((place % TILES * WARPS + warp) * TOKENS + lane % 4) * 16 + lane / 4;
            here[0] = sum.x, here[8] = sum.y;
        }
        if (place % TILES != TILES - 1 && tile + 1 < last) continue;
        // Sums of all warps have met in half of the places: who adds them up is done before the next barrier but one.
        __syncthreads();
        for (unsigned i = threadIdx.x; i < (place % TILES + 1) * (TOKENS * 16); i += THREADS) {
            const unsigned its = i / (TOKENS * 16), token = i / 16 % TOKENS, row = (tile - place % TILES + its) * 16 + i % 16;
            float all = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) all += sums[turn + ((its * WARPS + w) * TOKENS + token) * 16 + i % 16];
            if (row < n && token < batch) y[token * (unsigned long long)n + row] = __float2half(all);
        }
    }
}
