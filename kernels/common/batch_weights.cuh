// A few tokens times weights in a format, by a warp: its chunks of 16 rows by CHUNK of k on their way, and their products.
#pragma once
#include "common/int4.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/mma.cuh"

constexpr int THREADS = 32 * WARPS, COLUMNS = TOKENS / 8;
constexpr int CHUNK = FORMAT == 2 ? 128 : 64;        // of k; INT4: a group that shares scales
constexpr int PIECES = FORMAT == 0 ? 4 : 2;          // of 16 bytes that a lane copies of a chunk
constexpr int X_WORDS = CHUNK / 8;                   // registers of x that a chunk and eight tokens take
// Chunks whose scales come in one copy. A copy of 4 bytes a lane is written to shared memory lane by lane: as many cycles as
// of 512 bytes three copies of 16 take. So Q8_0's scales of a row come 16 bytes at a time, where the warp has so many.
constexpr int SPAN = FORMAT != 1 ? 1 : CHUNKS % 4 == 0 ? 4 : CHUNKS % 2 == 0 ? 2 : 1;
constexpr int SCALES = FORMAT == 0 ? 0 : FORMAT == 1 ? 4 * SPAN : INT4_SCALES;  // of a slot, in units of 16 bytes
constexpr int SLOT = 32 * PIECES + SCALES;                                      // a chunk of a warp, likewise
// Chunks that a warp multiplies at a time: products of one wait for each other, unless other columns come between. Where a warp
// has one of a tile, those of TALL tiles.
constexpr int TALL = COLUMNS <= 2 && CHUNKS == 1 ? 2 : 1;
constexpr int PACE = COLUMNS > 2 ? 1 : CHUNKS % 3 == 0 ? 3 : CHUNKS % 2 == 0 ? 2 : TALL;
constexpr int SUMS = FORMAT == 2 ? 1 : 2;              // of a chunk and column that do not wait for each other
constexpr int PARTS = COLUMNS == 1 ? 2 : 1;            // of INT4's sums of a chunk, likewise
constexpr int CHAINS = FORMAT == 2 || TALL > 1 ? SUMS : SUMS * (PACE < 3 ? PACE : 2);  // of a tile's chunks at a time
static_assert(STAGES % PACE == 0 && TILES % TALL == 0);

// Where this lane's share of a tile's 16 rows begins, in the warp's first chunk: of weights row g, or INT4's codes; of scales
// row `lane`, of which there are 16, or the lane-th 16 bytes of a block of INT4, of which there are 8.
struct Source {
    const char *weights, *scales;
};

__device__ inline Source source_of(const uint4* weights, const unsigned* scales, unsigned tile, unsigned chunk, unsigned k) {
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    Source found = {reinterpret_cast<const char*>(weights), reinterpret_cast<const char*>(scales)};
#if FORMAT == 0
    found.weights += (16 * tile + g) * (2ull * k) + chunk * 128 + 16 * t;  // of 32 of k lane t takes 8 t to 8 t + 7
#elif FORMAT == 1
    found.weights += (16 * tile + g) * (k + 0ull) + chunk * 64 + 16 * t;  // of 64 of k lane t takes 16 t to 16 t + 15
    found.scales += (16 * tile + lane % 16) * (k / 16ull) + chunk * 4;
#else
    found.scales = found.weights + (tile / 4 * (k / 128ull) + chunk) * (16 * INT4_BLOCK) + lane * 16;
    found.weights = found.scales + INT4_SCALES * 16 + tile % 4 * (16 * INT4_TILE);
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
    const bool leaves = tile % 4 == 3;  // four tiles share a block
    const unsigned long long apart = leaves ? (k / 128) * (16ull * INT4_BLOCK) : 0;
    from.scales += apart;
    from.weights += apart + (leaves ? -3 : 1) * (16 * INT4_TILE);
#endif
}

// Start copying this lane's share of the warp's chunk c: rows g and g + 8 of 16, and what scales they come with. A lane's
// weights it reads itself; scales all lanes read, once all have waited.
__device__ inline void start(uint4* slot, const Source& from, int c, unsigned k, unsigned long long policy) {
    const unsigned lane = threadIdx.x % 32;
#if FORMAT == 0
#pragma unroll
    for (int i = 0; i < 4; ++i)
        copy_async_16_of_line(slot + 32 * i + lane, from.weights + i % 2 * (16ull * k) + c * 128 + i / 2 * 64, policy);
#elif FORMAT == 1
#pragma unroll
    for (int i = 0; i < 2; ++i) copy_async_16_of_line(slot + 32 * i + lane, from.weights + i * (8ull * k) + c * 64, policy);
    if (c % SPAN == 0 && lane < 16) {
        unsigned* const words = reinterpret_cast<unsigned*>(slot + 32 * PIECES) + lane * SPAN;
        if (SPAN == 4) copy_async_16(words, from.scales + c * 4);
        if (SPAN == 2) copy_async_8(words, from.scales + c * 4);
        if (SPAN == 1) copy_async_4(words, from.scales + c * 4);
    }
#else
    const int at = c * (16 * INT4_BLOCK);
    copy_async_16_of_line(slot + lane, from.weights + at, policy);
    copy_async_16_of_line(slot + 32 + lane, from.weights + at + 512, policy);
    if (lane < INT4_SCALES) copy_async_16_of_line(slot + 64 + lane, from.scales + at, policy);
#endif
}

