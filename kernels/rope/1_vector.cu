// rope 1, vector: a prompt's queries, keys and values get their biases and rotations, and keys and values their
// place in the cache.
//
// Purpose  the product of a prompt with queries', keys' and values' weights leaves rows without biases and RoPE; one kernel
//          reads them once and writes everything where attention reads it.
// Shapes   rows [n][(heads + 2 kv_heads) HEAD_DIM] half, in the order of rooflab.ops.decoder.pair_heads, as biases;
//          rotary [..][HEAD_DIM / 2] cosine and sine; queries [n][heads][HEAD_DIM], keys and values [n][kv_heads][HEAD_DIM]
//          half. Rows are at positions from `start` on; or, if `step`, all at `position`, a token of n sequences each,
//          and keys and values are all of a cache [..][n][kv_heads][HEAD_DIM]. 16-byte aligned, HEAD_DIM a multiple of 16.
// Bytes    4 n (heads + 2 kv_heads) HEAD_DIM, and rotations.
// Launch   THREADS threads a block, a thread for 8 numbers and their 8 partners, blocks to cover them, n in grid.y.
// Macros   THREADS = 128: threads a block.
// Below    nothing: torch's operators.
#include <cuda_fp16.h>

union Eight {
    uint4 bits;
    __half halves[8];
};

extern "C" __global__ void __launch_bounds__(THREADS)
    rope_vector(const uint4* __restrict__ rows, const uint4* __restrict__ biases,
                       const float2* __restrict__ rotary, const int* __restrict__ position,
                       __half* __restrict__ queries, __half* __restrict__ keys, __half* __restrict__ values, int heads,
                       int kv_heads, int head_dim, int start, int step) {
    const int unit = blockIdx.x * THREADS + threadIdx.x, each = head_dim / 16, units = (heads + 2 * kv_heads) * each;
    if (unit >= units) return;
    const int head = unit / each, i = unit % each * 8;
    const size_t row = blockIdx.y, pos = step ? *position : start + row, cached = step ? pos * gridDim.y + row : row;
    Eight low, high, low_bias, high_bias;
    low.bits = rows[(row * units + unit) * 2];
    high.bits = rows[(row * units + unit) * 2 + 1];
    low_bias.bits = biases[unit * 2];
    high_bias.bits = biases[unit * 2 + 1];
    const float2* cos_sin_row = rotary + pos * (head_dim / 2) + i;
    const bool rotated = head < heads + kv_heads;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const float2 cos_sin = rotated ? cos_sin_row[j] : make_float2(1.0f, 0.0f);
        const float a = __half2float(low.halves[j]) + __half2float(low_bias.halves[j]);
        const float b = __half2float(high.halves[j]) + __half2float(high_bias.halves[j]);
        low.halves[j] = __float2half(a * cos_sin.x - b * cos_sin.y);
        high.halves[j] = __float2half(b * cos_sin.x + a * cos_sin.y);
    }
    __half* to = queries + (row * heads + head) * head_dim;
    if (head >= heads) to = keys + (cached * kv_heads + head - heads) * head_dim;
    if (head >= heads + kv_heads) to = values + (cached * kv_heads + head - heads - kv_heads) * head_dim;
    *reinterpret_cast<uint4*>(to + i) = low.bits;
    *reinterpret_cast<uint4*>(to + head_dim / 2 + i) = high.bits;
}
