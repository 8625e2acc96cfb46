// dequantise_tiles 1, block: INT4 weights in tile order to FP16 rows in DRAM.
//
// Purpose  a prompt's products want halves in rows; where weights lie in the order that decoding reads them in, their words
//          are a tensor core's operands, and their rows meet in shared memory.
// Shapes   blocks [n / 64][k / 128][1056] words (rooflab.ops.int4.repack), out [n][k] half; 16-byte aligned.
// Bytes    n k / 2 + n k / 64 read, 2 n k written.
// Launch   256 threads a block, a block a tile: (k / 128, n / 64) blocks.
// Below    lesson 04's int4_dequantise, on weights in row order.
#include "common/int4.cuh"

constexpr int ROW = 136;  // halves of a row in shared memory: 16 bytes more than 128, so that rows start in other banks

extern "C" __global__ void __launch_bounds__(256)
    dequantise_tiles_block(const uint4* __restrict__ blocks, uint4* __restrict__ out, int k) {
    __shared__ __align__(16) __half rows[64 * ROW];
    const uint4* block = blocks + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * INT4_BLOCK;
    const int m = threadIdx.x / 64, half = threadIdx.x / 32 % 2, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint4 bits = block[INT4_SCALES + threadIdx.x];
    const __half2 scales = reinterpret_cast<const __half2*>(block)[g * 4 + m];
    const __half2 scale[2] = {__low2half2(scales), __high2half2(scales)};  // of rows g and g + 8
    const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        unsigned a[4];
        int4_tile_to_halves(words[step], a);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            *reinterpret_cast<__half2*>(rows + (16 * m + 8 * (i % 2) + g) * ROW + 64 * half + 16 * step + 8 * (i / 2) +
                                        2 * t) = __hmul2(as_half2(a[i]), scale[i % 2]);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = threadIdx.x / 16 + 16 * i, column = threadIdx.x % 16;
        out[(((size_t)blockIdx.y * 64 + row) * k + (size_t)blockIdx.x * 128) / 8 + column] =
            *reinterpret_cast<const uint4*>(rows + row * ROW + 8 * column);
    }
}
