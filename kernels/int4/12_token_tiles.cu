// int4 12, token tiles: as many tokens as there are, a tile of them a block, and sums that never leave the tensor cores' registers.
//
// Purpose  rung 11 holds the sums of all tokens, so it ends at 64; dequantising first writes and reads FP16 weights, nearly
//          nine times the bytes. Here a block multiplies its rows by one tile of tokens; a weight is unpacked once a tile.
// Shapes   weights in tile order (rooflab.ops.int4.repack); x [batch, k] half; y [batch, n] half; any batch.
// Bytes    n k / 2 + n k / 64 weights and scales for each tile of tokens, all but the first from L2; x once per block of
//          rows (from L2), 2 n batch written.
// Launch   three warpgroups a block: two multiply 64 TALL rows each, one copies; CLUSTER blocks, which divide k, for 128
//          TALL rows and TOKENS tokens: (CLUSTER ceil(batch / TOKENS), ceil(n / (128 TALL))) of them; sm_90a.
// Macros   TALL = 2: tiles of 64 rows a warpgroup;
//          CLUSTER = 1: blocks that divide k;
//          TOKENS = 128: tokens a tile;
//          STAGES = 4: groups of k in the ring.
// Branch   from rung 11: the grid covers the tokens, a warpgroup does nothing but start copies, and weights are unpacked into
//          two alternating sets of registers: half a group's while the tensor cores multiply the half before.
#include "common/int4.cuh"
#include "common/ptx/cluster.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/warpgroup.cuh"
#include "common/ptx/wgmma/wide.cuh"
#include "common/store_four.cuh"

