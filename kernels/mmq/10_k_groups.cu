// mmq 10, k groups: the two warpgroups of a block share 64 rows, and take the steps of k by turns.
//
// Purpose  where tiles are few, a product takes as long as one tile's steps, and in rung 9 each warpgroup makes halves of 64
//          rows of weights for every step. Here a tile is half as tall, and a warpgroup makes those of every other step.
// Shapes   as rung 9.
// Bytes    as rung 9, by tiles of 64 rows: activations are read twice as often.
// Launch   384 threads a block, (CLUSTER ceil(batch / TOKENS), ceil(n / 64)) blocks.
// Macros   TOKENS = 128: tokens a tile, a multiple of 16: 64 to 144;
//          CLUSTER = 1: blocks that divide k;
//          STAGES = 8: steps of 64 of k in the ring of shared memory.
// Branch   from rung 9: a block has one tile. A slot of the ring is one warpgroup's; at the end each adds up half of the tokens
//          from its own sums and from those that the other has left in shared memory. Where tiles are so few that most
//          multiprocessors would have none, a cluster's blocks divide k, too, and each adds up a share of all their sums.
#include "common/ptx/cluster.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/warpgroup.cuh"
#include "common/ptx/wgmma/wide.cuh"
#include "common/q8_tiles.cuh"
#include "common/store_four.cuh"
#include "common/store_sums.cuh"

constexpr int X_PIECES = 8 * TOKENS, OWN = TOKENS / 2;  // of a slot, in units of 16 bytes; tokens that a warpgroup ends

