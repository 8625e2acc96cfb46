// A last turn whose tiles are divided into PARTS of k each (sm_90a; beside common/stream_k.cuh): a block has a piece of one
// tile, leaves its sums in memory, waits for the tile's other blocks and adds up a share of everybody's.
//
// Where many blocks share a tile, this takes the time of one of them; a single block that adds what the others left takes as
// many times as long. The blocks of a tile wait for one another, so they must run at the same time: a cooperative launch.
#pragma once
#include "common/flagged.cuh"
#include "common/ptx/ordered.cuh"
#include "common/stream_k.cuh"

// A block's work: its part of a tile that is left for the last turn, then whole tiles.
struct Split {
    unsigned steps, whole, tile, part, next;
    bool first;

    __device__ Split(unsigned tiles, unsigned steps_a_tile) : steps(steps_a_tile), next(blockIdx.x) {
        whole = tiles / BLOCKS * BLOCKS, tile = whole + blockIdx.x / PARTS, part = blockIdx.x % PARTS;
        first = tile < tiles;
    }

    // The next piece, which is then taken.
    __device__ Piece take() {
        if (first) {
            first = false;
            const unsigned begin = steps * part / PARTS;
            return {tile, begin, steps * (part + 1) / PARTS - begin};
        }
        const unsigned at = next;
        next += BLOCKS;
        return {at, 0, at < whole ? steps : 0};
    }
};

// Leave a warpgroup's sums as flagged numbers, and add up this block's share of the tile in the order of k when they are there:
// to y [token][n], where the tile begins at `row` and has `tokens` tokens. What is shared are units of eight tokens by 64
// rows, as wgmma holds them.
template <int HIGH, int WIDE>
__device__ inline void share_sums(const float (&sums)[HIGH][WIDE / 2], uint4* workspace, const Split& split, __half* y,
                                  unsigned row, unsigned n, unsigned tokens) {
    constexpr unsigned OWN = HIGH * WIDE / 8, UNITS = 2 * OWN;
    const unsigned thread = threadIdx.x % 128, group = threadIdx.x / 128, lane = thread % 32, warp = thread / 32;
    uint4* const all = workspace + (split.tile - split.whole) * (unsigned long long)(PARTS * UNITS * 128) + thread;
    uint4* const own = all + (split.part * UNITS + group * OWN) * 128;
#pragma unroll
    for (int i = 0; i < HIGH; ++i)
#pragma unroll
        for (int e = 0; e < WIDE / 2; e += 4)
            store_flagged(own + (i * (WIDE / 8) + e / 4) * 128, make_float4(sums[i][e], sums[i][e + 1], sums[i][e + 2], sums[i][e + 3]));
    constexpr unsigned EACH = PARTS ? PARTS : 1, MOST = OWN > 16 ? 8 : 16, AT_ONCE = EACH < MOST ? MOST / EACH : 1;  // units asked for together
    const unsigned end = UNITS * (split.part + 1) / PARTS;
#pragma unroll 1
    for (unsigned u = UNITS * split.part / PARTS + group; u < end; u += 2 * AT_ONCE) {
        uint4 shares[AT_ONCE][EACH];
        bool wait;
        do {
            wait = false;
#pragma unroll
            for (unsigned i = 0; i < AT_ONCE; ++i)
#pragma unroll
                for (unsigned p = 0; p < PARTS; ++p) {
                    shares[i][p] = make_uint4(1, 1, 1, 1);
                    if (u + 2 * i < end) shares[i][p] = load_relaxed(all + (p * UNITS + u + 2 * i) * 128);
                }
#pragma unroll
            for (unsigned i = 0; i < AT_ONCE; ++i)
#pragma unroll
                for (unsigned p = 0; p < PARTS; ++p) wait |= missing(shares[i][p]);
        } while (__any_sync(0xffffffffu, wait));
#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; ++i) {
            const unsigned at = u + 2 * i;
            if (at >= end) break;
            float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
            for (unsigned p = 0; p < PARTS; ++p) {
                const float4 more = unflagged(shares[i][p]);
                sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
                all[(p * UNITS + at) * 128] = make_uint4(0, 0, 0, 0);  // as the next launch expects it
            }
            const unsigned unit = at % OWN, token = unit % (WIDE / 8) * 8 + lane % 4 * 2;
            const unsigned r = row + (at / OWN * HIGH + unit / (WIDE / 8)) * 64 + 16 * warp + lane / 4;
            __half* const to = y + token * (unsigned long long)n + r;
            if (token < tokens) {
                if (r < n) to[0] = __float2half_rn(sum.x);
                if (r + 8 < n) to[8] = __float2half_rn(sum.z);
            }
            if (token + 1 < tokens) {
                if (r < n) to[n] = __float2half_rn(sum.y);
                if (r + 8 < n) to[n + 8] = __float2half_rn(sum.w);
            }
        }
    }
}
