// A few tokens times weights in a format, by a warp: its chunks of 16 rows by 64 of k on their way, and their products.
#pragma once
#include "common/int4.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/mma.cuh"

constexpr int THREADS = 32 * WARPS, COLUMNS = TOKENS / 8;
constexpr int PIECES = FORMAT == 0 ? 4 : FORMAT == 1 ? 2 : 1;  // of 16 bytes that a lane copies of a chunk
constexpr int SCALES = FORMAT == 0 ? 0 : FORMAT == 1 ? 2 : 1;  // words of scales
constexpr int SLOT = 32 * PIECES + 8 * SCALES;                 // a chunk of a warp, in units of 16 bytes
// Chunks that a warp multiplies at a time: products of one wait for each other, unless other columns come between.
constexpr int PACE = COLUMNS > 2 ? 1 : CHUNKS % 3 == 0 ? 3 : CHUNKS % 2 == 0 ? 2 : 1;
constexpr int SUMS = FORMAT == 2 ? 1 : 2;              // of a chunk and column that do not wait for each other
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
// What a lane copies it reads itself, so that none waits for another.
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
    for (int i = 0; i < 2; ++i) {
        copy_async_16_of_line(slot + 32 * i + lane, from.weights + i * (8ull * k) + c * WARPS * 64, policy);
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

// Add a chunk's products to SUMS sums of each column.
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
