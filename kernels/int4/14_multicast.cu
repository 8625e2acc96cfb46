// int4 14, multicast: neighbouring blocks of rows copy their tokens once.
//
// Purpose  a block of 64 rows and 128 tokens copies 256 bytes of x for 33 of weights, and all blocks together ask L2 for more
//          than it delivers: 2,560 x 1,920 weights at 382 tokens are 67 MB in 10 us. Blocks of a cluster with other rows and
//          the same tokens each copy a part of them to all.
// Shapes   as rung 11.
// Bytes    as rung 11, but x once per SHARE blocks of rows.
// Launch   as rung 11, SHARE x CLUSTER blocks of grid x a cluster; x as a map of boxes of TOKENS / SHARE tokens.
// Macros   SHARE = 2: blocks of rows that share tokens, TOKENS a multiple of 8 SHARE;
//          UNITS = 1: tiles of 64 rows a block;
//          ROW_GROUPS = 1: warpgroups that divide a block's rows;
//          K_GROUPS = 2: warpgroups that divide k;
//          CLUSTER = 1: blocks that divide k;
//          TOKENS = 128: tokens of a tile;
//          STAGES = 3: groups of k in the ring;
//          RESIDENT = 1: blocks an SM that the compiler must leave registers for.
// Changed  from rung 11: a slot of the ring is empty when the warps of all SHARE blocks have left it, and each block's copy of
//          its part of x arrives in all of them. A block whose rows are all beyond the matrix multiplies the last ones.
#include "common/int4.cuh"
#include "common/ptx/cluster.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/warpgroup.cuh"
#include "common/ptx/wgmma/narrow.cuh"
#include "common/ptx/wgmma/wide.cuh"
#include "common/store_four.cuh"

constexpr int PARTS = TOKENS / 8, ROWS = 64 * UNITS, THREADS = 128 * ROW_GROUPS * K_GROUPS, SLOTS = K_GROUPS * STAGES;
constexpr int TALL = (UNITS + ROW_GROUPS - 1) / ROW_GROUPS;    // units of a warpgroup, of the first TALLER ones;
constexpr int TALLER = UNITS - ROW_GROUPS * (TALL - 1);        // the others have one less
constexpr int WEIGHTS = UNITS * INT4_BLOCK, X_PIECES = 16 * TOKENS;  // of a slot, in units of 16 bytes
constexpr bool SCALE_SUMS = TOKENS <= 16;
constexpr int OWN_TOKENS = TOKENS / SHARE;
static_assert(TOKENS % (8 * SHARE) == 0, "rows of x are swizzled by eight");

// A block's ring: places of weights [unit] and x [64 of k][token] for a group of k each, and what fills them.
struct Ring {
    uint4 *weights, *x;
    unsigned long long *full, *empty;
    const uint4* blocks;       // the block's first unit and group
    unsigned long long apart;  // from a unit to the next, in units of 16 bytes
    const TensorMap* map;
    unsigned begin, count, units;  // groups of k: the first, how many; units that the matrix still has
    unsigned token, share, rank;   // the first of the tile; which part of the tile's tokens is copied here; the cluster's block
};

// Block `share` of those that have this block's part of k, in the cluster; and all of them, a bit each.
__device__ inline unsigned sharer(unsigned rank, unsigned share) { return share * CLUSTER + rank % CLUSTER; }
__device__ inline unsigned short sharers(unsigned rank) {
    unsigned found = 0;
#pragma unroll
    for (int share = 0; share < SHARE; ++share) found |= 1u << sharer(rank, share);
    return static_cast<unsigned short>(found);
}

// Start the copies of the block's group s to a place. One thread does it.
__device__ inline void fill(const Ring& ring, unsigned s, unsigned slot) {
    unsigned long long* const barrier = ring.full + slot;
    mbarrier_expect(barrier, (WEIGHTS + X_PIECES) * 16);
    const uint4* block = ring.blocks + s * INT4_BLOCK;
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        tma_copy_bytes(ring.weights + slot * WEIGHTS + u * INT4_BLOCK, block, INT4_BLOCK * 16, barrier);
        if (u + 1 < ring.units) block += ring.apart;  // beyond the matrix: the last unit again
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
        tma_copy_box_to(sharers(ring.rank), ring.x + slot * X_PIECES + (h * TOKENS + ring.share * OWN_TOKENS) * 8, ring.map,
                        (ring.begin + s) * 128 + h * 64, ring.token + ring.share * OWN_TOKENS, barrier);
    mbarrier_arrive(barrier);
}

