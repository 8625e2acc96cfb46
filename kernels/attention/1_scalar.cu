// attention 1, scalar: a block for every query of every head.
//
// Purpose  the definition, with a softmax that is rescaled as larger scores come (online), so that no row of scores is
//          stored. Neighbouring queries see nearly the same keys, and every one of them reads its own.
// Shapes   q, out [n, heads, HEAD_DIM], k, v [context, kv_heads, HEAD_DIM] of FP16 (BF16=1: bfloat16), any n and
//          context; heads a multiple of kv_heads. Query i is at position start + i.
// Bytes    4 HEAD_DIM read for each query-key pair of each head: K and V as many times as queries see them.
// Launch   THREADS threads a block, grid n x heads; a warp takes every (THREADS / 32)-th key, a lane every 32nd number.
// Macros   THREADS = 256: threads a block;
//          HEAD_DIM = 128: width of a head;
//          BF16 = 0: 1 for bfloat16 instead of FP16.
// Below    this is the first rung.
#include "common/attention.cuh"
#include "common/ptx/exp2.cuh"
#include "common/reduce.cuh"

constexpr int WARPS = THREADS / 32, EACH = (HEAD_DIM + 31) / 32;  // numbers of a row that a lane holds

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_scalar(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                     Element* __restrict__ out, int n, int context, int start, int heads, int kv_heads, int causal,
                     int window, float scale) {
    __shared__ float warp_max[WARPS], warp_sums[WARPS], partial[WARPS][HEAD_DIM];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y;
    const int kv_head = head / (heads / kv_heads);
    const size_t row = (blockIdx.x * (size_t)heads + head) * HEAD_DIM;
    const Seen seen = seen_from(start + int(blockIdx.x), context, causal, window);
    float query[EACH], acc_o[EACH] = {}, row_max = NOTHING, row_sum = 0.0f;
#pragma unroll
    for (int e = 0; e < EACH; ++e) query[e] = lane + 32 * e < HEAD_DIM ? float(q[row + lane + 32 * e]) : 0.0f;

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

    if (lane == 0) warp_max[warp] = row_max, warp_sums[warp] = row_sum;
#pragma unroll
    for (int e = 0; e < EACH; ++e)
        if (lane + 32 * e < HEAD_DIM) partial[warp][lane + 32 * e] = acc_o[e];
    __syncthreads();
    float block_max = -1e30f, total = 0.0f;  // finite, so that a warp without keys adds 0 and not NaN
    for (int w = 0; w < WARPS; ++w) block_max = fmaxf(block_max, warp_max[w]);
    for (int w = 0; w < WARPS; ++w) total += warp_sums[w] * exp2_approx(warp_max[w] - block_max);
    for (int d = threadIdx.x; d < HEAD_DIM; d += THREADS) {
        float value = 0.0f;
        for (int w = 0; w < WARPS; ++w) value += partial[w][d] * exp2_approx(warp_max[w] - block_max);
        out[row + d] = Element(value * inverse(total));
    }
}