// A slot of the ring and the parity of its barriers.
struct RingSlot {
    unsigned index = 0, parity = 0;
    __device__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

// Sums of a tile whose k a cluster divides: each warpgroup's to shared memory, [warpgroup][token][row], then this block's
// share of the outputs, added up over all the cluster's warpgroups in the order of k.
__device__ inline void add_over_cluster(const float (&sums)[TOKENS / 2], float* all, __half* y, unsigned row, unsigned n,
                                        unsigned tokens) {
    constexpr int STRIDE = 64 + 4;
    const unsigned lane = threadIdx.x % 32, first = threadIdx.x % 128 / 32 * 16 + lane / 4;
    warpgroup_wait_turn(3, 256);  // both are done with the ring
#pragma unroll
    for (int e = 0; e < TOKENS / 2; ++e) {
        const unsigned token = e / 4 * 8 + lane % 4 * 2 + e % 2;
        all[(threadIdx.x / 128 * TOKENS + token) * STRIDE + first + e / 2 % 2 * 8] = sums[e];
    }
    cluster_wait();
#pragma unroll 2
    for (unsigned i = cluster_rank() * 256 + threadIdx.x; i < 16 * tokens; i += CLUSTER * 256) {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int c = 0; c < CLUSTER; ++c)
#pragma unroll
            for (int group = 0; group < 2; ++group) {
                const float4* share = reinterpret_cast<const float4*>(all + (group * TOKENS + i / 16) * STRIDE + i % 16 * 4);
                const float4 more = cluster_load(share, c);
                sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
            }
        store_four(y + i / 16 * (size_t)n, row + i % 16 * 4, n, sum);
    }
    cluster_wait();  // stay until the other blocks have read this one's memory
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(384, 1)
    mmq_k_groups(const uint4* __restrict__ blocks, const __grid_constant__ TensorMap x, __half* __restrict__ y, int n, int k,
                 int batch) {
    static_assert(STAGES > 2 && TOKENS % 16 == 0);
    extern __shared__ __align__(1024) uint4 memory[];
    __shared__ unsigned long long full[STAGES], empty[STAGES];
    uint4* const weights = memory + STAGES * X_PIECES;
    const unsigned warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    // The blocks of a cluster share a tile and divide k by steps of 128: slots are of 64.
    const unsigned tile = blockIdx.x / CLUSTER, steps = k / 128, rank = CLUSTER > 1 ? cluster_rank() : 0;
    const unsigned begin = steps * rank / CLUSTER * 2, slots = steps * (rank + 1) / CLUSTER * 2 - begin;
    if (warp >= 8) {  // one thread copies; tokens beyond the last come as zeros, and are not stored
        if (threadIdx.x == 256) {
#pragma unroll
            for (int s = 0; s < STAGES; ++s) {
                mbarrier_init(full + s, 1);
                mbarrier_init(empty + s, 128);
            }
            warpgroup_shared_fence();
        }
        warpgroup_pass_turn(0, 384);  // the barriers are there; the copies wait for no other warp
        setmaxnreg_fewer<40>();
        if (threadIdx.x != 256) return;
        RingSlot slot;
        const uint4* const rows = blocks + (blockIdx.y * (size_t)(k / 64) + begin) * Q8_TILE;
        for (unsigned c = 0; c < slots; ++c, slot.next()) {
            unsigned long long* const barrier = full + slot.index;
            mbarrier_wait(empty + slot.index, slot.parity ^ 1);
            mbarrier_expect(barrier, (Q8_TILE + X_PIECES) * 16);
            tma_copy_box(memory + slot.index * X_PIECES, &x, (begin + c) * 64, tile * TOKENS, barrier);
            tma_copy_bytes(weights + slot.index * Q8_TILE, rows + c * Q8_TILE, Q8_TILE * 16, barrier);
            mbarrier_arrive(barrier);
        }
        return;
    }
    warpgroup_wait_turn(0, 384);
    setmaxnreg_more<232>();

    const unsigned group = warp / 4, part = warp % 4, thread = threadIdx.x % 128;
    RingSlot slot;
    if (group) slot.next();
    unsigned even[4][4], odd[4][4], before = 0;
    float sums[TOKENS / 2];  // begun by the first product
    // A slot's weights into registers, then its products behind those of the warpgroup's slot before, and wait for these.
    const auto step = [&](unsigned (&a)[4][4], bool add) {
        mbarrier_wait(full + slot.index, slot.parity);
        q8_share_to_halves(q8_share(weights + slot.index * Q8_TILE, part, lane), a);
        const unsigned long long columns = wgmma_columns(memory + slot.index * X_PIECES);
        warpgroup_arrive();
#pragma unroll
        for (int j = 0; j < 4; ++j) wgmma_registers_f16<TOKENS>(sums, a[j], columns + 2 * j, j > 0 || add);
        warpgroup_commit();
        warpgroup_wait<1>();
        if (add) mbarrier_arrive(empty + before);  // every thread for what it has read
        before = slot.index;
        slot.next();
        slot.next();  // the one between is the other warpgroup's
    };
    for (unsigned s = 0; s < slots / 4; ++s) {  // k is a multiple of 128, slots of 2
        step(even, s > 0);
        step(odd, true);
    }
    if (slots / 2 % 2) step(even, slots > 2);
    warpgroup_wait<0>();
    if constexpr (CLUSTER > 1) {
        const unsigned first = tile * TOKENS;
        add_over_cluster(sums, reinterpret_cast<float*>(memory), y + first * (size_t)n, blockIdx.y * 64, n,
                         min(batch - first, static_cast<unsigned>(TOKENS)));
        return;
    }

    // The tokens that the other warpgroup ends go to it, four sums at a time; then its own share, as wgmma holds it.
    float4* const exchange = reinterpret_cast<float4*>(weights + STAGES * Q8_TILE);
    float ended[1][OWN / 2];
#pragma unroll
    for (int e = 0; e < OWN / 2; ++e) {
        ended[0][e] = group ? sums[OWN / 2 + e] : sums[e];
        sums[e] = group ? sums[e] : sums[OWN / 2 + e];
    }
#pragma unroll
    for (int u = 0; u < OWN / 8; ++u)
        exchange[(group * (OWN / 8) + u) * 128 + thread] =
            make_float4(sums[4 * u], sums[4 * u + 1], sums[4 * u + 2], sums[4 * u + 3]);
    warpgroup_wait_turn(3, 256);
#pragma unroll
    for (int u = 0; u < OWN / 8; ++u) {
        const float4 more = exchange[((group ^ 1) * (OWN / 8) + u) * 128 + thread];
        ended[0][4 * u] += more.x, ended[0][4 * u + 1] += more.y, ended[0][4 * u + 2] += more.z, ended[0][4 * u + 3] += more.w;
    }
    const unsigned token = tile * TOKENS + group * OWN;
    __half* const stage = reinterpret_cast<__half*>(exchange + TOKENS / 8 * 128) + group * 32 * 72;
    if (token < batch)
        store_sums<1, OWN>(ended, stage, 1 + group, y + token * (size_t)n, blockIdx.y * 64, n, min(batch - token, OWN));
}
