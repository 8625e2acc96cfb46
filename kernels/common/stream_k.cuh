// Stream-K (sm_90a): standing blocks that take tile after tile of a product, what is left for a last turn divided along k,
// and how they hand sums to one another.
//
// The tiles of full turns go to the blocks one by one, so that neighbours read the same activations at the same time. The
// steps of k of the tiles that are left, tile after tile, are one line, of which each of SHARERS blocks takes an equal piece.
// A tile that two or more blocks have pieces of belongs to the last of them: the others leave their sums in memory, which it
// adds, in the same order every time. Blocks take the line's pieces first, and backwards, so that the sums
// that others need are written first. A block waits only for blocks of lower numbers, which started no later: no deadlock.
#pragma once
#include "common/ptx/ordered.cuh"
#include "common/ptx/warpgroup.cuh"
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

// Workspace for what blocks leave to others: of each block and warpgroup a flag, zero before and after a launch, and its sums.
struct Workspace {
    float4* sums;
    unsigned* flags;
};

// Leave a warpgroup's sums in the workspace's place for block `block`, for who ends the tile. Barrier `id` is the warpgroup's own.
template <int HIGH, int WIDE>
__device__ inline void leave_sums(const float (&sums)[HIGH][WIDE / 2], Workspace workspace, int id, unsigned block) {
    const unsigned place = block * 2 + threadIdx.x / 128, thread = threadIdx.x % 128;
    float4* const to = workspace.sums + place * (unsigned long long)(HIGH * WIDE * 16) + thread;
#pragma unroll
    for (int i = 0; i < HIGH; ++i)
#pragma unroll
        for (int e = 0; e < WIDE / 2; e += 4)
            to[(i * (WIDE / 8) + e / 4) * 128] = make_float4(sums[i][e], sums[i][e + 1], sums[i][e + 2], sums[i][e + 3]);
    warpgroup_wait_turn(id, 128);  // all have written
    if (thread == 0) add_release(workspace.flags + place, 1);
}

// Wait for the sums that are left in the place for block `block`, and add them.
template <int HIGH, int WIDE>
__device__ inline void take_sums(float (&sums)[HIGH][WIDE / 2], Workspace workspace, int id, unsigned block) {
    const unsigned place = block * 2 + threadIdx.x / 128, thread = threadIdx.x % 128;
    if (thread == 0)
        while (load_acquire(workspace.flags + place) == 0) {
        }
    warpgroup_wait_turn(id, 128);
    const float4* const from = workspace.sums + place * (unsigned long long)(HIGH * WIDE * 16) + thread;
#pragma unroll
    for (int i = 0; i < HIGH; ++i)
#pragma unroll
        for (int e = 0; e < WIDE / 2; e += 4) {
            const float4 more = __ldcg(from + (i * (WIDE / 8) + e / 4) * 128);
            sums[i][e] += more.x, sums[i][e + 1] += more.y, sums[i][e + 2] += more.z, sums[i][e + 3] += more.w;
        }
    warpgroup_wait_turn(id, 128);  // all have read
    if (thread == 0) workspace.flags[place] = 0;
}

// Add the sums of the blocks that hold the steps of this block's tile before `begin`.
template <int HIGH, int WIDE>
__device__ inline void add_left_sums(float (&sums)[HIGH][WIDE / 2], Workspace workspace, int id, const Line& line, Piece piece) {
    for (unsigned b = blockIdx.x; b > 0 && line.begin_of(b) > (piece.tile - line.whole) * line.steps; --b)
        take_sums<HIGH, WIDE>(sums, workspace, id, b - 1);
}