// x of a chunk and eight tokens, as its products take it: word 2 s + i is b[i] of the s-th.
__device__ inline void load_x(unsigned (&x)[X_WORDS], const uint4* row, unsigned chunk, bool there) {
    const unsigned t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < X_WORDS / 4; ++h) {
        const unsigned place = FORMAT == 1 ? 2 * t + h : 4 * h + t;
        const uint4 v = there ? __ldcg(row + chunk * X_WORDS + place) : make_uint4(0, 0, 0, 0);
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

// What a chunk's and column's sums begin with: INT4's codes are multiplied with the offset that unpacking leaves in them, so
// its sums begin with that times the sum of x, subtracted.
struct Begin {
#if FORMAT == 2
    float sums[4];
#endif
};

__device__ inline Begin begin_of(const unsigned (&x)[X_WORDS]) {
    Begin found = {};
#if FORMAT == 2
    const unsigned a[4] = {INT4_OFFSETS[0] ^ 0x80008000u, INT4_OFFSETS[1] ^ 0x80008000u, INT4_OFFSETS[0] ^ 0x80008000u,
                           INT4_OFFSETS[1] ^ 0x80008000u};
    float more[4] = {};
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        mma_m16n8k16_f16(found.sums, a, x + 4 * s);
        mma_m16n8k16_f16(more, a, x + 4 * s + 2);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) found.sums[e] += more[e];
#endif
    (void)x;
    return found;
}

// Scales of rows g and g + 8: of Q8_0 a word for each of SPAN chunks, of INT4 one word.
struct Scales {
    unsigned low[SPAN], high[SPAN];
};

__device__ inline void load_scales(Scales& scales, const uint4* slot, unsigned tile) {
    const unsigned g = threadIdx.x % 32 / 4;
    const unsigned* const words = reinterpret_cast<const unsigned*>(slot + 32 * PIECES);
    (void)g, (void)words, (void)tile;
#if FORMAT == 1
#pragma unroll
    for (int i = 0; i < SPAN; ++i) scales.low[i] = words[g * SPAN + i], scales.high[i] = words[(g + 8) * SPAN + i];
#elif FORMAT == 2
    scales.low[0] = words[g * 4 + tile % 4];
#endif
}

// Two of a word's four bytes as halves.
__device__ inline __half2 q8_pair(unsigned word, unsigned which) {
    return __hsub2(as_half2(__byte_perm(word ^ 0x80808080u, 0x64646464u, which)), as_half2(0x64806480u));
}

// Add the products of the i-th chunk that `scales` are of to SUMS sums of each column.
__device__ inline void multiply(float (*sums)[COLUMNS][4], const uint4* slot, const unsigned (&x)[COLUMNS][X_WORDS],
                                const Begin (&begin)[COLUMNS], const Scales& scales, int i) {
    const unsigned lane = threadIdx.x % 32;
    (void)begin, (void)scales, (void)i;
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
    const __half2 scale_low = as_half2(scales.low[i]), scale_high = as_half2(scales.high[i]);
    const bool second = lane % 4 / 2;  // of the chunk's two blocks
    const __half2 by_low = second ? __high2half2(scale_low) : __low2half2(scale_low);
    const __half2 by_high = second ? __high2half2(scale_high) : __low2half2(scale_high);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        unsigned a[4];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            a[2 * e] = as_word(__hmul2(q8_pair(lows[s], e ? 0x4342 : 0x4140), by_low));
            a[2 * e + 1] = as_word(__hmul2(q8_pair(highs[s], e ? 0x4342 : 0x4140), by_high));
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) mma_m16n8k16_f16(sums[s % 2][j], a, x[j] + 2 * s);
    }
#else
    const float2 by = __half22float2(as_half2(scales.low[0]));  // of rows g and g + 8
    float part[PARTS][COLUMNS][4] = {};
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) part[0][j][e] = begin[j].sums[e];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const uint4 codes = slot[32 * h + lane];
        const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            unsigned a[4];
            int4_tile_to_offset_halves(words[s], a);
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) mma_m16n8k16_f16(part[s % PARTS][j], a, x[j] + 8 * h + 2 * s);
        }
    }
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            sums[0][j][e] = fmaf(e < 2 ? by.x : by.y, part[0][j][e] + (PARTS > 1 ? part[PARTS - 1][j][e] : 0.0f), sums[0][j][e]);
#endif
}
