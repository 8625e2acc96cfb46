// prompt_product 1, fp16 wgmma: a prompt's product with Q8_0 weights, whose results leave in whole rows, gated if asked for.
//
// Purpose  where k is short, lesson 05's best product spends a sixth of its time before its first and after its last
//          multiplication; and gates and what they let through go to memory only to be fetched and become half as much.
// Shapes   quants [n][k] int8 and scales [n][k / 32] half, x [batch][k] half, y [batch][n] half, or with GATE [batch][n / 2]:
//          SiLU of eight rows times the eight after them (rooflab.ops.decoder.pair_gates). All 16-byte aligned, k a multiple
//          of 128, n of 16. sm_90a.
// Bytes    34/32 n k and 2 batch k read + 2 batch n written, with GATE batch n.
// Launch   three warpgroups a block: one copies, two multiply 64 rows by a tile's TOKENS; a block a multiprocessor, or as many
//          as there are tiles. Dynamic shared memory: STAGES tiles of 68 bytes a row and 128 a token, each rounded up to
//          1024, and two buffers for results: a token's of a warpgroup, and 16 bytes.
// Macros   TOKENS = 192: tokens a tile;
//          STAGES = 5: tiles in the ring of shared memory;
//          GATE = 0: 1 to store SiLU of eight rows times the eight rows after them.
// Below    mmq's rung 7_fp16_wgmma. Persistent blocks walk from tile to tile, so that the next tile's copies are under way while
//          results are stored; these meet in shared memory, so that what is stored is 64 or 128 bytes in a row, not 16.
#include "common/ptx/cp_async.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/warpgroup.cuh"
#include "common/ptx/wgmma/wide.cuh"
#include "common/q8.cuh"

constexpr int ROWS = 128, SUMS = TOKENS / 2, SLOT = (TOKENS * 128 + ROWS * 68 + 1023) / 1024 * 1024;
constexpr int RESULTS = GATE ? 32 : 64, PIECES = RESULTS / 8, PITCH = 2 * RESULTS + 16;  // of a warpgroup and token

// Two int8 as two halves, exact: the bytes' bits with the sign turned over are 1024 + 128 + q in FP16.
__device__ inline __half2 halves_of(unsigned pair) {
    const unsigned bits = __byte_perm(pair ^ 0x8080u, 0x64646464u, 0x4140);
    return __hsub2(*reinterpret_cast<const __half2*>(&bits), __float2half2_rn(1152.0f));
}

