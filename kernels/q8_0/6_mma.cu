// q8_0 6, mma: 8 tokens a product by the int8 tensor cores, on tiles that wait in shared memory.
//
// Purpose  rung 5 spends an instruction on four products; a warp's mma makes 4096, and 8 tokens fill its width. With
//          TOKEN_TILES of them one reading of the weights serves up to 32.
// Shapes   quants [n][k] int8 and scales [n][k / 32] half, xq [batch][k] int8 and xs [batch][k / 32] half,
//          y [batch][n] half; batch at most 8 TOKEN_TILES, all 16-byte aligned, k a multiple of 128.
// Bytes    34/32 n k read; x and y beside.
// Launch   THREADS threads a block, ceil(n / (16 ROW_TILES)) blocks, whose warps divide k. Dynamic shared memory: for
//          each warp STAGES times 136 bytes a row and a token of the tile.
// Macros   THREADS = 128: threads a block;
//          STAGES = 3: tiles in a warp's ring;
//          ROW_TILES = 2: tiles of 16 rows a block;
//          TOKEN_TILES = 1: tiles of 8 tokens a block;
//          RESIDENT = 2: blocks an SM that the compiler must leave registers for.
// Changed  from rung 5: m16n8k32 for __dp4a, cp.async for loads. Each warp keeps a ring of STAGES tiles, 128 of k long,
//          and waits for no other warp until the end. A sum starts at 1.5 x 2^23, where a float's last bit is one: read as
//          a float it needs no conversion, and the fused multiply-add that scales it takes the start off again, exactly.
#include "common/ptx/cp_async.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/q8.cuh"

constexpr int WARPS = THREADS / 32, ROWS = 16 * ROW_TILES, TOKENS = 8 * TOKEN_TILES, BOTH = ROWS + TOKENS;
constexpr int SLOT = BOTH * 136;  // quants of rows, then of tokens, 128 bytes each; then scales, 8 bytes each

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    q8_0_mma(const uint4* __restrict__ quants, const uint2* __restrict__ scales, const uint4* __restrict__ xq,
             const uint2* __restrict__ xs, __half* __restrict__ y, int n, int k, int batch) {
    extern __shared__ __align__(128) unsigned char memory[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first_row = blockIdx.x * ROWS, chunks = k / 128;
    unsigned char* ring = memory + warp * STAGES * SLOT;

    // Start the copies of the warp's tile i; rows beyond the last repeat it, tokens are zeros, and neither are stored. (Were the
    // last token repeated, every block would read its one line of L2 again and again.)
    const auto start = [&](int i) {
        const int c = warp + i * WARPS;
        unsigned char* slot = ring + i % STAGES * SLOT;
        if (c < chunks) {
#pragma unroll
            for (int r = lane / 8; r < ROWS; r += 4)
                copy_async_16(place(slot, r, lane % 8), quants + ((size_t)min(first_row + r, n - 1) * chunks + c) * 8 + lane % 8);
#pragma unroll
            for (int r = lane / 8; r < TOKENS; r += 4)
                copy_async_16_or_zero(place(slot, ROWS + r, lane % 8), xq + ((size_t)r * chunks + c) * 8 + lane % 8, r < batch);
#pragma unroll
            for (int r = lane; r < BOTH; r += 32) {
                const uint2* from = r < ROWS ? scales + (size_t)min(first_row + r, n - 1) * chunks + c
                                             : xs + (size_t)(r - ROWS) * chunks + c;
                copy_async_8_or_zero(slot + BOTH * 128 + r * 8, from, r < ROWS + batch);
            }
        }
        copy_async_commit();
    };

    float sum[ROW_TILES][TOKEN_TILES][4] = {};
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) start(i);
    for (int i = 0; warp + i * WARPS < chunks; ++i) {
        copy_async_wait<STAGES - 2>();
        __syncwarp();  // the tile is whole, and the one before it is done with
        start(i + STAGES - 1);
        unsigned char* slot = ring + i % STAGES * SLOT;
        const __half* scale = reinterpret_cast<const __half*>(slot + BOTH * 128);
#pragma unroll
        for (int b = 0; b < 4; ++b) {  // blocks of 32 in the tile
            unsigned a[ROW_TILES][4];
            float ws[ROW_TILES][2];
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m) {
                load_matrix_x4(a[m], place(slot, 16 * m + lane % 16, 2 * b + lane / 16));
#pragma unroll
                for (int i = 0; i < 2; ++i) ws[m][i] = __half2float(scale[(16 * m + lane / 4 + 8 * i) * 4 + b]);
            }
#pragma unroll
            for (int t = 0; t < TOKEN_TILES; ++t) {
                unsigned x[2];
                load_matrix_x2(x, place(slot, ROWS + 8 * t + lane % 8, 2 * b + lane / 8 % 2));
                float s[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) s[i] = __half2float(scale[(ROWS + 8 * t + lane % 4 * 2 + i) * 4 + b]);
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m) {
                    int dot[4] = {MAGIC_BITS, MAGIC_BITS, MAGIC_BITS, MAGIC_BITS};
                    mma_m16n8k32_s8(dot, a[m], x);
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        sum[m][t][i] = fmaf(fmaf(__int_as_float(dot[i]), ws[m][i / 2], -MAGIC * ws[m][i / 2]), s[i % 2],
                                            sum[m][t][i]);
                }
            }
        }
    }
    copy_async_wait<0>();
    __syncthreads();
    float* sums = reinterpret_cast<float*>(memory);  // [WARPS][TOKENS][ROWS]
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
        for (int t = 0; t < TOKEN_TILES; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                sums[(warp * TOKENS + 8 * t + lane % 4 * 2 + i % 2) * ROWS + 16 * m + lane / 4 + i / 2 * 8] = sum[m][t][i];
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * TOKENS; i += THREADS) {
        float total = 0.0f;
#pragma unroll
        for (int part = 0; part < WARPS; ++part) total += sums[part * ROWS * TOKENS + i];
        const int row = first_row + i % ROWS, token = i / ROWS;
        if (row < n && token < batch) y[(size_t)token * n + row] = __float2half(total);
    }
}
