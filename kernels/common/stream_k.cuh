// Stream-K (sm_90a): standing blocks that take tile after tile of a product, what is left for a last turn divided along k,
// and how they hand sums to one another.
//
// The tiles of full turns go to the blocks one by one, so that neighbours read the same activations at the same time. The
// steps of k of the tiles that are left, tile after tile, are one line, of which each of SHARERS blocks takes an equal piece.
// A tile that two or more blocks have pieces of belongs to the last of them: the others leave their sums in memory, which it
// adds, in the same order every time. Blocks take the line's pieces first, and backwards, so that the sums
// that others need are written first. A block waits only for blocks of lower numbers, which started no later: no deadlock.
#pragma once
#include "common/flagged.cuh"
#include "common/ptx/ordered.cuh"
#include "common/store_sums.cuh"

// A piece of a tile: `count` steps of k from `begin` on; none are left if there are no steps.
struct Piece {
    unsigned tile, begin, count;
};

// A block's work: its part of the line, then whole tiles.
struct Line {
    unsigned steps, whole, each = 0, more = 0, first = 0, end = 0, next;

    // Where block b's part begins.
    __device__ unsigned begin_of(unsigned b) const { return b * each + min(b, more); }

    __device__ Line(unsigned tiles, unsigned steps_a_tile) : steps(steps_a_tile), whole(tiles), next(blockIdx.x) {
#if SHARERS
        const unsigned rest = tiles % BLOCKS * steps;
        whole = tiles / BLOCKS * BLOCKS, each = rest / SHARERS, more = rest % SHARERS;
        if (blockIdx.x < SHARERS) first = begin_of(blockIdx.x), end = begin_of(blockIdx.x + 1);
#endif
    }

    // The next piece, which is then taken.
    __device__ Piece take() {
        if (end > first) {
            const unsigned tile = (end - 1) / steps, from = max(first, tile * steps), to = end;
            end = from;
            return {whole + tile, from - tile * steps, to - from};
        }
        const unsigned tile = next;
        next += BLOCKS;
        return {tile, 0, tile < whole ? steps : 0};
    }
};

// Leave a warpgroup's sums, as flagged numbers, in block `block`'s place of the workspace, for who ends the tile.
template <int HIGH, int WIDE>
__device__ inline void leave_sums(const float (&sums)[HIGH][WIDE / 2], uint4* workspace, unsigned block) {
    const unsigned place = block * 2 + threadIdx.x / 128, thread = threadIdx.x % 128;
    uint4* const to = workspace + place * (unsigned long long)(HIGH * WIDE * 16) + thread;
#pragma unroll
    for (int i = 0; i < HIGH; ++i)
#pragma unroll
        for (int e = 0; e < WIDE / 2; e += 4)
            store_flagged(to + (i * (WIDE / 8) + e / 4) * 128, make_float4(sums[i][e], sums[i][e + 1], sums[i][e + 2], sums[i][e + 3]));
}

// Add the sums that are left in block `block`'s place when they are there: as many at once as registers hold beside the own.
template <int HIGH, int WIDE>
__device__ inline void take_sums(float (&sums)[HIGH][WIDE / 2], uint4* workspace, unsigned block) {
    constexpr int ALL = HIGH * WIDE / 8, MOST = ALL > 26 ? 7 : 16, TURNS = (ALL + MOST - 1) / MOST, EACH = (ALL + TURNS - 1) / TURNS;
    const unsigned place = block * 2 + threadIdx.x / 128, thread = threadIdx.x % 128;
    uint4* const from = workspace + place * (unsigned long long)(HIGH * WIDE * 16) + thread;
#pragma unroll
    for (int first = 0; first < ALL; first += EACH) {
        uint4 more[EACH];
        bool wait;
        do {
            wait = false;
#pragma unroll
            for (int u = 0; u < EACH; ++u) more[u] = load_relaxed(from + min(first + u, ALL - 1) * 128);
#pragma unroll
            for (int u = 0; u < EACH; ++u) wait |= missing(more[u]);
        } while (__any_sync(0xffffffffu, wait));
#pragma unroll
        for (int u = 0; u < EACH && first + u < ALL; ++u) {
            const float4 v = unflagged(more[u]);
            float* const to = sums[(first + u) / (WIDE / 8)] + (first + u) % (WIDE / 8) * 4;
            to[0] += v.x, to[1] += v.y, to[2] += v.z, to[3] += v.w;
            from[(first + u) * 128] = make_uint4(0, 0, 0, 0);  // as the next launch expects it
        }
    }
}

// Add the sums of the blocks that hold the steps of this block's tile before `begin`.
template <int HIGH, int WIDE>
__device__ inline void add_left_sums(float (&sums)[HIGH][WIDE / 2], uint4* workspace, const Line& line, Piece piece) {
    for (unsigned b = blockIdx.x; b > 0 && line.begin_of(b) > (piece.tile - line.whole) * line.steps; --b)
        take_sums<HIGH, WIDE>(sums, workspace, b - 1);
}
