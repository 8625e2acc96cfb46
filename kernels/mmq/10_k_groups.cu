// mmq 10, k groups: the two warpgroups of a block share 64 rows, and take the steps of k by turns.
//
// Purpose  where tiles are few, a product takes as long as one tile's steps, and in rung 9 each warpgroup makes halves of 64
//          rows of weights for every step. Here a tile is half as tall, and a warpgroup makes those of every other step.
// Shapes   as rung 9.
// Bytes    as rung 9, by tiles of 64 rows: activations are read twice as often.
// Launch   384 threads a block, (CLUSTER ceil(batch / TOKENS), ceil(n / 64)) blocks.
// Macros   ROW_GROUPS = 1: pairs of warpgroups, with 64 rows each, 1 or 2;
//          TOKENS = 128: tokens a tile, a multiple of 16: 64 to 144;
//          CLUSTER = 1: blocks that divide k;
//          STAGES = 8: steps of 64 of k in the ring of shared memory.
// Branch   from rung 9: a block has one tile. A slot of the ring is one warpgroup's; at the end each adds up half of the tokens
//          from its own sums and from those that the other has left in shared memory. Where tiles are so few that most
//          multiprocessors would have none, a cluster's blocks divide k, too, and each adds up a share of all their sums.
#include "common/pair_sums.cuh"
#include "common/ptx/cluster.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/warpgroup.cuh"
#include "common/ptx/wgmma/wide.cuh"
#include "common/q8_tiles.cuh"

constexpr int ROWS = 64 * ROW_GROUPS, CONSUMERS = 256 * ROW_GROUPS, THREADS = CONSUMERS + 128;
constexpr int WEIGHTS = ROW_GROUPS * Q8_TILE, X_PIECES = 8 * TOKENS;  // of a slot, in units of 16 bytes

// A slot of the ring and the parity of its barriers.
struct RingSlot {
    unsigned index = 0, parity = 0;
    __device__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    mmq_k_groups(const uint4* __restrict__ blocks, const __grid_constant__ TensorMap x, __half* __restrict__ y, int n, int k,
                 int batch) {
    static_assert(STAGES > 2);
    extern __shared__ __align__(1024) uint4 memory[];
    __shared__ unsigned long long full[STAGES], empty[STAGES];
    uint4* const weights = memory + STAGES * X_PIECES;
    const unsigned warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    // The blocks of a cluster share a tile and divide k by steps of 128: slots are of 64.
    const unsigned tile = blockIdx.x / CLUSTER, steps = k / 128, rank = CLUSTER > 1 ? cluster_rank() : 0;
    const unsigned begin = steps * rank / CLUSTER * 2, slots = steps * (rank + 1) / CLUSTER * 2 - begin;
    if (warp >= CONSUMERS / 32) {  // one thread copies; tokens beyond the last come as zeros, and are not stored
        if (threadIdx.x == CONSUMERS) {
#pragma unroll
            for (int s = 0; s < STAGES; ++s) {
                mbarrier_init(full + s, 1);
                mbarrier_init(empty + s, 128 * ROW_GROUPS);
            }
            warpgroup_shared_fence();
        }
        warpgroup_pass_turn(0, THREADS);  // the barriers are there; the copies wait for no other warp
        setmaxnreg_fewer<24>();
        if (threadIdx.x != CONSUMERS) return;
        RingSlot slot;
        const uint4* rows[ROW_GROUPS];  // rows beyond the last tile of the matrix: that tile again
#pragma unroll
        for (int u = 0; u < ROW_GROUPS; ++u)
            rows[u] = blocks + (min(blockIdx.y * ROW_GROUPS + u, (n - 1u) / 64) * (size_t)(k / 64) + begin) * Q8_TILE;
        for (unsigned c = 0; c < slots; ++c, slot.next()) {
            unsigned long long* const barrier = full + slot.index;
            mbarrier_wait(empty + slot.index, slot.parity ^ 1);
            mbarrier_expect(barrier, (WEIGHTS + X_PIECES) * 16);
            tma_copy_box(memory + slot.index * X_PIECES, &x, (begin + c) * 64, tile * TOKENS, barrier);
#pragma unroll
            for (int u = 0; u < ROW_GROUPS; ++u)
                tma_copy_bytes(weights + slot.index * WEIGHTS + u * Q8_TILE, rows[u] + c * Q8_TILE, Q8_TILE * 16, barrier);
            mbarrier_arrive(barrier);
        }
        return;
    }
    warpgroup_wait_turn(0, THREADS);
    setmaxnreg_more<ROW_GROUPS == 1 ? 232 : 120>();

    const unsigned unit = warp / 8, group = warp / 4 % 2, part = warp % 4;
    RingSlot slot;
    if (group) slot.next();
    unsigned even[4][4], odd[4][4], before = 0;
    float sums[TOKENS / 2];  // begun by the first product
    // A slot's weights into registers, then its products behind those of the warpgroup's slot before, and wait for these.
    const auto step = [&](unsigned (&a)[4][4], bool add) {
        mbarrier_wait(full + slot.index, slot.parity);
        q8_share_to_halves(q8_share(weights + slot.index * WEIGHTS + unit * Q8_TILE, part, lane), a);
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
    const unsigned token = tile * TOKENS, tokens = min(batch - token, static_cast<unsigned>(TOKENS));
    if constexpr (CLUSTER > 1)
        add_over_cluster<ROW_GROUPS, TOKENS, CLUSTER>(sums, memory, y + token * (size_t)n, blockIdx.y * ROWS, n, tokens);
    else
        add_over_pair<ROW_GROUPS, TOKENS>(sums, memory, y + token * (size_t)n, blockIdx.y * ROWS, n, tokens);
}
