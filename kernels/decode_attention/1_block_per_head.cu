// decode_attention 1, block per head: a block for every query head reads the whole context.
//
// Purpose  one query against a cache: all a decoder's step does with a context, and nothing but reading. As many blocks
//          as heads leave most of the GPU idle, and heads that share keys and values each read them.
// Shapes   q, out [heads, HEAD_DIM], k, v [capacity, kv_heads, HEAD_DIM] of FP16 (BF16=1: bfloat16); heads a multiple
//          of kv_heads. length [1] int: keys that count, read from memory so that a captured graph can be replayed; the
//          query is the last of them, and with a window sees the latest `window`. Past `capacity` nothing is read.
// Bytes    4 HEAD_DIM read for each key and query head.
// Launch   THREADS threads a block, `heads` blocks.
// Macros   THREADS = 256: threads a block;
//          HEAD_DIM = 128: width of a head;
//          BF16 = 0: 1 for bfloat16 instead of FP16.
// Below    this is the first rung.
#include "common/attention.cuh"
#include "common/ptx/exp2.cuh"
#include "common/reduce.cuh"

constexpr int WARPS = THREADS / 32, EACH = (HEAD_DIM + 31) / 32;  // numbers of a row that a lane holds

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    decode_attention_block_per_head(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                           Element* __restrict__ out, const int* __restrict__ length, int capacity, int heads,
                           int kv_heads, int window, float scale) {
    __shared__ __align__(16) float outputs[WARPS][HEAD_DIM];
    __shared__ Part parts[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.x;
    const int kv_head = head / (heads / kv_heads);
    const int last = min(*length, capacity) - 1;
    const Seen seen = seen_from(last, last + 1, true, window);
    float query[EACH], acc_o[EACH] = {}, row_max = NOTHING, row_sum = 0.0f;
#pragma unroll
    for (int e = 0; e < EACH; ++e)
        query[e] = lane + 32 * e < HEAD_DIM ? float(q[head * HEAD_DIM + lane + 32 * e]) : 0.0f;

#pragma unroll 2
    for (int key = seen.first + warp; key < seen.last; key += WARPS) {
        const size_t at = (key * (size_t)kv_heads + kv_head) * HEAD_DIM + lane;
        float score = 0.0f;
#pragma unroll
        for (int e = 0; e < EACH; ++e)
            if (lane + 32 * e < HEAD_DIM) score = fmaf(query[e], float(k[at + 32 * e]), score);
        score = warp_sum(score) * scale;
        const float new_max = fmaxf(row_max, score), rescale = exp2_approx(row_max - new_max);
        const float p = exp2_approx(score - new_max);
        row_max = new_max;
        row_sum = fmaf(row_sum, rescale, p);
#pragma unroll
        for (int e = 0; e < EACH; ++e)
            if (lane + 32 * e < HEAD_DIM) acc_o[e] = fmaf(acc_o[e], rescale, p * float(v[at + 32 * e]));
    }

    if (lane == 0) parts[warp] = {row_max, row_sum};
#pragma unroll
    for (int e = 0; e < EACH; ++e)
        if (lane + 32 * e < HEAD_DIM) outputs[warp][lane + 32 * e] = acc_o[e];
    __syncthreads();
    if (warp == 0) combine<HEAD_DIM>(out + head * HEAD_DIM, outputs[0], parts, WARPS);
}