// What a warpgroup does: the products of COUNT units from `unit` on with every K_GROUPS-th group of k.
template <int COUNT>
__device__ inline void multiply(float (&sums)[TALL][PARTS * 4], const Ring& ring, unsigned k_group, unsigned unit, bool fills) {
    const unsigned warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    unsigned slot = k_group, before = k_group, parity = 0;
    for (unsigned s = k_group; s < ring.count; s += K_GROUPS) {
        mbarrier_wait(ring.full + slot, parity);
        const uint4* stage = ring.weights + slot * WEIGHTS + unit * INT4_BLOCK;
        const unsigned long long columns = wgmma_columns(ring.x + slot * X_PIECES);
        unsigned a[2][4][4];
        float part[2][PARTS * 4];  // sums of a unit's halves of the group, where those are scaled
        __half2 scale = __float2half2_rn(0.0f), last;  // of rows g and g + 8
        const auto add = [&](int i, int h, __half2 by) {
            const float2 factor = __half22float2(by);
#pragma unroll
            for (int e = 0; e < PARTS * 4; ++e) sums[i][e] += (e / 2 % 2 ? factor.y : factor.x) * part[h][e];
        };
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            last = scale;
            scale = as_half2(reinterpret_cast<const unsigned*>(stage + i * INT4_BLOCK)[lane / 4 * 4 + warp]);
            const __half2 low = __low2half2(scale), high = __high2half2(scale);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const uint4 word = stage[i * INT4_BLOCK + INT4_SCALES + warp * 64 + 32 * h + lane];
                const unsigned words[4] = {word.x, word.y, word.z, word.w};
                if (i > 0) {
                    warpgroup_wait<1>();  // the products before the latest are done
                    if constexpr (SCALE_SUMS) add(i - 1, h, last);
                }
#pragma unroll
                for (int step = 0; step < 4; ++step) {
                    int4_tile_to_halves(words[step], a[h][step]);
                    if constexpr (!SCALE_SUMS) {
#pragma unroll
                        for (int r = 0; r < 4; ++r)
                            a[h][step][r] = as_word(__hmul2(as_half2(a[h][step][r]), r % 2 ? high : low));
                    }
                }
                warpgroup_arrive();
#pragma unroll
                for (int step = 0; step < 4; ++step) {
                    if constexpr (SCALE_SUMS) {
                        wgmma_few_f16<TOKENS>(part[h], a[h][step], columns + h * 8 * TOKENS + 2 * step, step > 0);
                    } else {
                        if constexpr (TOKENS <= 64)
                            wgmma_m64k16_f16<TOKENS>(sums[i], a[h][step], columns + h * 8 * TOKENS + 2 * step);
                        else
                            wgmma_registers_f16<TOKENS>(sums[i], a[h][step], columns + h * 8 * TOKENS + 2 * step, true);
                    }
                }
                warpgroup_commit();
            }
        }
        if (fills && s > k_group && s - K_GROUPS + SLOTS < ring.count) {  // the slot before this one, when all have left it
            mbarrier_wait(ring.empty + before, slot < before ? parity ^ 1 : parity);
            fill(ring, s - K_GROUPS + SLOTS, before);
        }
        warpgroup_wait<0>();
        __syncwarp();
        if (lane < SHARE) mbarrier_arrive_at(ring.empty + slot, sharer(ring.rank, lane));
        if constexpr (SCALE_SUMS) {
            add(COUNT - 1, 0, scale);
            add(COUNT - 1, 1, scale);
        }
        before = slot;
        slot += K_GROUPS;
        if (slot >= SLOTS) slot -= SLOTS, parity ^= 1;
    }
}

