// attention 3, half2: keys stay FP16 in shared memory, and a score takes two products an instruction.
//
// Purpose  half the instructions and half the shared memory of the scores; values and their sums stay FP32. A lane's
//          few products of a score add up in FP16, the 32 lanes' sums in FP32: a coarser score, a ladder of tolerances.
// Shapes   as rung 2, FP16 only.
// Bytes    as rung 2; a tile holds a third more keys.
// Launch   as rung 2 with QUERIES = 16.
// Macros   QUERIES = 16: queries a block, a warp each;
//          HEAD_DIM = 128: width of a head.
// Changed  a lane owns pairs of neighbours (so that a warp reads 128 bytes in a row), and K is not widened.
#include "common/attention.cuh"
#include "common/ptx/exp2.cuh"
#include "common/reduce.cuh"

constexpr int KEYS = 48 * 1024 / (6 * HEAD_DIM), PAIRS = HEAD_DIM / 2, EACH = (PAIRS + 31) / 32;

__device__ inline void stage(float* shared, const __half* from) {
    const uint4 bits = *reinterpret_cast<const uint4*>(from);
    const float2 a = widened_pair(bits.x), b = widened_pair(bits.y), c = widened_pair(bits.z), d = widened_pair(bits.w);
    reinterpret_cast<float4*>(shared)[0] = make_float4(a.x, a.y, b.x, b.y);
    reinterpret_cast<float4*>(shared)[1] = make_float4(c.x, c.y, d.x, d.y);
}

extern "C" __global__ void __launch_bounds__(32 * QUERIES, 1)
    attention_half2(const __half* __restrict__ q, const __half* __restrict__ k, const __half* __restrict__ v,
                    __half* __restrict__ out, int n, int context, int start, int heads, int kv_heads, int causal,
                    int window, float scale) {
    __shared__ __align__(16) __half2 keys[KEYS][PAIRS];
    __shared__ __align__(16) float2 values[KEYS][PAIRS];
    const int lane = threadIdx.x % 32, head = blockIdx.x, kv_head = head / (heads / kv_heads);
    const int first = (gridDim.y - 1 - blockIdx.y) * QUERIES, q_index = first + threadIdx.x / 32;
    const size_t row = (q_index * (size_t)heads + head) * HEAD_DIM;
    const Seen seen = q_index < n ? seen_from(start + q_index, context, causal, window) : Seen{0, 0};
    const int from = seen_from(start + first, context, causal, window).first;
    const int to = seen_from(start + min(first + QUERIES, n) - 1, context, causal, window).last;
    __half2 query[EACH];
    float2 acc_o[EACH] = {};
    float row_max = NOTHING, row_sum = 0.0f;
#pragma unroll
    for (int e = 0; e < EACH; ++e)
        query[e] = q_index < n && lane + 32 * e < PAIRS ? reinterpret_cast<const __half2*>(q + row)[lane + 32 * e]
                                                     : __float2half2_rn(0.0f);

    for (int tile = from; tile < to; tile += KEYS) {
        __syncthreads();
        for (int i = threadIdx.x; i < min(KEYS, to - tile) * (HEAD_DIM / 8); i += 32 * QUERIES) {
            const int key = i / (HEAD_DIM / 8), d = i % (HEAD_DIM / 8) * 8;
            const size_t at = ((tile + key) * (size_t)kv_heads + kv_head) * HEAD_DIM + d;
            *reinterpret_cast<uint4*>(&keys[key][d / 2]) = *reinterpret_cast<const uint4*>(k + at);
            stage(&values[key][d / 2].x, v + at);
        }
        __syncthreads();
        for (int key = max(seen.first - tile, 0); key < min(seen.last - tile, KEYS); ++key) {
            __half2 products = __float2half2_rn(0.0f);
#pragma unroll
            for (int e = 0; e < EACH; ++e)
                if (lane + 32 * e < PAIRS) products = __hfma2(query[e], keys[key][lane + 32 * e], products);
            const float2 both = __half22float2(products);
            const float score = warp_sum(both.x + both.y) * scale;
            const float new_max = fmaxf(row_max, score), rescale = exp2_approx(row_max - new_max);
            const float p = exp2_approx(score - new_max);
            row_max = new_max;
            row_sum = fmaf(row_sum, rescale, p);
#pragma unroll
            for (int e = 0; e < EACH; ++e)
                if (lane + 32 * e < PAIRS) {
                    const float2 value = values[key][lane + 32 * e];
                    acc_o[e].x = fmaf(acc_o[e].x, rescale, p * value.x);
                    acc_o[e].y = fmaf(acc_o[e].y, rescale, p * value.y);
                }
        }
    }

    if (q_index >= n) return;
#pragma unroll
    for (int e = 0; e < EACH; ++e)
        if (lane + 32 * e < PAIRS)
            reinterpret_cast<unsigned*>(out + row)[lane + 32 * e] =
                rounded_pair(acc_o[e].x * inverse(row_sum), acc_o[e].y * inverse(row_sum));
}
