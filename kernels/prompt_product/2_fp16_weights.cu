// prompt_product 2, fp16 weights: a prompt's product with FP16 weights, gated if asked for.
//
// Purpose  cuBLAS stores gates and ups, 4 mlp bytes a token, only to have another kernel read them and leave 2 mlp. Here the
//          sums of a gate and of its up are in one thread, which stores what the next product reads.
// Shapes   w [n][k] half, x [batch][k] half, y [batch][n] half, or with GATE [batch][n / 2]: SiLU of eight rows times the
//          eight after them (rooflab.ops.decoder.pair_gates). All 16-byte aligned, k a multiple of 128, n of 16. sm_90a.
// Bytes    2 n k and 2 batch k read + 2 batch n written, with GATE batch n.
// Launch   three warpgroups a block: one copies, two multiply 64 rows by a tile's TOKENS; clusters of two blocks, as many as
//          the multiprocessors hold, or as there are pairs of tiles. Dynamic shared memory: STAGES tiles of 128 bytes a row
//          and a token, and 5120 bytes of results on their way for each of two warpgroups.
// Macros   TOKENS = 168: tokens a tile;
//          STAGES = 5: tiles in the ring of shared memory;
//          GATE = 0: 1 to store SiLU of eight rows times the eight rows after them.
// Branch   from rung 1: weights are halves, which the tensor cores read from shared memory, so nothing is converted. A step
//          brings 1.5 to 1.9 times the bytes; so two blocks with the same tokens each fetch half of them for both. Sums are
//          kept of two tiles by turns: while one tile's leave, the next one's first products run.
#include "common/ptx/cluster.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/stmatrix.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/warpgroup.cuh"
#include "common/ptx/wgmma/wide.cuh"
#include "common/store_sums.cuh"

constexpr int ROWS = 128, SLOT = (ROWS + TOKENS) * 128, STAGE = 2 * 32 * (32 + 8);  // halves of results on their way
constexpr int FIRST = (TOKENS + 8) / 16 * 8;  // tokens that the first block of a cluster fetches; the other fetches the rest

