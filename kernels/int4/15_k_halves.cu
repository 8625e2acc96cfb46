// int4 15, k halves: a group's two halves of k are two warpgroups', and sums leave as tensor cores hold them.
//
// Purpose  where tiles are few, a product takes as long as one tile's steps and what comes before and after them. Rung 11
//          ends a tile by writing all its sums to shared memory one by one, and reading them again in the order of rows:
//          a microsecond of 120 tokens. Its warpgroups take whole groups of k by turns, and of eleven one takes six.
// Shapes   weights in tile order (rooflab.ops.int4.repack); x [batch, k] half; y [batch, n] half.
// Bytes    as rung 11.
// Launch   256 ROW_GROUPS + 128 threads a block, (CLUSTER ceil(n / 64 ROW_GROUPS), ceil(batch / TOKENS)) blocks; sm_90a.
// Macros   ROW_GROUPS = 1: 64 rows each;
//          CLUSTER = 1: blocks that divide k;
//          TOKENS = 128: tokens of a tile, a multiple of 16;
//          STAGES = 6: groups of k in the ring;
//          SHARE = 1: blocks of other rows that each copy a part of x for all of them.
// Branch   from rung 11: a warp of its own starts all copies. Both warpgroups of a row group read the same slot: one
//          multiplies the first 64 of its 128 of k, one the rest. At the end each hands the other its sums of half of the
//          tokens, four at a time and where they lie, and stores its own half by way of stmatrix.
#include "common/int4.cuh"
#include "common/pair_sums.cuh"
#include "common/ptx/cluster.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/warpgroup.cuh"
#include "common/ptx/wgmma/wide.cuh"

constexpr int ROWS = 64 * ROW_GROUPS, CONSUMERS = 256 * ROW_GROUPS, THREADS = CONSUMERS + 128;
constexpr int WEIGHTS = ROW_GROUPS * INT4_BLOCK, X_PIECES = 16 * TOKENS;  // of a slot, in units of 16 bytes

