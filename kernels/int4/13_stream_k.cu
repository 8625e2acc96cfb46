// int4 13, stream k: blocks that stay, copies that run ahead into the next tile, and a last turn divided along k.
//
// Purpose  rung 12 pays 3.4 us and 0.02 TALL TOKENS us a turn beside the products: each block starts with an empty ring, and
//          stores its sums while nothing is copied. Its last turn takes as long as a full one, however few tiles are left:
//          77 tiles keep 77 of 132 multiprocessors at work.
// Shapes   as rung 12.
// Bytes    as rung 12, and the sums of tiles that blocks share, written and read in L2.
// Launch   three warpgroups a block: two multiply 64 TALL rows each, one copies; one block a multiprocessor, or fewer; sm_90a.
// Macros   TALL = 2: tiles of 64 rows a warpgroup;
//          TOKENS = 128: tokens a tile, a multiple of 8: 64 to 256 / TALL;
//          STAGES = 4: groups of k in the ring;
//          BLOCKS = 132: blocks;
//          SHARERS = 132: those that share what is left for a last turn; 0: its tiles are taken whole;
//          PARTS = 0: blocks that divide each tile of a last turn among them instead; 0: none.
// Branch   from rung 12: a block takes tile after tile, and the ring goes on from one to the next; the steps of the tiles
//          that are left for a last turn are shared evenly (common/stream_k.cuh); sums leave as halves, turned in shared
//          memory besides the ring.
#include "common/int4.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/warpgroup.cuh"
#include "common/ptx/wgmma/wide.cuh"
#include "common/split_sums.cuh"
#include "common/stream_k.cuh"

constexpr int UNITS = 2 * TALL, ROWS = 64 * UNITS, THREADS = 384;
constexpr int WEIGHTS = UNITS * INT4_BLOCK, X_PIECES = 16 * TOKENS;  // of a slot, in units of 16 bytes

// A slot of the ring and the parity of its barriers.
struct RingSlot {
    unsigned index = 0, parity = 0;
    __device__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    int4_stream_k(const uint4* __restrict__ blocks, const __grid_constant__ TensorMap x, __half* __restrict__ y, unsigned n,
                  unsigned groups, unsigned batch, uint4* workspace) {
    static_assert(STAGES > 1);
    extern __shared__ __align__(1024) uint4 memory[];
    __shared__ unsigned long long full[STAGES], empty[STAGES];
    uint4* const weights = memory + STAGES * X_PIECES;
    const unsigned warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const unsigned across = (batch + TOKENS - 1) / TOKENS;
#if PARTS
    Split line(across * ((n + ROWS - 1) / ROWS), groups);
#else
    Line line(across * ((n + ROWS - 1) / ROWS), groups);
#endif
    if (warp >= 8) {  // one thread copies, and starts before the other warps have
        if (threadIdx.x == 256) {
#pragma unroll
            for (int s = 0; s < STAGES; ++s) {
                mbarrier_init(full + s, 1);
                mbarrier_init(empty + s, 256);
            }
            warpgroup_shared_fence();
        }
        warpgroup_pass_turn(0, THREADS);
        setmaxnreg_fewer<40>();
        if (threadIdx.x != 256) return;
        RingSlot slot;
        for (;;) {
            const Piece piece = line.take();
            if (piece.count == 0) return;
            const int token = piece.tile % across * TOKENS, rows_at = piece.tile / across;
            const uint4* block[UNITS];  // rows beyond the last unit of the matrix: that unit again
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
                const unsigned unit = min(rows_at * UNITS + u, (n - 1) / INT4_TILE);
                block[u] = blocks + (unit * (unsigned long long)groups + piece.begin) * INT4_BLOCK;
            }
            for (unsigned s = 0; s < piece.count; ++s, slot.next()) {
                unsigned long long* const barrier = full + slot.index;
                mbarrier_wait(empty + slot.index, slot.parity ^ 1);
                mbarrier_expect(barrier, (WEIGHTS + X_PIECES) * 16);
#pragma unroll
                for (int u = 0; u < UNITS; ++u)
                    tma_copy_bytes(weights + slot.index * WEIGHTS + u * INT4_BLOCK, block[u] + s * INT4_BLOCK, INT4_BLOCK * 16, barrier);
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    tma_copy_box(memory + slot.index * X_PIECES + h * 8 * TOKENS, &x, (piece.begin + s) * 128 + h * 64, token, barrier);
                mbarrier_arrive(barrier);
            }
        }
    }
    warpgroup_wait_turn(0, THREADS);
    setmaxnreg_more<232>();

    const unsigned unit = warp / 4 * TALL, part = warp % 4;
    unsigned even[TALL][4][4], odd[TALL][4][4];
    RingSlot slot;
    for (;;) {
        const Piece piece = line.take();
        if (piece.count == 0) return;
        float sums[TALL][TOKENS / 2];  // begun by the first product
        // Half h of a group: its weights into registers, then its products behind those of the half before, and wait for
        // these, whose registers are the next half's.
        const auto multiply = [&](unsigned (&a)[TALL][4][4], int h, bool add) {
            const uint4* stage = weights + slot.index * WEIGHTS + unit * INT4_BLOCK;
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
            const unsigned long long columns = wgmma_columns(memory + slot.index * X_PIECES + h * 8 * TOKENS);
            warpgroup_arrive();
#pragma unroll
            for (int step = 0; step < 4; ++step)
#pragma unroll
                for (int i = 0; i < TALL; ++i)
                    wgmma_registers_f16<TOKENS>(sums[i], a[i][step], columns + 2 * step, step > 0 || add);
            warpgroup_commit();
            warpgroup_wait<1>();
        };
        unsigned before = slot.index;
        for (unsigned s = 0; s < piece.count; ++s, slot.next()) {
            mbarrier_wait(full + slot.index, slot.parity);
            multiply(even, 0, s > 0);
            if (s > 0) mbarrier_arrive(empty + before);  // every thread for what it has read
            multiply(odd, 1, true);
            before = slot.index;
        }
        warpgroup_wait<0>();
        mbarrier_arrive(empty + before);

        const unsigned row = piece.tile / across * ROWS, token = piece.tile % across * TOKENS;
        __half* const to = y + token * (unsigned long long)n;
        const unsigned tokens = min(batch - token, (unsigned)TOKENS);
        const int id = 1 + warp / 4;
#if PARTS == 2
        if (piece.tile >= line.whole) {  // each of the two blocks ends the rows of one of its warpgroups
            const unsigned tile = piece.tile - line.whole;
            if (warp / 4 != line.part) {
                leave_sums<TALL, TOKENS>(sums, workspace, tile);
                continue;
            }
            take_sums<TALL, TOKENS>(sums, workspace, tile);
        }
#elif PARTS
        if (piece.tile >= line.whole) {
            share_sums<TALL, TOKENS>(sums, workspace, line, to, row, n, tokens);
            continue;
        }
#else
        if (piece.begin + piece.count < groups) {
            leave_sums<TALL, TOKENS>(sums, workspace, blockIdx.x);
            continue;
        }
        if (piece.begin > 0) add_left_sums<TALL, TOKENS>(sums, workspace, line, piece);
#endif
        __half* const stage = reinterpret_cast<__half*>(weights + STAGES * WEIGHTS) + warp / 4 * 32 * (64 * TALL + 8);
        store_sums<TALL, TOKENS>(sums, stage, id, to, row + 64 * unit, n, tokens);
    }
}
