// A few tokens times weights in a format, by a warp: its chunks of 16 rows by 64 of k on their way, and their products.
#pragma once
#include "common/int4.cuh"
#include "common/ptx/cache_hints.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/mma.cuh"

constexpr int THREADS = 32 * WARPS, COLUMNS = TOKENS / 8;
constexpr int PIECES = FORMAT == 0 ? 4 : FORMAT == 1 ? 2 : 1;  // of 16 bytes that a lane copies of a chunk
constexpr int SCALES = FORMAT == 0 ? 0 : FORMAT == 1 ? 2 : 1;  // words of scales
constexpr int SLOT = 32 * PIECES + 8 * SCALES;                 // a chunk of a warp, in units of 16 bytes
// Chunks that a warp multiplies at a time: products of one wait for each other, unless other columns come between.
constexpr int PACE = COLUMNS > 2 ? 1 : CHUNKS % 3 == 0 ? 3 : CHUNKS % 2 == 0 ? 2 : 1;
// Of eight tokens two kernels' blocks may share an SM, so that the later one's weights come while the earlier one works: where
// half of the registers are enough.
constexpr int OFFSETS = FORMAT == 1 ? 2 : 1;  // blocks of a chunk that have a scale each
constexpr int NEEDED = 40 + 16 * (EPILOGUE == 1) + 8 * CHUNKS, HALF = 65536 / (2 * THREADS);
constexpr bool SHARES_SM = COLUMNS == 1 && NEEDED <= HALF;
// Quantised weights are then multiplied with an offset, by which their codes become halves in fewer steps, and scaled as sums,
// where registers hold the offsets of x too.
constexpr int MOST = SHARES_SM ? HALF : 65536 / (128 * ((WARPS + 3) / 4)) - 24;
constexpr bool FOLDED = FORMAT != 0 && COLUMNS == 1 && NEEDED + 4 * OFFSETS * CHUNKS <= MOST;
constexpr int SUMS = FORMAT == 2 || FOLDED ? 1 : 2;    // of a chunk and column that do not wait for each other
constexpr int CHAINS = SUMS * (PACE < 3 ? PACE : 2);  // the same of all chunks at a time
static_assert(STAGES % PACE == 0);

// Where this lane's share of a tile's 16 rows begins, in the warp's first chunk: row g, and of INT4 the lane's codes.
struct Source {
    const char *weights, *scales;
};

__device__ inline Source source_of(const uint4* weights, const unsigned* scales, unsigned tile, unsigned chunk, unsigned k) {
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const size_t row = 16 * tile + g;
    Source found = {reinterpret_cast<const char*>(weights), reinterpret_cast<const char*>(scales)};
#if FORMAT == 0
    found.weights += row * (2 * k) + chunk * 128 + 16 * t;  // of 32 of k lane t takes 8 t to 8 t + 7
#elif FORMAT == 1
    found.weights += row * k + chunk * 64 + 16 * t;  // of 64 of k lane t takes 16 t to 16 t + 15
    found.scales += row * (k / 16) + chunk * 4;
#else
    const size_t block = (tile / 4 * (size_t)(k / 128) + chunk / 2) * (16 * INT4_BLOCK);
    found.scales = found.weights + block + (g * 4 + tile % 4) * 4;
    found.weights += block + (INT4_SCALES + tile % 4 * 64 + chunk % 2 * 32 + lane) * 16;
#endif
    return found;
}

// From a tile to the one after it.
__device__ inline void next_tile(Source& from, unsigned tile, unsigned k) {
#if FORMAT == 0
    from.weights += 32 * (k + 0ull);
#elif FORMAT == 1
    from.weights += 16 * (k + 0ull);
    from.scales += k;
#else
    const size_t apart = tile % 4 == 3 ? (k / 128) * (16ull * INT4_BLOCK) : 0;  // four tiles share a block
    from.weights += apart + (tile % 4 == 3 ? -3 * 1024 : 1024);
    from.scales += apart + (tile % 4 == 3 ? -3 * 4 : 4);
#endif
}

// Start copying this lane's share of the warp's chunk c, of which `chunk` is the first: rows g and g + 8 of 16, by 64 of k.
// But for Q8_0 a lane reads what it copies itself, so that none waits for another.
__device__ inline void start(uint4* slot, const Source& from, int c, unsigned chunk, unsigned k, unsigned long long policy) {
    const unsigned lane = threadIdx.x % 32;
    unsigned* const words = reinterpret_cast<unsigned*>(slot + 32 * PIECES) + lane;
    (void)words, (void)chunk;
#if FORMAT == 0
#pragma unroll
    for (int i = 0; i < 4; ++i)
        copy_async_16_of_line(slot + 32 * i + lane, from.weights + i % 2 * (16ull * k) + c * WARPS * 128 + i / 2 * 64, policy);
#elif FORMAT == 1
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // [row g or g + 8][block of 32][g][16 bytes]
        copy_async_16_of_line(slot + 32 * i + lane % 4 / 2 * 16 + lane / 4 * 2 + lane % 2, from.weights + i * (8ull * k) + c * WARPS * 64, policy);
        copy_async_4(words + 32 * i, from.scales + i * (k / 2) + c * WARPS * 4);
    }
