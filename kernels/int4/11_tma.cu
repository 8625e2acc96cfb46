// int4 11, tma: copies by the tensor memory accelerator, and warpgroups that do not wait for each other.
//
// Purpose  rung 10's block waits for all its warps at every group of k, so that tensor cores idle while all warps unpack;
//          and all its warps start copies of 16 bytes a thread between their products.
// Shapes   weights in tile order (rooflab.ops.int4.repack); x [batch, k] half; y [batch, n] half.
// Bytes    n k / 2 + n k / 64 weights and scales once from DRAM, and from L2 for each further tile of TOKENS tokens;
//          x once per block of rows (from L2), 2 n batch written.
// Launch   ROW_GROUPS x K_GROUPS warpgroups a block, CLUSTER blocks for 64 UNITS rows and all of k of a tile of tokens
//          (grid y); sm_90a.
// Macros   UNITS = 2: tiles of 64 rows a block;
//          ROW_GROUPS = 1: warpgroups that divide a block's rows;
//          K_GROUPS = 2: warpgroups that divide k;
//          CLUSTER = 1: blocks that divide k;
//          TOKENS = 8: tokens of a tile;
//          STAGES = 4: groups of k in the ring;
//          RESIDENT = 1: blocks an SM that the compiler must leave registers for.
// Branch   from rung 10: one thread fills a slot of the ring by the copy engine, and mbarriers signal that the slot is full
//          or empty; units of 64 rows are dealt out to any number of warpgroups, as seven are
//          to four. Up to 16 tokens a group's sums are scaled, not its weights.
// Lost     on an H200: clusters whose blocks of other rows each copy a part of the tokens for all. L2 is asked for less, but 64
//          bytes a cycle go into an SM, which is what a step of 64 rows and 128 tokens takes, from wherever they come.
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

// A block's ring: places of weights [unit] and x [64 of k][token] for a group of k each, and what fills them.
struct Ring {
    uint4 *weights, *x;
    unsigned long long *full, *empty;
    const uint4* blocks;       // the block's first unit and group
    unsigned long long apart;  // from a unit to the next, in units of 16 bytes
    const TensorMap* map;
    unsigned begin, count, units;  // groups of k: the first, how many; units that the matrix still has
    unsigned token;                // the first of the tile
};

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
        tma_copy_box(ring.x + slot * X_PIECES + h * 8 * TOKENS, ring.map, (ring.begin + s) * 128 + h * 64, ring.token, barrier);
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
        mbarrier_arrive(ring.empty + slot);  // every thread for what it has read
        if constexpr (SCALE_SUMS) {
            add(COUNT - 1, 0, scale);
            add(COUNT - 1, 1, scale);
        }
        before = slot;
        slot += K_GROUPS;
        if (slot >= SLOTS) slot -= SLOTS, parity ^= 1;
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, RESIDENT)
    int4_tma(const uint4* __restrict__ blocks, const __grid_constant__ TensorMap x, __half* __restrict__ y, unsigned n,
              unsigned groups, unsigned batch) {
    static_assert(STAGES > 1 && TALLER > 0);
    extern __shared__ __align__(1024) uint4 memory[];
    __shared__ unsigned long long barriers[2 * SLOTS];
    const unsigned warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const unsigned k_group = warp / 4 / ROW_GROUPS, part = warp / 4 % ROW_GROUPS;  // which groups of k, which units
    const unsigned unit = part * (TALL - 1) + min(part, TALLER);

    // The blocks of a cluster share their rows and divide k: this one takes groups begin to end.
    const unsigned rank = CLUSTER > 1 ? cluster_rank() : 0, rows_at = blockIdx.x / CLUSTER;
    const unsigned begin = groups * rank / CLUSTER, end = groups * (rank + 1) / CLUSTER;
    const Ring ring = {memory + SLOTS * X_PIECES, memory, barriers, barriers + SLOTS,
                       blocks + (rows_at * UNITS * (unsigned long long)groups + begin) * INT4_BLOCK,
                       groups * (unsigned long long)INT4_BLOCK, &x, begin, end - begin, (n - 1) / INT4_TILE + 1 - rows_at * UNITS,
                       blockIdx.y * TOKENS};
    const unsigned tokens = min(static_cast<unsigned>(TOKENS), batch - ring.token);
    const bool fills = part == ROW_GROUPS - 1 && warp % 4 == 0 && lane == 0;
    if (fills) {
#pragma unroll
        for (int i = 0; i < STAGES; ++i) {
            mbarrier_init(ring.full + k_group + i * K_GROUPS, 1);
            mbarrier_init(ring.empty + k_group + i * K_GROUPS, 128 * ROW_GROUPS);
        }
        warpgroup_shared_fence();
        if (k_group < ring.count) fill(ring, k_group, k_group);
    }
    __syncthreads();
    if (fills) {
#pragma unroll 1
        for (unsigned s = k_group + K_GROUPS; s < SLOTS && s < ring.count; s += K_GROUPS) fill(ring, s, s);
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
    if constexpr (CLUSTER > 1)
        cluster_wait();
    else
        __syncthreads();
#pragma unroll 2
    for (unsigned i = rank * THREADS + threadIdx.x; i < ROWS / 4 * tokens; i += CLUSTER * THREADS) {
        const unsigned column = i / (ROWS / 4), r = i % (ROWS / 4) * 4, row = rows_at * ROWS + r;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int c = 0; c < CLUSTER; ++c)
#pragma unroll
            for (int v = 0; v < K_GROUPS; ++v) {
                const float4* share = reinterpret_cast<const float4*>(all + (v * tokens + column) * STRIDE + r);
                const float4 more = CLUSTER > 1 ? cluster_load(share, c) : *share;
                sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
            }
        store_four(y + (ring.token + column) * (unsigned long long)n, row, n, sum);
    }
    if constexpr (CLUSTER > 1) cluster_wait();  // stay until the other blocks have read this one's memory
}
