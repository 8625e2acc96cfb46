// attention 2, tiled: QUERIES queries of a head share the keys and values that their block reads.
//
// Purpose  K and V go through shared memory a tile at a time and serve QUERIES queries: as many times fewer reads.
//          With 16 queries instead of 8 the traffic halves again; what that gains says whether reads are what it
//          waits for.
// Shapes   as rung 1, HEAD_DIM a multiple of 8 up to 512.
// Bytes    4 HEAD_DIM read for each tile of queries and each key that one of them sees.
// Launch   a warp a query, 32 QUERIES threads a block, grid heads x ceil(n / QUERIES), latest queries first:
//          they see the most keys, and the longest work should not start last. 48 KB of shared memory:
//          KEYS keys and values in FP32.
// Macros   QUERIES = 8: queries a block, a warp each;
//          HEAD_DIM = 128: width of a head;
//          BF16 = 0: 1 for bfloat16 instead of FP16;
//          INDEX = 0: how a piece of a tile finds its key: 0 divides by a constant, 1 by a number known only at run time,
//              as a kernel for every width would, 2 shifts and masks by such a number, which must be a power of two.
// Changed  a block has QUERIES queries, each a warp's own, and the loop over keys is cut into tiles.
#include "common/attention.cuh"
#include "common/ptx/exp2.cuh"
#include "common/reduce.cuh"

#if INDEX == 2 && (HEAD_DIM & (HEAD_DIM - 1))
#error "Shifts and masks take a head whose width is a power of two."
#endif

constexpr int KEYS = 48 * 1024 / (2 * 4 * HEAD_DIM), EACH = (HEAD_DIM + 31) / 32;

// Eight numbers from memory to shared memory, widened.
__device__ inline void stage(float* shared, const Element* from) {
    const uint4 bits = *reinterpret_cast<const uint4*>(from);
    const float2 a = widened_pair(bits.x), b = widened_pair(bits.y), c = widened_pair(bits.z), d = widened_pair(bits.w);
    reinterpret_cast<float4*>(shared)[0] = make_float4(a.x, a.y, b.x, b.y);
    reinterpret_cast<float4*>(shared)[1] = make_float4(c.x, c.y, d.x, d.y);
}

extern "C" __global__ void __launch_bounds__(32 * QUERIES, 1)
    attention_tiled(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                    Element* __restrict__ out, int n, int context, int start, int heads, int kv_heads, int causal,
                    int window, float scale) {
    __shared__ __align__(16) float keys[KEYS][HEAD_DIM], values[KEYS][HEAD_DIM];
    const int lane = threadIdx.x % 32, head = blockIdx.x, kv_head = head / (heads / kv_heads);
    const int first = (gridDim.y - 1 - blockIdx.y) * QUERIES, q_index = first + threadIdx.x / 32;
    const size_t row = (q_index * (size_t)heads + head) * HEAD_DIM;
    const Seen seen = q_index < n ? seen_from(start + q_index, context, causal, window) : Seen{0, 0};
    const int from = seen_from(start + first, context, causal, window).first;
    const int to = seen_from(start + min(first + QUERIES, n) - 1, context, causal, window).last;
    float query[EACH], acc_o[EACH] = {}, row_max = NOTHING, row_sum = 0.0f;
#pragma unroll
    for (int e = 0; e < EACH; ++e)
        query[e] = q_index < n && lane + 32 * e < HEAD_DIM ? float(q[row + lane + 32 * e]) : 0.0f;

#if INDEX
    const int pieces = HEAD_DIM / 8 + gridDim.z - 1;  // the same, but the compiler cannot know
    const int shift = __ffs(pieces) - 1;
#else
    constexpr int pieces = HEAD_DIM / 8, shift = 0;
#endif
    for (int tile = from; tile < to; tile += KEYS) {
        __syncthreads();
        for (int i = threadIdx.x; i < min(KEYS, to - tile) * (HEAD_DIM / 8); i += 32 * QUERIES) {
            const int key = INDEX == 2 ? i >> shift : i / pieces;
            const int d = (INDEX == 2 ? i & (pieces - 1) : i % pieces) * 8;
            const size_t at = ((tile + key) * (size_t)kv_heads + kv_head) * HEAD_DIM + d;
            stage(&keys[key][d], k + at);
            stage(&values[key][d], v + at);
        }
        __syncthreads();
        for (int key = max(seen.first - tile, 0); key < min(seen.last - tile, KEYS); ++key) {
            float score = 0.0f;
#pragma unroll
            for (int e = 0; e < EACH; ++e)
                if (lane + 32 * e < HEAD_DIM) score = fmaf(query[e], keys[key][lane + 32 * e], score);
            score = warp_sum(score) * scale;
            const float new_max = fmaxf(row_max, score), rescale = exp2_approx(row_max - new_max);
            const float p = exp2_approx(score - new_max);
            row_max = new_max;
            row_sum = fmaf(row_sum, rescale, p);
#pragma unroll
            for (int e = 0; e < EACH; ++e)
                if (lane + 32 * e < HEAD_DIM) acc_o[e] = fmaf(acc_o[e], rescale, p * values[key][lane + 32 * e]);
        }
    }

    if (q_index >= n) return;
#pragma unroll
    for (int e = 0; e < EACH; ++e)
        if (lane + 32 * e < HEAD_DIM) out[row + lane + 32 * e] = Element(acc_o[e] * inverse(row_sum));
}