// A slot of the ring and the parity of its barriers.
struct RingSlot {
    unsigned index = 0, parity = 0;
    __device__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

extern "C" __global__ void __cluster_dims__(CLUSTER * SHARE, 1, 1) __launch_bounds__(THREADS, 1)
    int4_k_halves(const uint4* __restrict__ blocks, const __grid_constant__ TensorMap x, __half* __restrict__ y, unsigned n,
                  unsigned groups, unsigned batch) {
    static_assert(STAGES > 1);
    extern __shared__ __align__(1024) uint4 memory[];
    __shared__ unsigned long long full[STAGES], empty[STAGES];
    uint4* const weights = memory + STAGES * X_PIECES;
    const unsigned warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    // The blocks of a cluster share a tile and divide k.
    const unsigned rank = CLUSTER > 1 ? cluster_rank() : 0, rows_at = blockIdx.x / CLUSTER, token = blockIdx.y * TOKENS;
    const unsigned me = SHARE > 1 ? cluster_rank() : 0;
    const unsigned begin = groups * rank / CLUSTER, count = groups * (rank + 1) / CLUSTER - begin;
    if (warp >= CONSUMERS / 32) {  // one thread copies
        if (threadIdx.x == CONSUMERS) {
#pragma unroll
            for (int s = 0; s < STAGES; ++s) {
                mbarrier_init(full + s, 1);
                mbarrier_init(empty + s, SHARE > 1 ? CONSUMERS / 32 * SHARE : CONSUMERS);
            }
            warpgroup_shared_fence();
        }
#if SHARE > 1
        __syncwarp();
        cluster_wait();
#else
        warpgroup_pass_turn(0, THREADS);
#endif
        setmaxnreg_fewer<24>();
        if (threadIdx.x == CONSUMERS) {
            RingSlot slot;
            for (unsigned s = 0; s < count; ++s, slot.next()) {
                unsigned long long* const barrier = full + slot.index;
                mbarrier_wait(empty + slot.index, slot.parity ^ 1);
                mbarrier_expect(barrier, (WEIGHTS + X_PIECES) * 16);
#pragma unroll
                for (int u = 0; u < ROW_GROUPS; ++u) {  // rows beyond the last unit of the matrix: that unit again
                    const unsigned unit = min(rows_at * ROW_GROUPS + u, (n - 1) / INT4_TILE);
                    tma_copy_bytes(weights + slot.index * WEIGHTS + u * INT4_BLOCK,
                                   blocks + (unit * (unsigned long long)groups + begin + s) * INT4_BLOCK, INT4_BLOCK * 16, barrier);
                }
#pragma unroll
                for (int h = 0; h < 2; ++h)
#if SHARE > 1
                    tma_copy_box_to((1 << SHARE) - 1, memory + slot.index * X_PIECES + h * 8 * TOKENS + me * (TOKENS / SHARE) * 8, &x, (begin + s) * 128 + h * 64, token + me * (TOKENS / SHARE), barrier);
#else
                    tma_copy_box(memory + slot.index * X_PIECES + h * 8 * TOKENS, &x, (begin + s) * 128 + h * 64, token, barrier);
#endif
                mbarrier_arrive(barrier);
            }
        }
        return;
    }
#if SHARE > 1
    cluster_wait();
#else
    warpgroup_wait_turn(0, THREADS);
#endif
    setmaxnreg_more<ROW_GROUPS == 1 ? 232 : 120>();

    const unsigned unit = warp / 8, half = warp / 4 % 2, part = warp % 4;
    RingSlot slot;
    unsigned even[4][4], odd[4][4], before = 0;
    float sums[TOKENS / 2];  // begun by the first product
    // This warpgroup's half of a group: its weights into registers, then its products behind those of the group before,
    // and wait for these.
    const auto step = [&](unsigned (&a)[4][4], bool add) {
        mbarrier_wait(full + slot.index, slot.parity);
        const uint4* const tile = weights + slot.index * WEIGHTS + unit * INT4_BLOCK;
        const __half2 pair = as_half2(reinterpret_cast<const unsigned*>(tile)[lane / 4 * 4 + part]);
        const __half2 low = __low2half2(pair), high = __high2half2(pair);
        const uint4 word = tile[INT4_SCALES + part * 64 + 32 * half + lane];
        const unsigned words[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            int4_tile_to_halves(words[j], a[j]);
#pragma unroll
            for (int r = 0; r < 4; ++r) a[j][r] = as_word(__hmul2(as_half2(a[j][r]), r % 2 ? high : low));
        }
        const unsigned long long columns = wgmma_columns(memory + slot.index * X_PIECES + half * 8 * TOKENS);
        warpgroup_arrive();
#pragma unroll
        for (int j = 0; j < 4; ++j) wgmma_registers_f16<TOKENS>(sums, a[j], columns + 2 * j, j > 0 || add);
        warpgroup_commit();
        warpgroup_wait<1>();
#if SHARE > 1
        if (add) {
            __syncwarp();
            if (lane < SHARE) mbarrier_arrive_at(empty + before, lane);
        }
#else
        if (add) mbarrier_arrive(empty + before);  // every thread for what it has read
#endif
        before = slot.index;
        slot.next();
    };
    for (unsigned s = 0; s < count / 2; ++s) {
        step(even, s > 0);
        step(odd, true);
    }
    if (count % 2) step(even, count > 1);
    warpgroup_wait<0>();
    const unsigned tokens = min(batch - token, static_cast<unsigned>(TOKENS));
    __half* const to = y + token * (size_t)n;
    if constexpr (CLUSTER > 1)
        add_over_cluster<ROW_GROUPS, TOKENS, CLUSTER>(sums, memory, to, rows_at * ROWS, n, tokens);
    else
        add_over_pair<ROW_GROUPS, TOKENS>(sums, memory, to, rows_at * ROWS, n, tokens);
#if SHARE > 1
    cluster_wait();
#endif
}