#else
    // Two chunks share a block: an odd number of them further is half a block more or less.
    const int odd = c * WARPS % 2, up = chunk % 2, at = (c * WARPS / 2 + odd * up) * (16 * INT4_BLOCK);
    copy_async_16_of_line(slot + lane, from.weights + at + odd * (up ? -512 : 512), policy);
    copy_async_4(words, from.scales + at);
#endif
}

// x of a chunk and eight tokens, as its products take it: word 2 s + i is b[i] of the s-th of four.
__device__ inline void load_x(unsigned (&x)[8], const uint4* row, unsigned chunk, bool there) {
    const unsigned t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const uint4 v = there ? __ldcg(row + chunk * 8 + 4 * h + t) : make_uint4(0, 0, 0, 0);
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

// Sums of x that take the offsets of weights away again: what a block's products begin with.
__device__ inline void offsets_of(float (&offsets)[OFFSETS][4], const unsigned (&x)[8]) {
    constexpr unsigned ONES[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};
#pragma unroll
    for (int b = 0; b < OFFSETS; ++b) {
        float sums[4] = {};
#pragma unroll
        for (int s = 0; s < 4 / OFFSETS; ++s) mma_m16n8k16_f16(sums, ONES, x + 8 / OFFSETS * b + 2 * s);
#pragma unroll
        for (int e = 0; e < 4; ++e) offsets[b][e] = sums[e] * (FORMAT == 1 ? -1152.0f : e < 2 ? -264.0f : -24.0f);
    }
}

// Two of a word's four bytes as halves, with an offset of 1152 and without.
__device__ inline unsigned q8_offset_pair(unsigned word, unsigned which) {
    return __byte_perm(word ^ 0x80808080u, 0x64646464u, which);
}
__device__ inline __half2 q8_pair(unsigned word, unsigned which) {
    return __hsub2(as_half2(q8_offset_pair(word, which)), as_half2(0x64806480u));
}

// Add a chunk's products to SUMS sums of each column.
__device__ inline void multiply(float (*sums)[COLUMNS][4], const uint4* slot, const unsigned (&x)[COLUMNS][8],
                                const float (&offsets)[OFFSETS][4]) {
    const unsigned lane = threadIdx.x % 32;
    const unsigned* const words = reinterpret_cast<const unsigned*>(slot + 32 * PIECES) + lane;
    (void)words, (void)offsets;
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
    const uint2* const codes = reinterpret_cast<const uint2*>(slot) + lane;
    const __half2 scales[2] = {as_half2(words[0]), as_half2(words[32])};  // of rows g and g + 8, by block
#pragma unroll
    for (int b = 0; b < 2; ++b) {
        const uint2 low = codes[32 * b], high = codes[64 + 32 * b];
        const unsigned lows[2] = {low.x, low.y}, highs[2] = {high.x, high.y};
        const __half2 by_low = b ? __high2half2(scales[0]) : __low2half2(scales[0]);
        const __half2 by_high = b ? __high2half2(scales[1]) : __low2half2(scales[1]);
        float part[4] = {offsets[b][0], offsets[b][1], offsets[b][2], offsets[b][3]};
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            unsigned a[4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const unsigned which = i ? 0x4342 : 0x4140;
                a[2 * i] = FOLDED ? q8_offset_pair(lows[s], which) : as_word(__hmul2(q8_pair(lows[s], which), by_low));
                a[2 * i + 1] = FOLDED ? q8_offset_pair(highs[s], which) : as_word(__hmul2(q8_pair(highs[s], which), by_high));
            }
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j)
                mma_m16n8k16_f16(FOLDED ? part : sums[b % SUMS][j], a, x[j] + 4 * b + 2 * s);
        }
        if (FOLDED) {
            const float factors[2] = {__low2float(by_low), __low2float(by_high)};
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[0][0][e] = fmaf(factors[e / 2], part[e], sums[0][0][e]);
        }
    }
#else
    const uint4 codes = slot[lane];
    const unsigned steps[4] = {codes.x, codes.y, codes.z, codes.w};
    const float2 by = __half22float2(as_half2(words[0]));  // of rows g and g + 8
    float part[COLUMNS][4] = {};
    if (FOLDED) {
#pragma unroll
        for (int e = 0; e < 4; ++e) part[0][e] = offsets[0][e];
    }
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        unsigned a[4];
        if (FOLDED)
            int4_tile_to_offset_halves(steps[s], a);
        else
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
