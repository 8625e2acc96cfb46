// embedding 1, vector: tokens' rows of an embedding as the residual that the first layer reads.
//
// Purpose  a prompt's rows are small, so launches are most of what a kernel a token costs; one takes all of them.
// Shapes   table [vocab][width] half, or int8 with scales [vocab][width / 32] half; tokens [..] int32, of which those from
//          `first` on count, or if `step` the `count` at `position`; residual [count][width] float, rows from `first` on or
//          if `step` from 0. width a multiple of 32, all 16-byte aligned. With HANDED, given [HANDED] int32 = those of asked.
// Bytes    a token's row, 2 width or 34/32 width, and 4 width written.
// Launch   THREADS threads a block, a block a token, a thread for 8 numbers at a time.
// Macros   THREADS = 128: threads a block;
//          FORMAT = 0: of the table: 0 FP16, 1 Q8_0 in planes;
//          HANDED = 0: words that the host asks with, copied for the kernels behind this one. They and tokens may be in the
//          host's memory: a copy before this kernel would be a launch of its own.
// Below    nothing: torch's operators, and lesson 05's embed on GGUF blocks.
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
    embedding_vector(const void* __restrict__ table, const __half* __restrict__ scales, const int* __restrict__ tokens,
                      const int* __restrict__ position, float* __restrict__ residual, int width, int first, int step,
                      const int* __restrict__ asked, int* __restrict__ given) {
    if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < HANDED; i += THREADS) given[i] = asked[i];
    const size_t row = (step ? 0 : first) + blockIdx.x;
    const int token = tokens[step ? (size_t)*position * gridDim.x + row : row];
    float4* to = reinterpret_cast<float4*>(residual + row * width);
    for (int i = threadIdx.x; i < width / 8; i += THREADS) {
        const size_t from = (size_t)token * (width / 8) + i;
        float v[8];
        if (FORMAT == 0) {
            const uint4 bits = reinterpret_cast<const uint4*>(table)[from];
            const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(words + j));
                v[2 * j] = pair.x, v[2 * j + 1] = pair.y;
            }
        } else {
            const uint2 bits = reinterpret_cast<const uint2*>(table)[from];
            const float scale = __half2float(scales[from / 4]);
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const unsigned word = j < 4 ? bits.x : bits.y;
                v[j] = scale * static_cast<float>(static_cast<signed char>(word >> 8 * (j % 4)));
            }
        }
        to[2 * i] = make_float4(v[0], v[1], v[2], v[3]);
        to[2 * i + 1] = make_float4(v[4], v[5], v[6], v[7]);
    }
}
