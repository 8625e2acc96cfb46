// int4 10, wgmma: Hopper's own matrix products, four warps at once, x read by the tensor core from shared memory.
//
// Purpose  mma.sync reaches some three fifths of a Hopper tensor core and needs x in registers; wgmma needs neither.
// Shapes   weights in tile order (rooflab.ops.int4.repack); x [batch, k] half; y [batch, n] half; batch <= TOKENS.
// Bytes    n k / 2 + n k / 64 weights and scales once, x once per block of rows (from L2), 2 n batch written.
// Launch   ROW_GROUPS x K_GROUPS warpgroups a block, CLUSTER blocks for 64 TALL ROW_GROUPS rows and all of k; sm_90a.
// Macros   ROW_GROUPS = 2: warpgroups that divide a block's rows;
//          K_GROUPS = 1: warpgroups that divide k;
//          TALL = 1: tiles of 64 rows a warpgroup;
//          CLUSTER = 1: blocks that divide k;
//          TOKENS = 64: tokens at most;
//          STAGES = 4: groups of k in the ring;
//          RESIDENT = 1: blocks an SM that the compiler must leave registers for.
// Branch   from rung 9: a warpgroup multiplies 64 rows at once; x lies in shared memory as wgmma wants it (128-byte
//          swizzle); weights of the next 64 of k are unpacked while the tensor core multiplies the ones before.
#include "common/int4.cuh"
#include "common/ptx/cluster.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/kept.cuh"
#include "common/ptx/warpgroup.cuh"
#include "common/ptx/wgmma/narrow.cuh"
#include "common/store_four.cuh"