extern "C" __global__ void __launch_bounds__(384, 1)
    prompt_product_fp16_wgmma(const __grid_constant__ TensorMap quants, const __half* __restrict__ scales,
                        const __grid_constant__ TensorMap x, __half* __restrict__ y, int n, int k, int batch) {
    extern __shared__ __align__(1024) unsigned char ring[];
    __shared__ unsigned long long full[STAGES], empty[STAGES];
    const int thread = threadIdx.x % 128, lane = thread % 32, group = threadIdx.x / 128, warp = thread / 32, chunks = k / 64;
    const int across = (batch + TOKENS - 1) / TOKENS, tiles = across * ((n + ROWS - 1) / ROWS);
    if (threadIdx.x < STAGES) {
        mbarrier_init(full + threadIdx.x, 129);
        mbarrier_init(empty + threadIdx.x, 256);
    }
    __syncthreads();

    if (group == 2) {  // copies; rows and tokens beyond the last come as zeros, and are not stored
        setmaxnreg_fewer<40>();
        unsigned turn = 0;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const int row0 = tile / across * ROWS, token0 = tile % across * TOKENS, r = min(row0 + thread, n - 1);
            for (int c = 0; c < chunks; ++c, ++turn) {
                unsigned char* tokens = ring + turn % STAGES * SLOT;
                unsigned char* rows = tokens + TOKENS * 128;
                unsigned long long* barrier = full + turn % STAGES;
                if (turn >= STAGES) mbarrier_wait(empty + turn % STAGES, (turn / STAGES + 1) % 2);
                if (thread == 0) {
                    mbarrier_expect(barrier, TOKENS * 128 + ROWS * 64);
                    tma_copy_box(tokens, &x, c * 64, token0, barrier);
                    tma_copy_box(rows, &quants, c * 64, row0, barrier);
                    mbarrier_arrive(barrier);
                }
                copy_async_4(rows + ROWS * 64 + thread * 4, scales + (size_t)r * (k / 32) + c * 2);
                mbarrier_arrive_when_copied(barrier);
            }
        }
        return;
    }
    setmaxnreg_more<232>();

    // The weights of a tile for the tensor cores: [16 of k][registers].
    const auto load = [&](unsigned (&a)[4][4], const unsigned char* rows) {
        const __half2* scale = reinterpret_cast<const __half2*>(rows + ROWS * 64);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int r = group * 64 + warp * 16 + lane / 4 + 8 * i;
            const __half2 both = scale[r], s[2] = {__low2half2(both), __high2half2(both)};
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                // 16-byte pieces of rows are swizzled by the pair of rows (64-byte swizzle): eight rows, all banks.
                const unsigned char* from = rows + r * 64 + (j / 2 ^ r / 2 % 4) * 16 + j % 2 * 8 + lane % 4 * 2;
                const __half2 w = __hmul2(halves_of(*reinterpret_cast<const unsigned short*>(from)), s[j / 4]);
                a[j / 2][i + j % 2 * 2] = *reinterpret_cast<const unsigned*>(&w);
            }
        }
    };
    unsigned turn = 0;
    unsigned char* results = ring + STAGES * SLOT + group * TOKENS * PITCH;
    unsigned even[4][4], odd[4][4];
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float sum[SUMS];  // begun by a tile's first product
        const auto step = [&](unsigned (&a)[4][4], int c) {
            const unsigned now = turn + c, slot = now % STAGES;
            mbarrier_wait(full + slot, now / STAGES % 2);
            load(a, ring + slot * SLOT + TOKENS * 128);
            const unsigned long long columns = wgmma_columns(ring + slot * SLOT);
            warpgroup_arrive();
#pragma unroll
            for (int j = 0; j < 4; ++j) wgmma_registers_f16<TOKENS>(sum, a[j], columns + 2 * j, c + j > 0);
            warpgroup_commit();
            warpgroup_wait<1>();  // the product by chunk c - 1 is done
            if (c > 0) mbarrier_arrive(empty + (now - 1) % STAGES);  // every thread for what it has read
        };
        for (int c = 0; c < chunks; c += 2) {
            step(even, c);
            step(odd, c + 1);
        }
        warpgroup_wait<0>();
        turn += chunks;
        mbarrier_arrive(empty + (turn - 1) % STAGES);

        // A thread's sums are rows g and g + 8 of its warp's 16, and of eight tokens two. Those of tokens beyond the last
        // stay behind; and no compiler moves what comes after that branch before the wait above, as one did without it.
        const int first = (tile / across * 2 + group) * RESULTS, token0 = tile % across * TOKENS, width = GATE ? n / 2 : n;
        __half* column = reinterpret_cast<__half*>(results + lane % 4 * 2 * PITCH) + RESULTS / 4 * warp + lane / 4;
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            if (token0 + i / 4 * 8 >= batch) break;
            __half* to = column + (i / 4 * 8 + i % 2) * (PITCH / 2);
            if (GATE) {
                if (i / 2 % 2 == 0) *to = __float2half(__fdividef(sum[i], 1.0f + __expf(-sum[i])) * sum[i + 2]);
            } else {
                to[i / 2 % 2 * 8] = __float2half(sum[i]);
            }
        }
        warpgroup_wait_turn(1 + group, 128);
        for (int i = thread; i < TOKENS * PIECES; i += 128) {
            const int token = i / PIECES, piece = i % PIECES;
            if (token0 + token < batch && first + 8 * piece < width)
                *reinterpret_cast<uint4*>(y + (size_t)(token0 + token) * width + first + 8 * piece) =
                    *reinterpret_cast<const uint4*>(results + token * PITCH + 16 * piece);
        }
        warpgroup_wait_turn(1 + group, 128);
    }
}
