// Where two warpgroups have multiplied halves of k: how their sums of the same 64 rows meet (sm_90a).
//
// Warpgroups 2 i and 2 i + 1 of a block are a pair, with rows 64 i to 64 i + 63 of its tile. All of a block's shared memory
// may be written when every warpgroup has come here.
#pragma once
#include "common/ptx/cluster.cuh"
#include "common/ptx/warpgroup.cuh"
#include "common/store_four.cuh"
#include "common/store_sums.cuh"

// Each warpgroup of a pair ends half of the tokens: it hands its sums of the others over, as wgmma holds them and four at a
// time, and stores its own half to y [token][n] by way of stmatrix. `memory` has 16 WIDE + 576 units of 16 bytes a pair; the
// tile begins at `row` and has `tokens` of WIDE tokens. Barriers 1 to 2 PAIRS are the warpgroups', PAIRS more the pairs',
// and one more is all the pairs'.
template <int PAIRS, int WIDE>
__device__ inline void add_over_pair(float (&sums)[WIDE / 2], uint4* memory, __half* y, unsigned row, unsigned n, unsigned tokens) {
    static_assert(WIDE % 16 == 0);
    constexpr int OWN = WIDE / 2;
    const unsigned thread = threadIdx.x % 128, group = threadIdx.x / 128, pair = group / 2, half = group % 2;
    float4* const exchange = reinterpret_cast<float4*>(memory) + pair * (16 * WIDE) + thread;
    warpgroup_wait_turn(1 + 3 * PAIRS, 256 * PAIRS);  // all are done with the ring
    float ended[1][OWN / 2];
#pragma unroll
    for (int e = 0; e < OWN / 2; ++e) {
        ended[0][e] = half ? sums[OWN / 2 + e] : sums[e];
        sums[e] = half ? sums[e] : sums[OWN / 2 + e];
    }
#pragma unroll
    for (int u = 0; u < OWN / 8; ++u)
        exchange[(half * (OWN / 8) + u) * 128] = make_float4(sums[4 * u], sums[4 * u + 1], sums[4 * u + 2], sums[4 * u + 3]);
    warpgroup_wait_turn(1 + 2 * PAIRS + pair, 256);
#pragma unroll
    for (int u = 0; u < OWN / 8; ++u) {
        const float4 more = exchange[((half ^ 1) * (OWN / 8) + u) * 128];
        ended[0][4 * u] += more.x, ended[0][4 * u + 1] += more.y, ended[0][4 * u + 2] += more.z, ended[0][4 * u + 3] += more.w;
    }
    __half* const stage = reinterpret_cast<__half*>(memory + PAIRS * 16 * WIDE) + group * 32 * 72;
    const unsigned first = half * OWN;
    if (first < tokens)
        store_sums<1, OWN>(ended, stage, 1 + group, y + first * (size_t)n, row + 64 * pair, n, min(tokens - first, (unsigned)OWN));
}

// The same where the blocks of a cluster divide k, too: all sums to shared memory, [half of k][token][row], then this block's
// share of the tile, added up over all the cluster's warpgroups in the order of k. Barrier 1 + 3 PAIRS is all the pairs'.
template <int PAIRS, int WIDE, int BLOCKS_HERE>
__device__ inline void add_over_cluster(const float (&sums)[WIDE / 2], uint4* memory, __half* y, unsigned row, unsigned n,
                                        unsigned tokens) {
    constexpr int ROWS_HERE = 64 * PAIRS, STRIDE = ROWS_HERE + 4, EVERY = 256 * PAIRS;
    const unsigned lane = threadIdx.x % 32, group = threadIdx.x / 128, half = group % 2;
    const unsigned first = group / 2 * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
    float* const all = reinterpret_cast<float*>(memory);
    warpgroup_wait_turn(1 + 3 * PAIRS, EVERY);  // all are done with the ring
#pragma unroll
    for (int e = 0; e < WIDE / 2; ++e) {
        const unsigned token = e / 4 * 8 + lane % 4 * 2 + e % 2;
        all[(half * WIDE + token) * STRIDE + first + e / 2 % 2 * 8] = sums[e];
    }
    cluster_wait();
#pragma unroll 2
    for (unsigned i = cluster_rank() * EVERY + threadIdx.x; i < ROWS_HERE / 4 * tokens; i += BLOCKS_HERE * EVERY) {
        const unsigned token = i / (ROWS_HERE / 4), r = i % (ROWS_HERE / 4) * 4;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int c = 0; c < BLOCKS_HERE; ++c)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float4* share = reinterpret_cast<const float4*>(all + (h * WIDE + token) * STRIDE + r);
                const float4 more = cluster_load(share, c);
                sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
            }
        store_four(y + token * (size_t)n, row + r, n, sum);
    }
    cluster_wait();  // stay until the other blocks have read this one's memory
}