constexpr int UNITS = 2 * TALL, ROWS = 64 * UNITS, SUMS = TOKENS / 2, THREADS = 384;
constexpr int WEIGHTS = UNITS * INT4_BLOCK, X_PIECES = 16 * TOKENS;  // of a slot, in units of 16 bytes

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    int4_token_tiles(const uint4* __restrict__ blocks, const __grid_constant__ TensorMap x, __half* __restrict__ y, unsigned n,
               unsigned groups, unsigned batch) {
    static_assert(STAGES > 1);
    extern __shared__ __align__(1024) uint4 memory[];
    __shared__ unsigned long long full[STAGES], empty[STAGES];
    uint4* const weights = memory + STAGES * X_PIECES;
    const unsigned warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const unsigned rank = blockIdx.x % CLUSTER, rows_at = blockIdx.y, token0 = blockIdx.x / CLUSTER * TOKENS;
    const unsigned begin = groups * rank / CLUSTER, count = groups * (rank + 1) / CLUSTER - begin;  // groups of k
    if (threadIdx.x < STAGES) {
        mbarrier_init(full + threadIdx.x, 1);
        mbarrier_init(empty + threadIdx.x, 256);
    }
    warpgroup_shared_fence();
    __syncthreads();

    if (warp >= 8) {
        setmaxnreg_fewer<40>();
        if (threadIdx.x == 256) {
            const uint4* block[UNITS];  // rows beyond the last unit of the matrix: that unit again
#pragma unroll
            for (int u = 0; u < UNITS; ++u)
                block[u] = blocks + (min(rows_at * UNITS + u, (n - 1) / INT4_TILE) * (unsigned long long)groups + begin) * INT4_BLOCK;
            for (unsigned s = 0; s < count; ++s) {
                const unsigned slot = s % STAGES;
                if (s >= STAGES) mbarrier_wait(empty + slot, (s / STAGES + 1) % 2);
                mbarrier_expect(full + slot, (WEIGHTS + X_PIECES) * 16);
#pragma unroll
                for (int u = 0; u < UNITS; ++u)
                    tma_copy_bytes(weights + slot * WEIGHTS + u * INT4_BLOCK, block[u] + s * INT4_BLOCK, INT4_BLOCK * 16, full + slot);
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    tma_copy_box(memory + slot * X_PIECES + h * 8 * TOKENS, &x, (begin + s) * 128 + h * 64, token0, full + slot);
                mbarrier_arrive(full + slot);
            }
        }
        return;
    }
    setmaxnreg_more<232>();

    float sums[TALL][SUMS] = {};
    const unsigned unit = warp / 4 * TALL, part = warp % 4;
    // Half h of a group: its weights into registers, then its products behind those of the half before, and wait for
    // these, whose registers are the next half's.
    const auto multiply = [&](unsigned (&a)[TALL][4][4], unsigned slot, int h) {
        const uint4* stage = weights + slot * WEIGHTS + unit * INT4_BLOCK;
#pragma unroll
        for (int i = 0; i < TALL; ++i) {
            const unsigned pair = reinterpret_cast<const unsigned*>(stage + i * INT4_BLOCK)[lane / 4 * 4 + part];
            const __half2 low = __low2half2(as_half2(pair)), high = __high2half2(as_half2(pair));
            const uint4 word = stage[i * INT4_BLOCK + INT4_SCALES + part * 64 + 32 * h + lane];
            const unsigned words[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
            for (int step = 0; step < 4; ++step) {
                int4_tile_to_halves(words[step], a[i][step]);
#pragma unroll
                for (int r = 0; r < 4; ++r) a[i][step][r] = as_word(__hmul2(as_half2(a[i][step][r]), r % 2 ? high : low));
            }
        }
        const unsigned long long columns = wgmma_columns(memory + slot * X_PIECES + h * 8 * TOKENS);
        warpgroup_arrive();
#pragma unroll
        for (int step = 0; step < 4; ++step)
#pragma unroll
            for (int i = 0; i < TALL; ++i) wgmma_registers_f16<TOKENS>(sums[i], a[i][step], columns + 2 * step, true);
        warpgroup_commit();
        warpgroup_wait<1>();
    };
    unsigned even[TALL][4][4], odd[TALL][4][4];
    for (unsigned s = 0; s < count; ++s) {
        const unsigned slot = s % STAGES;
        mbarrier_wait(full + slot, s / STAGES % 2);
        multiply(even, slot, 0);
        if (s > 0) mbarrier_arrive(empty + (s - 1) % STAGES);  // every thread for what it has read
        multiply(odd, slot, 1);
    }
    warpgroup_wait<0>();

    // Sums in shared memory, [token][row]; each block of the cluster adds up its share of the outputs over all the
    // cluster's blocks, in the order of k.
    warpgroup_wait_turn(1, 256);
    float* all = reinterpret_cast<float*>(memory);
    constexpr int STRIDE = ROWS + 4;
    const unsigned tokens = min(batch - token0, (unsigned)TOKENS);
#pragma unroll
    for (int i = 0; i < TALL; ++i)
#pragma unroll
        for (int e = 0; e < SUMS; ++e) {
            const unsigned column = e / 4 * 8 + lane % 4 * 2 + e % 2;
            const unsigned row = 64 * (unit + i) + 16 * part + lane / 4 + e / 2 % 2 * 8;
            if (column < tokens) all[column * STRIDE + row] = sums[i][e];
        }
    if constexpr (CLUSTER > 1)
        cluster_wait();
    else
        warpgroup_wait_turn(1, 256);
#pragma unroll 2
    for (unsigned i = rank * 256 + threadIdx.x; i < ROWS / 4 * tokens; i += CLUSTER * 256) {
        const unsigned column = i / (ROWS / 4), r = i % (ROWS / 4) * 4;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int c = 0; c < CLUSTER; ++c) {
            const float4* share = reinterpret_cast<const float4*>(all + column * STRIDE + r);
            const float4 more = CLUSTER > 1 ? cluster_load(share, c) : *share;
            sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
        }
        store_four(y + (token0 + column) * (unsigned long long)n, rows_at * ROWS + r, n, sum);
    }
    if constexpr (CLUSTER > 1) cluster_wait();  // stay until the other blocks have read this one's memory
}