constexpr int ROWS = 64 * TALL * ROW_GROUPS, PARTS = TOKENS / 8, THREADS = 128 * ROW_GROUPS * K_GROUPS;
constexpr int WEIGHTS = K_GROUPS * ROW_GROUPS * TALL * INT4_BLOCK, X_PIECES = K_GROUPS * 16 * TOKENS;  // of a stage
constexpr int PASS = THREADS / (16 * K_GROUPS);                                                      // tokens at a time

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, RESIDENT)
    int4_wgmma(const uint4* __restrict__ blocks, const __half* __restrict__ x, __half* __restrict__ y, unsigned n,
               unsigned groups, unsigned batch) {
    extern __shared__ __align__(1024) uint4 memory[];
    uint4* const shared = kept(memory);
    uint4* const weights = shared + STAGES * X_PIECES;
    const unsigned warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const unsigned k_group = warpgroup / ROW_GROUPS, part = warpgroup % ROW_GROUPS;  // group of the stage, block of rows

    // The blocks of a cluster share their rows and divide k: this one takes groups begin to end.
    const unsigned rank = CLUSTER > 1 ? cluster_rank() : 0, rows_at = blockIdx.x / CLUSTER;
    const unsigned begin = groups * rank / CLUSTER, end = groups * (rank + 1) / CLUSTER;
    const uint4* block[TALL];
#pragma unroll
    for (int i = 0; i < TALL; ++i)
        block[i] = blocks + threadIdx.x % 128 + (min((rows_at * ROW_GROUPS + part) * TALL + i, (n - 1) / INT4_TILE) *
                                                     (unsigned long long)groups + begin + k_group) * INT4_BLOCK;
    const unsigned token = threadIdx.x / (16 * K_GROUPS), piece = threadIdx.x % (16 * K_GROUPS);
    const __half* x_at = x + token * (groups * 128ull) + begin * 128 + 8 * piece;
    const unsigned place = (piece / 8 * TOKENS + token) * 8 + (piece ^ token) % 8;
    uint4* const to = weights + warpgroup * TALL * INT4_BLOCK + threadIdx.x % 128;
    unsigned filled = begin;
    // Start the copies of the next K_GROUPS groups: each warpgroup its own weights, all together x [64 of k][token].
    const auto fill = [&](unsigned slot) {
        if (filled + k_group < end) {
#pragma unroll
            for (int i = 0; i < TALL; ++i) {
                copy_async_16(to + slot * WEIGHTS + i * INT4_BLOCK, block[i]);
                copy_async_16(to + slot * WEIGHTS + i * INT4_BLOCK + 128, block[i] + 128);
                if (threadIdx.x % 128 < INT4_BLOCK - 256)
                    copy_async_16(to + slot * WEIGHTS + i * INT4_BLOCK + 256, block[i] + 256);
                block[i] += K_GROUPS * INT4_BLOCK;
            }
        }
        if (filled + piece / 16 < end) {
#pragma unroll
            for (int i = 0; i < (TOKENS + PASS - 1) / PASS; ++i)
                if (token + i * PASS < batch)
                    copy_async_16(shared + slot * X_PIECES + place + i * PASS * 8, x_at + i * PASS * (groups * 128ull));
        }
        copy_async_commit();
        filled += K_GROUPS;
        x_at += K_GROUPS * 128;
    };

#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) fill(s);
    float sums[TALL][PARTS * 4] = {};
    unsigned turn = 0, ahead = STAGES - 1;
    for (unsigned j = begin; j < end; j += K_GROUPS) {
        copy_async_wait<STAGES - 2>();
        warpgroup_shared_fence();
        __syncthreads();  // all copies of this stage are there, and all products of the stage before it are done
        fill(ahead);
        const uint4* stage = memory + STAGES * X_PIECES + turn * WEIGHTS + warpgroup * TALL * INT4_BLOCK;
        const unsigned long long columns = wgmma_columns(shared + turn * X_PIECES + k_group * 16 * TOKENS);
        ahead = turn;
        turn = turn + 1 == STAGES ? 0 : turn + 1;
        if (j + k_group >= end) continue;

        unsigned a[2][4][4];
#pragma unroll
        for (int i = 0; i < TALL; ++i) {
            const unsigned pair = reinterpret_cast<const unsigned*>(stage + i * INT4_BLOCK)[lane / 4 * 4 + warp];
            const __half2 low = __low2half2(as_half2(pair)), high = __high2half2(as_half2(pair));
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const uint4 word = stage[i * INT4_BLOCK + INT4_SCALES + warp * 64 + 32 * h + lane];
                const unsigned words[4] = {word.x, word.y, word.z, word.w};
                if (i > 0) warpgroup_wait<1>();  // the products that read these registers are done
#pragma unroll
                for (int step = 0; step < 4; ++step) {
                    int4_tile_to_halves(words[step], a[h][step]);
#pragma unroll
                    for (int r = 0; r < 4; ++r)
                        a[h][step][r] = as_word(__hmul2(as_half2(a[h][step][r]), r % 2 ? high : low));
                }
                warpgroup_arrive();
#pragma unroll
                for (int step = 0; step < 4; ++step)
                    wgmma_m64k16_f16<TOKENS>(sums[i], a[h][step], columns + h * 8 * TOKENS + 2 * step);
                warpgroup_commit();
            }
        }
        warpgroup_wait<0>();
    }

    // Sums of the K_GROUPS warpgroups of a block in shared memory, [part of k][token][row]; each block of the cluster
    // adds up its share of the outputs over all the cluster's blocks, in the order of k.
    copy_async_wait<0>();
    __syncthreads();
    float* all = reinterpret_cast<float*>(shared);
    constexpr int STRIDE = ROWS + 4;
#pragma unroll
    for (int i = 0; i < TALL; ++i)
#pragma unroll
        for (int p = 0; p < PARTS; ++p)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const unsigned column = 8 * p + lane % 4 * 2 + e % 2;
                const unsigned row = 64 * (part * TALL + i) + 16 * warp + lane / 4 + e / 2 * 8;
                if (column < batch) all[(k_group * batch + column) * STRIDE + row] = sums[i][4 * p + e];
            }
    if constexpr (CLUSTER > 1)
        cluster_wait();
    else
        __syncthreads();
#pragma unroll 2
    for (unsigned i = rank * THREADS + threadIdx.x; i < ROWS / 4 * batch; i += CLUSTER * THREADS) {
        const unsigned column = i / (ROWS / 4), r = i % (ROWS / 4) * 4, row = rows_at * ROWS + r;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int c = 0; c < CLUSTER; ++c)
#pragma unroll
            for (int v = 0; v < K_GROUPS; ++v) {
                const float4* share = reinterpret_cast<const float4*>(all + (v * batch + column) * STRIDE + r);
                const float4 more = CLUSTER > 1 ? cluster_load(share, c) : *share;
                sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
            }
        store_four(y + column * (unsigned long long)n, row, n, sum);
    }
    if constexpr (CLUSTER > 1) cluster_wait();  // stay until the other blocks have read this one's memory
}
