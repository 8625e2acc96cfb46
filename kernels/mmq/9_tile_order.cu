// mmq 9, tile order: weights in the order in which the tensor cores take them, so that a lane unpacks what one load brings.
//
// Purpose  rung 8 makes two halves of weights with a load of two bytes and five instructions, because the bytes that a lane
//          needs lie apart in a row. While a warp does this its tensor cores wait: 45 cycles a product, measured.
// Shapes   blocks [n / 64][k / 64][272] units of 16 bytes (rooflab.ops.q8_0.repack), x [batch][k] half, y [batch][n] half;
//          k a multiple of 128.
// Bytes    as rung 8.
// Launch   as rung 8.
// Macros   ROW_TILES = 1: tiles of 64 rows a warpgroup;
//          TOKENS = 256: tokens a tile, a multiple of 8: 64 to 256 / ROW_TILES;
//          STAGES = 5: steps of 64 of k in the ring of shared memory;
//          BLOCKS = 132: blocks;
//          SHARERS = 132: those that share what is left for a last turn; 0: its tiles are taken whole;
//          PARTS = 0: blocks that divide each tile of a last turn among them instead; 0: none.
// Branch   from rung 8: 64 rows by 64 of k lie in one piece of memory, scales first: one copy brings them, and one thread
//          starts all copies. A load of 16 bytes holds a lane's weights of 32 of k, signs turned over beforehand: two weights
//          take a byte permutation, a subtraction and a multiplication.
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/warpgroup.cuh"
#include "common/ptx/wgmma/wide.cuh"
#include "common/q8_tiles.cuh"
#include "common/split_sums.cuh"
#include "common/stream_k.cuh"

constexpr int UNITS = 2 * ROW_TILES, ROWS = 64 * UNITS;
constexpr int WEIGHTS = UNITS * Q8_TILE, X_PIECES = 8 * TOKENS;  // of a slot, in units of 16 bytes

// A slot of the ring and the parity of its barriers.
struct RingSlot {
    unsigned index = 0, parity = 0;
    __device__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

extern "C" __global__ void __launch_bounds__(384, 1)
    mmq_tile_order(const uint4* __restrict__ blocks, const __grid_constant__ TensorMap x, __half* __restrict__ y, int n, int k,
                   int batch, uint4* workspace) {
    static_assert(STAGES > 1);
    extern __shared__ __align__(1024) uint4 memory[];
    __shared__ unsigned long long full[STAGES], empty[STAGES];
    uint4* const weights = memory + STAGES * X_PIECES;
    const unsigned warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const unsigned across = (batch + TOKENS - 1) / TOKENS;
#if PARTS
    Split line(across * ((n + ROWS - 1) / ROWS), k / 128);
#else
    Line line(across * ((n + ROWS - 1) / ROWS), k / 128);
#endif
    if (warp >= 8) {  // one thread copies; tokens beyond the last come as zeros, and are not stored
        if (threadIdx.x == 256) {
#pragma unroll
            for (int s = 0; s < STAGES; ++s) {
                mbarrier_init(full + s, 1);
                mbarrier_init(empty + s, 256);
            }
            warpgroup_shared_fence();
        }
        warpgroup_pass_turn(0, 384);  // the barriers are there; the copies wait for no other warp
        setmaxnreg_fewer<40>();
        if (threadIdx.x != 256) return;
        RingSlot slot;
        for (;;) {
            const Piece piece = line.take();
            if (piece.count == 0) return;
            const int token = piece.tile % across * TOKENS, rows_at = piece.tile / across;
            const uint4* tile[UNITS];  // rows beyond the last tile of the matrix: that tile again
#pragma unroll
            for (int u = 0; u < UNITS; ++u)
                tile[u] = blocks + min(rows_at * UNITS + u, (n - 1) / 64) * (k / 64) * (size_t)Q8_TILE;
            for (unsigned c = 2 * piece.begin; c < 2 * (piece.begin + piece.count); ++c, slot.next()) {  // of 64 of k
                unsigned long long* const barrier = full + slot.index;
                mbarrier_wait(empty + slot.index, slot.parity ^ 1);
                mbarrier_expect(barrier, (WEIGHTS + X_PIECES) * 16);
                tma_copy_box(memory + slot.index * X_PIECES, &x, c * 64, token, barrier);
#pragma unroll
                for (int u = 0; u < UNITS; ++u)
                    tma_copy_bytes(weights + slot.index * WEIGHTS + u * Q8_TILE, tile[u] + c * Q8_TILE, Q8_TILE * 16, barrier);
                mbarrier_arrive(barrier);
            }
        }
    }
    warpgroup_wait_turn(0, 384);
    setmaxnreg_more<232>();

    const unsigned unit = warp / 4 * ROW_TILES, part = warp % 4;
    RingSlot slot;
    unsigned even[ROW_TILES][4][4], odd[ROW_TILES][4][4];
    for (;;) {
        const Piece piece = line.take();
        if (piece.count == 0) return;
        float sums[ROW_TILES][TOKENS / 2];  // begun by the first product
        unsigned before = slot.index;
        // A slot's weights into registers, then its products behind those of the slot before, and wait for these, whose
        // registers are the next slot's.
        const auto step = [&](unsigned (&a)[ROW_TILES][4][4], bool add) {
            mbarrier_wait(full + slot.index, slot.parity);
            const uint4* const tiles = weights + slot.index * WEIGHTS + unit * Q8_TILE;
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m) q8_share_to_halves(q8_share(tiles + m * Q8_TILE, part, lane), a[m]);
            const unsigned long long columns = wgmma_columns(memory + slot.index * X_PIECES);
            warpgroup_arrive();
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m)
                    wgmma_registers_f16<TOKENS>(sums[m], a[m][j], columns + 2 * j, j > 0 || add);
            warpgroup_commit();
            warpgroup_wait<1>();  // the product by the slot before is done
            if (add) mbarrier_arrive(empty + before);  // every thread for what it has read
            before = slot.index;
            slot.next();
        };
        for (unsigned s = 0; s < piece.count; ++s) {
            step(even, s > 0);
            step(odd, true);
        }
        warpgroup_wait<0>();
        mbarrier_arrive(empty + before);

        const unsigned row = piece.tile / across * ROWS, token = piece.tile % across * TOKENS;
        __half* const to = y + token * (size_t)n;
        const unsigned tokens = min(batch - token, (unsigned)TOKENS);
        const int id = 1 + warp / 4;
#if PARTS == 2
        if (piece.tile >= line.whole) {  // each of the two blocks ends the rows of one of its warpgroups
            const unsigned tile = piece.tile - line.whole;
            if (warp / 4 != line.part) {
                leave_sums<ROW_TILES, TOKENS>(sums, workspace, tile);
                continue;
            }
            take_sums<ROW_TILES, TOKENS>(sums, workspace, tile);
        }
#elif PARTS
        if (piece.tile >= line.whole) {
            share_sums<ROW_TILES, TOKENS>(sums, workspace, line, to, row, n, tokens);
            continue;
        }
#else
        if (piece.begin + piece.count < line.steps) {
            leave_sums<ROW_TILES, TOKENS>(sums, workspace, blockIdx.x);
            continue;
        }
        if (piece.begin > 0) add_left_sums<ROW_TILES, TOKENS>(sums, workspace, line, piece);
#endif
        __half* const stage = reinterpret_cast<__half*>(weights + STAGES * WEIGHTS) + warp / 4 * 32 * (64 * ROW_TILES + 8);
        store_sums<ROW_TILES, TOKENS>(sums, stage, id, to, row + 64 * unit, n, tokens);
    }
}
