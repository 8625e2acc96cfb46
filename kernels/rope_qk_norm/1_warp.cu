// rope_qk_norm 1, warp: normalise every head of queries, keys and values, apply RoPE to queries and keys, and append keys and values
// to the cache.
//
// Purpose  everything between the QKV product and attention, for a prompt and for one token alike: the position comes
//          from the device.
// Shapes   rows [n][(heads + 2 kv_heads) HEAD_DIM] half, heads of queries, then of keys, then of values; kv_heads 0 where a
//          layer reads another one's cache; query_norm and key_norm [HEAD_DIM] half (values are normalised without
//          weights); rotary [..][HEAD_DIM / 2] cosine and sine, from position `place` on; queries [n][heads][HEAD_DIM] half;
//          keys and values [capacity][kv_heads][HEAD_DIM] half, written from `place` on. HEAD_DIM a multiple of 64.
// Bytes    4 n (heads + 2 kv_heads) HEAD_DIM, and rotations.
// Launch   THREADS threads a block, a warp a head, grid n x blocks to cover the heads.
// Macros   THREADS = 128: threads a block;
//          HEAD_DIM = 256: width of a head.
// Below    rope of the plain decoder, which has biases and no norms, and a place that the host knows.
#include <cuda_fp16.h>

#include "common/reduce.cuh"

constexpr int EACH = HEAD_DIM / 64, HALF = HEAD_DIM / 2;

extern "C" __global__ void __launch_bounds__(THREADS)
    rope_qk_norm_warp(const __half* __restrict__ rows, const __half* __restrict__ query_norm,
                   const __half* __restrict__ key_norm, const float2* __restrict__ rotary,
                   const int* __restrict__ place, __half* __restrict__ queries, __half* __restrict__ keys,
                   __half* __restrict__ values, int heads, int kv_heads, float epsilon) {
    const int head = (blockIdx.y * THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (head >= heads + 2 * kv_heads) return;
    const size_t row = blockIdx.x, position = *place + row;
    const bool rotated = head < heads + kv_heads;
    const __half* from = rows + (row * (heads + 2 * kv_heads) + head) * HEAD_DIM;
    const __half* weights = head < heads ? query_norm : key_norm;
    float low[EACH], high[EACH], squares = 0.0f;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        low[j] = __half2float(from[lane + 32 * j]);
        high[j] = __half2float(from[lane + 32 * j + HALF]);
        squares += low[j] * low[j] + high[j] * high[j];
    }
    const float by = rsqrtf(warp_sum(squares) / HEAD_DIM + epsilon);
    __half* to = queries + (row * heads + head) * HEAD_DIM;
    if (head >= heads) to = keys + (position * kv_heads + head - heads) * HEAD_DIM;
    if (!rotated) to = values + (position * kv_heads + head - heads - kv_heads) * HEAD_DIM;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const int d = lane + 32 * j;
        float a = low[j] * by, b = high[j] * by;
        if (rotated) {
            const float2 cos_sin = rotary[position * HALF + d];
            a *= __half2float(weights[d]);
            b *= __half2float(weights[d + HALF]);
            const float first = a * cos_sin.x - b * cos_sin.y;
            b = b * cos_sin.x + a * cos_sin.y;
            a = first;
        }
        to[d] = __float2half(a);
        to[d + HALF] = __float2half(b);
    }
}