extern "C" __global__ void __cluster_dims__(SHARE* CLUSTER, 1, 1) __launch_bounds__(THREADS, RESIDENT)
    int4_multicast(const uint4* __restrict__ blocks, const __grid_constant__ TensorMap x, __half* __restrict__ y, unsigned n,
                   unsigned groups, unsigned batch) {
    static_assert(STAGES > 1 && TALLER > 0);
    extern __shared__ __align__(1024) uint4 memory[];
    __shared__ unsigned long long barriers[2 * SLOTS];
    const unsigned warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const unsigned k_group = warp / 4 / ROW_GROUPS, part = warp / 4 % ROW_GROUPS;  // which groups of k, which units
    const unsigned unit = part * (TALL - 1) + min(part, TALLER);

    // CLUSTER blocks that follow each other share their rows and divide k: this one takes groups begin to end.
    const unsigned in_cluster = cluster_rank(), rank = in_cluster % CLUSTER, rows_at = blockIdx.x / CLUSTER;
    const unsigned begin = groups * rank / CLUSTER, end = groups * (rank + 1) / CLUSTER;
    const unsigned units = (n - 1) / INT4_TILE + 1, from = min(rows_at * UNITS, units - 1);
    const Ring ring = {memory + SLOTS * X_PIECES, memory, barriers, barriers + SLOTS,
                       blocks + (from * (unsigned long long)groups + begin) * INT4_BLOCK,
                       groups * (unsigned long long)INT4_BLOCK, &x, begin, end - begin, units - from,
                       blockIdx.y * TOKENS, in_cluster / CLUSTER, in_cluster};
    const unsigned tokens = min(static_cast<unsigned>(TOKENS), batch - ring.token);
    const bool fills = part == ROW_GROUPS - 1 && warp % 4 == 0 && lane == 0;
    if (fills) {
#pragma unroll
        for (int i = 0; i < STAGES; ++i) {
            mbarrier_init(ring.full + k_group + i * K_GROUPS, 1);
            mbarrier_init(ring.empty + k_group + i * K_GROUPS, 4 * ROW_GROUPS * SHARE);
        }
        warpgroup_shared_fence();
    }
    cluster_wait();  // the other blocks' barriers are there
    if (fills) {
#pragma unroll 1
        for (unsigned s = k_group; s < SLOTS && s < ring.count; s += K_GROUPS) fill(ring, s, s);
    }

    float sums[TALL][PARTS * 4] = {};
    const bool tall = TALLER == ROW_GROUPS || part < TALLER;
    if (tall)
        multiply<TALL>(sums, ring, k_group, unit, TALLER == ROW_GROUPS && fills);
    else
        multiply<TALL - (TALLER < ROW_GROUPS)>(sums, ring, k_group, unit, fills);

    // Sums of the K_GROUPS warpgroups of a block in shared memory, [part of k][token][row]; each block of the cluster
    // adds up its share of the outputs over all the cluster's blocks, in the order of k.
    __syncthreads();
    float* all = reinterpret_cast<float*>(memory);
    constexpr int STRIDE = ROWS + 4;
#pragma unroll
    for (int i = 0; i < TALL; ++i)
#pragma unroll
        for (int p = 0; p < PARTS; ++p)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const unsigned column = 8 * p + lane % 4 * 2 + e % 2;
                const unsigned row = 64 * (unit + i) + 16 * (warp % 4) + lane / 4 + e / 2 * 8;
                if (column < tokens && (i + 1 < TALL || tall)) all[(k_group * tokens + column) * STRIDE + row] = sums[i][4 * p + e];
            }
    cluster_wait();
#pragma unroll 2
    for (unsigned i = rank * THREADS + threadIdx.x; i < ROWS / 4 * tokens; i += CLUSTER * THREADS) {
        const unsigned column = i / (ROWS / 4), r = i % (ROWS / 4) * 4, row = rows_at * ROWS + r;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int c = 0; c < CLUSTER; ++c)
#pragma unroll
            for (int v = 0; v < K_GROUPS; ++v) {
                const float4* share = reinterpret_cast<const float4*>(all + (v * tokens + column) * STRIDE + r);
                const float4 more = CLUSTER > 1 ? cluster_load(share, in_cluster - rank + c) : *share;
                sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
            }
        store_four(y + (ring.token + column) * (unsigned long long)n, row, n, sum);
    }
    cluster_wait();  // stay until the other blocks have read this one's memory, and arrived at its barriers
}
