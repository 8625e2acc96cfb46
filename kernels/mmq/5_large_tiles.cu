// mmq 5, large tiles: larger tiles a warp, and two instructions where rung 4 needs three to scale a product.
//
// Purpose  a product of 32 pairs is one mma for 128 numbers a lane group, but each number must be scaled on its own: it
//          is these instructions, not the tensor cores, that bound the exact product. So there must be few others.
// Shapes   quants [n][k] int8 and scales [n][k / 32] half, xq [batch][k] int8 and xs [batch][k / 32] half,
//          y [batch][n] half; all 16-byte aligned, k a multiple of 128.
// Bytes    34/32 n k and 34/32 batch k read + 2 batch n written; the tiles of tokens go first through the grid, so that
//          the weights of a row of tiles come from memory once.
// Launch   32 ROW_WARPS TOKEN_WARPS threads a block, a warp 16 ROW_TILES rows by 8 TOKEN_TILES tokens,
//          (ceil(batch / tokens), ceil(n / rows)) blocks. Dynamic shared memory: STAGES tiles, 136 bytes a row and token.
// Macros   ROW_WARPS = 2: warps that divide a block's rows;
//          TOKEN_WARPS = 2: warps that divide a block's tokens;
//          ROW_TILES = 4: tiles of 16 rows a warp;
//          TOKEN_TILES = 4: tiles of 8 tokens a warp;
//          STAGES = 2: tiles in the ring of shared memory;
//          UNROLL = 2: blocks of k that the loop is unrolled by;
//          RESIDENT = 2: blocks an SM that the compiler must leave registers for.
// Changed  from rung 4: the tile's shape; a sum that starts at 1.5 x 2^23 reads as a float without conversion, and the
//          fused multiply-add that scales it takes the start off again, exactly.
#include "common/ptx/cp_async.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/q8.cuh"

constexpr int THREADS = 32 * ROW_WARPS * TOKEN_WARPS;
constexpr int ROWS = 16 * ROW_TILES * ROW_WARPS, TOKENS = 8 * TOKEN_TILES * TOKEN_WARPS, BOTH = ROWS + TOKENS;
constexpr int PASSES = BOTH * 8 / THREADS, SCALE_PASSES = (BOTH + THREADS - 1) / THREADS;
static_assert(ROWS % (THREADS / 8) == 0 && TOKENS % (THREADS / 8) == 0, "a pass copies rows or tokens, not both");
constexpr int SLOT = BOTH * 136;  // quants of rows, then of tokens, 128 bytes each; then scales, 8 bytes each

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    mmq_large_tiles(const uint4* __restrict__ quants, const uint2* __restrict__ scales, const uint4* __restrict__ xq,
              const uint2* __restrict__ xs, __half* __restrict__ y, int n, int k, int batch) {
    extern __shared__ __align__(128) unsigned char ring[];
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, chunks = k / 128;
    const int row0 = blockIdx.y * ROWS, token0 = blockIdx.x * TOKENS;
    const int m0 = warp % ROW_WARPS * 16 * ROW_TILES, n0 = ROWS + warp / ROW_WARPS * 8 * TOKEN_TILES;

    // Where a thread's copies come from, as offsets in 16 and 8 bytes; rows and tokens beyond the last repeat it, and are
    // not stored.
    const auto source = [&](int r) {
        return (r < ROWS ? min(row0 + r, n - 1) : min(token0 + r - ROWS, batch - 1)) * (unsigned)chunks;
    };
    unsigned from[PASSES], scale_from[SCALE_PASSES];
#pragma unroll
    for (int i = 0; i < PASSES; ++i) from[i] = source(thread / 8 + THREADS / 8 * i) * 8 + thread % 8;
#pragma unroll
    for (int i = 0; i < SCALE_PASSES; ++i) scale_from[i] = source(min(thread + THREADS * i, BOTH - 1));
    const auto start = [&](int c) {  // the copies of tile c
        unsigned char* slot = ring + c % STAGES * SLOT;
        if (c < chunks) {
#pragma unroll
            for (int i = 0; i < PASSES; ++i) {
                const int r = thread / 8 + THREADS / 8 * i;
                copy_async_16(place(slot, r, thread % 8), (THREADS / 8 * i < ROWS ? quants : xq) + (from[i] + c * 8u));
            }
#pragma unroll
            for (int i = 0; i < SCALE_PASSES; ++i) {
                const int r = thread + THREADS * i;
                if (BOTH % THREADS == 0 || r < BOTH)
                    copy_async_8(slot + BOTH * 128 + r * 8, (r < ROWS ? scales : xs) + (scale_from[i] + c));
            }
        }
        copy_async_commit();
    };

    float sum[ROW_TILES][TOKEN_TILES][4] = {};
#pragma unroll
    for (int c = 0; c < STAGES - 1; ++c) start(c);
    for (int c = 0; c < chunks; ++c) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();  // the tile is whole, and the one before it is done with
        start(c + STAGES - 1);
        unsigned char* slot = ring + c % STAGES * SLOT;
        const __half* scale = reinterpret_cast<const __half*>(slot + BOTH * 128);
#pragma unroll UNROLL
        for (int b = 0; b < 4; ++b) {  // blocks of 32 in the tile
            unsigned a[ROW_TILES][4];
            float ws[ROW_TILES][2];
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m) {
                load_matrix_x4(a[m], place(slot, m0 + 16 * m + lane % 16, 2 * b + lane / 16));
#pragma unroll
                for (int i = 0; i < 2; ++i) ws[m][i] = __half2float(scale[(m0 + 16 * m + lane / 4 + 8 * i) * 4 + b]);
            }
#pragma unroll
            for (int t = 0; t < TOKEN_TILES; t += 2) {
                unsigned x[4];  // of two tiles of tokens
                load_matrix_x4(x, place(slot, n0 + 8 * t + lane % 8 + lane / 16 * 8, 2 * b + lane / 8 % 2));
#pragma unroll
                for (int u = 0; u < 2; ++u) {
                    float s[2];
#pragma unroll
                    for (int i = 0; i < 2; ++i) s[i] = __half2float(scale[(n0 + 8 * (t + u) + lane % 4 * 2 + i) * 4 + b]);
#pragma unroll
                    for (int m = 0; m < ROW_TILES; ++m) {
                        int dot[4] = {MAGIC_BITS, MAGIC_BITS, MAGIC_BITS, MAGIC_BITS};
                        mma_m16n8k32_s8(dot, a[m], x + 2 * u);
#pragma unroll
                        for (int i = 0; i < 4; ++i)
                            sum[m][t + u][i] = fmaf(fmaf(__int_as_float(dot[i]), ws[m][i / 2], -MAGIC * ws[m][i / 2]),
                                                    s[i % 2], sum[m][t + u][i]);
                    }
                }
            }
        }
    }
    copy_async_wait<0>();
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
        for (int t = 0; t < TOKEN_TILES; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = row0 + m0 + 16 * m + lane / 4 + i / 2 * 8;
                const int token = token0 + n0 - ROWS + 8 * t + lane % 4 * 2 + i % 2;
                if (row < n && token < batch) y[(size_t)token * n + row] = __float2half(sum[m][t][i]);
            }
}
