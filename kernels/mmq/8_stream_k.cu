// mmq 8, stream k: blocks that stay, copies that run ahead into the next tile, and a last turn divided along k.
//
// Purpose  rung 7 starts each tile with an empty ring, stores its sums two bytes at a time, and leaves SMs without work
//          where a product has fewer tiles than the GPU has SMs: at 3072 x 3072 and 256 tokens 24 of 132 multiply.
// Shapes   as rung 7.
// Bytes    as rung 7, and the sums of tiles that blocks share, written and read in L2.
// Launch   three warpgroups a block: one copies, two multiply 64 ROW_TILES rows by all of the tile's TOKENS; one block a
//          multiprocessor, or fewer; sm_90a.
// Macros   ROW_TILES = 1: tiles of 64 rows a warpgroup;
//          TOKENS = 256: tokens a tile;
//          STAGES = 5: tiles in the ring of shared memory;
//          BLOCKS = 132: blocks;
//          SHARERS = 132: those that share what is left for a last turn; 0: its tiles are taken whole.
// Changed  from rung 7: a block takes tile after tile, and the ring goes on from one to the next; the steps of the tiles that
//          are left for a last turn are shared evenly (common/stream_k.cuh); sums leave as halves, turned in shared memory
//          besides the ring.
#include "common/ptx/cp_async.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/warpgroup.cuh"
#include "common/ptx/wgmma/wide.cuh"
#include "common/q8.cuh"
#include "common/stream_k.cuh"

constexpr int ROWS = 128 * ROW_TILES;
constexpr int SLOT = (TOKENS * 128 + ROWS * 68 + 1023) / 1024 * 1024;

// Two int8 as two halves, exact: the bytes' bits with the sign turned over are 1024 + 128 + q in FP16.
__device__ inline __half2 halves_of(unsigned pair) {
    const unsigned bits = __byte_perm(pair ^ 0x8080u, 0x64646464u, 0x4140);
    return __hsub2(*reinterpret_cast<const __half2*>(&bits), __float2half2_rn(1152.0f));
}

// A slot of the ring and the parity of its barriers.
struct RingSlot {
    unsigned index = 0, parity = 0;
    __device__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

extern "C" __global__ void __launch_bounds__(384, 1)
    mmq_stream_k(const __grid_constant__ TensorMap quants, const __half* __restrict__ scales,
              const __grid_constant__ TensorMap x, __half* __restrict__ y, int n, int k, int batch, uint4* workspace) {
    extern __shared__ __align__(1024) unsigned char ring[];
    __shared__ unsigned long long full[STAGES], empty[STAGES];
    const unsigned thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
    const unsigned group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    const unsigned across = (batch + TOKENS - 1) / TOKENS;
    Line line(across * ((n + ROWS - 1) / ROWS), k / 128);
    if (threadIdx.x < STAGES) {
        mbarrier_init(full + threadIdx.x, 129);
        mbarrier_init(empty + threadIdx.x, 256);
    }
    warpgroup_shared_fence();
    __syncthreads();

    if (group == 2) {  // copies; rows and tokens beyond the last come as zeros, and are not stored
        setmaxnreg_fewer<40>();
        RingSlot slot;
        for (;;) {
            const Piece piece = line.take();
            if (piece.count == 0) return;
            const int row0 = piece.tile / across * ROWS, token0 = piece.tile % across * TOKENS;
            for (unsigned c = 2 * piece.begin; c < 2 * (piece.begin + piece.count); ++c, slot.next()) {  // of 64 of k
                unsigned char* tokens = ring + slot.index * SLOT;
                unsigned char* rows = tokens + TOKENS * 128;
                unsigned long long* barrier = full + slot.index;
                mbarrier_wait(empty + slot.index, slot.parity ^ 1);
                if (thread == 0) {
                    mbarrier_expect(barrier, TOKENS * 128 + ROWS * 64);
                    tma_copy_box(tokens, &x, c * 64, token0, barrier);
#pragma unroll
                    for (int i = 0; i < ROW_TILES; ++i)
                        tma_copy_box(rows + i * 8192, &quants, c * 64, row0 + 128 * i, barrier);
                    mbarrier_arrive(barrier);
                }
#pragma unroll
                for (int i = 0; i < ROW_TILES; ++i) {
                    const int r = min(row0 + (int)thread + 128 * i, n - 1);
                    copy_async_4(rows + ROWS * 64 + (thread + 128 * i) * 4, scales + (size_t)r * (k / 32) + c * 2);
                }
                mbarrier_arrive_when_copied(barrier);
            }
        }
    }
    setmaxnreg_more<232>();

    RingSlot slot;
    unsigned even[ROW_TILES][4][4], odd[ROW_TILES][4][4];
    for (;;) {
        const Piece piece = line.take();
        if (piece.count == 0) return;
        float sums[ROW_TILES][TOKENS / 2];  // begun by the first product
        // The weights of a slot for the tensor cores: [64 rows][16 of k][registers].
        const auto load = [&](unsigned (&a)[ROW_TILES][4][4]) {
            const unsigned char* rows = ring + slot.index * SLOT + TOKENS * 128;
            const __half2* scale = reinterpret_cast<const __half2*>(rows + ROWS * 64);
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int r = (group * ROW_TILES + m) * 64 + warp * 16 + lane / 4 + 8 * i;
                    const __half2 both = scale[r], s[2] = {__low2half2(both), __high2half2(both)};
#pragma unroll
                    for (int j = 0; j < 8; ++j) {
                        // 16-byte pieces of rows are swizzled by the pair of rows (64-byte swizzle): eight rows, all banks.
                        const unsigned char* from = rows + r * 64 + (j / 2 ^ r / 2 % 4) * 16 + j % 2 * 8 + lane % 4 * 2;
                        const __half2 w = __hmul2(halves_of(*reinterpret_cast<const unsigned short*>(from)), s[j / 4]);
                        a[m][j / 2][i + j % 2 * 2] = *reinterpret_cast<const unsigned*>(&w);
                    }
                }
        };
        unsigned before = slot.index;
        const auto step = [&](unsigned (&a)[ROW_TILES][4][4], bool add) {
            mbarrier_wait(full + slot.index, slot.parity);
            load(a);
            const unsigned long long columns = wgmma_columns(ring + slot.index * SLOT);
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

        const int id = 1 + group;
        if (piece.begin + piece.count < line.steps) {
            leave_sums<ROW_TILES, TOKENS>(sums, workspace, blockIdx.x);
            continue;
        }
        if (piece.begin > 0) add_left_sums<ROW_TILES, TOKENS>(sums, workspace, line, piece);
        const unsigned row = piece.tile / across * ROWS + 64 * ROW_TILES * group, token = piece.tile % across * TOKENS;
        __half* const stage = reinterpret_cast<__half*>(ring + STAGES * SLOT) + group * 32 * (64 * ROW_TILES + 8);
        store_sums<ROW_TILES, TOKENS>(sums, stage, id, y + token * (size_t)n, row, n, min(batch - token, (unsigned)TOKENS));
    }
}