// A slot of the ring and the parity of its barriers.
struct RingSlot {
    unsigned index = 0, parity = 0;
    __device__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

__device__ inline float gated(float gate, float up) { return __fdividef(gate, 1.0f + __expf(-gate)) * up; }

// Sums of a warpgroup, eight gates and eight ups by turns, as wgmma holds them: gated to y [token][width], rows `row` and up,
// by way of `stage`, which holds 32 tokens twice. Barrier `id` is the warpgroup's own.
__device__ inline void store_gated(const float (&s)[TOKENS / 2], __half* stage, int id, __half* y, int row, int width, int tokens) {
    constexpr int STRIDE = 32 + 8;
    const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
#pragma unroll
    for (int c = 0; c < (TOKENS + 24) / 32; ++c) {
        if (c * 32 >= tokens) break;
        __half* const half = stage + c % 2 * 32 * STRIDE;
        unsigned r[4];
#pragma unroll
        for (int m = 0; m < 4; ++m) {  // of eight tokens a thread has two, and of each a gate and its up
            const int i = (4 * c + m) * 4;
            const __half2 pair = i < TOKENS / 2 ? __floats2half2_rn(gated(s[i], s[i + 2]), gated(s[i + 1], s[i + 3])) : __half2();
            r[m] = *reinterpret_cast<const unsigned*>(&pair);
        }
        store_matrix_x4_transposed(half + lane * STRIDE + 8 * warp, r);
        warpgroup_wait_turn(id, 128);
        const int token = c * 32 + thread / 4, at = row + thread % 4 * 8;
        if (token < tokens && at < width)
            *reinterpret_cast<uint4*>(y + token * (size_t)width + at) =
                *reinterpret_cast<const uint4*>(half + thread / 4 * STRIDE + thread % 4 * 8);
    }
    warpgroup_wait_turn(id, 128);  // the stage has been read
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
    prompt_product_fp16_weights(const __grid_constant__ TensorMap w, const __grid_constant__ TensorMap x_first,
                        const __grid_constant__ TensorMap x_rest, __half* __restrict__ y, int n, int k, int batch, int together) {
    static_assert(TOKENS % 8 == 0 && TOKENS >= 64);
    extern __shared__ __align__(1024) unsigned char ring[];
    __shared__ unsigned long long full[STAGES], empty[STAGES];
    const unsigned rank = cluster_rank();
    const int thread = threadIdx.x % 128, lane = thread % 32, chunks = k / 64;
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    const int across = (batch + TOKENS - 1) / TOKENS, pairs = (n + 2 * ROWS - 1) / (2 * ROWS), tiles = across * pairs;
    if (threadIdx.x == 0) {
#pragma unroll
        for (int s = 0; s < STAGES; ++s) {
            mbarrier_init(full + s, 1);
            mbarrier_init(empty + s, 2 * 8);  // a warp of either block's eight
        }
        warpgroup_shared_fence();
    }
    cluster_wait();

    // First row and first token of this block's part of a tile: all rows by `together` columns of tiles, then by the next.
    const auto place = [&](int tile) {
        const int first = tile / (together * pairs) * together, wide = min(together, across - first), within = tile - first * pairs;
        return make_int2((within / wide * 2 + rank) * ROWS, (first + within % wide) * TOKENS);
    };
    RingSlot slot;
    if (group == 2) {  // copies; rows and tokens beyond the last come as zeros, and are not stored
        setmaxnreg_fewer<40>();
        if (thread == 0) {
            // After the last tile two chunks more, of any: products are begun before it is known whether they are needed.
            for (int tile = blockIdx.x / 2, more = 1; more; tile += gridDim.x / 2) {
                more = tile < tiles;
                const int2 at = more ? place(tile) : make_int2(0, 0);
                const int row0 = at.x, token0 = at.y + rank * FIRST;
                for (int c = 0; c < (more ? chunks : 2); ++c, slot.next()) {
                    unsigned char* const rows = ring + slot.index * SLOT;
                    unsigned char* const tokens = rows + ROWS * 128 + rank * (FIRST * 128);
                    mbarrier_wait(empty + slot.index, slot.parity ^ 1);  // neither block reads it any more
                    mbarrier_expect(full + slot.index, SLOT);
                    tma_copy_box(rows, &w, c * 64, row0, full + slot.index);
                    tma_copy_box_to(3, tokens, rank ? &x_rest : &x_first, c * 64, token0, full + slot.index);
                    mbarrier_arrive(full + slot.index);
                }
            }
        }
    } else {
        setmaxnreg_more<232>();
        __half* const stage = reinterpret_cast<__half*>(ring + STAGES * SLOT) + group * STAGE;
        const unsigned rows_at = group * 64 * 128, columns_at = ROWS * 128;
        const auto release = [&](unsigned index) {
            if (lane < 2) mbarrier_arrive_at(empty + index, lane);
        };
        // Start the products by the next chunk of k.
        const auto start = [&](float (&sums)[1][TOKENS / 2], bool add) {
            mbarrier_wait(full + slot.index, slot.parity);
            const unsigned char* const at = ring + slot.index * SLOT;
            const unsigned long long a = wgmma_columns(at + rows_at), b = wgmma_columns(at + columns_at);
            warpgroup_arrive();
#pragma unroll
            for (int j = 0; j < 4; ++j) wgmma_shared_f16<TOKENS>(sums[0], a + 2 * j, b + 2 * j, add || j > 0);
            warpgroup_commit();
            slot.next();
        };
        unsigned done = 0;  // the slot that is to be released next
        const auto release_next = [&] {
            release(done);
            if (++done == STAGES) done = 0;
        };
        const auto begin = [&](float (&sums)[1][TOKENS / 2]) {
            start(sums, false);
            start(sums, true);
        };
        const auto finish = [&](float (&sums)[1][TOKENS / 2]) {
            warpgroup_wait<1>();
            release_next();
            for (int c = 2; c < chunks; ++c) {
                start(sums, true);
                warpgroup_wait<1>();  // the products by chunk c - 1 are done
                release_next();
            }
            warpgroup_wait<0>();
            release_next();
        };
        const auto store = [&](const float (&sums)[1][TOKENS / 2], int tile) {
            const int2 at = place(tile);
            const int row = at.x + group * 64, token0 = at.y, tokens = min(batch - token0, TOKENS);
            if constexpr (GATE) {
                store_gated(sums[0], stage, 1 + group, y + token0 * (size_t)(n / 2), row / 2, n / 2, tokens);
            } else {
                store_sums<1, TOKENS>(sums, stage, 1 + group, y + token0 * (size_t)n, row, n, tokens);
            }
        };
        // Two tiles' sums by turns: the products by a tile's first two chunks run while the results before are stored.
        const int step = gridDim.x / 2;
        float even[1][TOKENS / 2], odd[1][TOKENS / 2];
        int tile = blockIdx.x / 2;
        begin(even);
        while (true) {
            finish(even);
            begin(odd);
            store(even, tile);
            tile += step;
            if (tile >= tiles) break;
            finish(odd);
            begin(even);
            store(odd, tile);
            tile += step;
            if (tile >= tiles) break;
        }
        warpgroup_wait<0>();  // by the chunks after the last tile
    }
    cluster_wait();  // stay while the other block copies into this one's memory
}
