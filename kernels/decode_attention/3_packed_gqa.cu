// decode_attention 3, packed gqa: the query heads that share keys and values are handled together.
//
// Purpose  keys and values are read once and used GROUP times: grouped-query attention as it is meant.
// Shapes   as rung 2; GROUP divides heads / kv_heads, and GROUP HEAD_DIM is at most 1024 (registers).
// Bytes    4 HEAD_DIM read for each key, key-value head and GROUP of query heads; parts as in rung 2.
// Launch   THREADS threads a block, grid splits x heads / GROUP. `arrived` [heads / GROUP].
// Macros   THREADS = 256: threads a block;
//          GROUP = 4: query heads that a block handles together;
//          HEAD_DIM = 128: width of a head;
//          BF16 = 0: 1 for bfloat16 instead of FP16.
// Changed  a warp holds GROUP queries and outputs: one load of a key or value, GROUP uses.
#include "common/arrive.cuh"
#include "common/attention.cuh"
#include "common/ptx/exp2.cuh"
#include "common/reduce.cuh"

constexpr int WARPS = THREADS / 32, EACH = (HEAD_DIM + 31) / 32;  // numbers of a row that a lane holds

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    decode_attention_packed_gqa(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                           Element* __restrict__ out, const int* __restrict__ length, int capacity, int heads,
                           int kv_heads, int window, float scale, float* __restrict__ all_outputs,
                           Part* __restrict__ all_parts, unsigned* __restrict__ arrived) {
    __shared__ __align__(16) float outputs[WARPS][HEAD_DIM];
    __shared__ Part parts[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y * GROUP;  // the first of them
    const int kv_head = head / (heads / kv_heads);
    const int last = min(*length, capacity) - 1;
    const Seen all = seen_from(last, last + 1, true, window), seen = part_of(all, blockIdx.x, gridDim.x);
    float query[GROUP][EACH], acc_o[GROUP][EACH] = {}, row_max[GROUP], row_sum[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        row_max[g] = NOTHING, row_sum[g] = 0.0f;
#pragma unroll
        for (int e = 0; e < EACH; ++e)
            query[g][e] = lane + 32 * e < HEAD_DIM ? float(q[(head + g) * HEAD_DIM + lane + 32 * e]) : 0.0f;
    }

#pragma unroll 2
    for (int key = seen.first + warp; key < seen.last; key += WARPS) {
        const size_t at = (key * (size_t)kv_heads + kv_head) * HEAD_DIM + lane;
        float score[GROUP] = {}, keys[EACH], values[EACH];
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            keys[e] = lane + 32 * e < HEAD_DIM ? float(k[at + 32 * e]) : 0.0f;
            values[e] = lane + 32 * e < HEAD_DIM ? float(v[at + 32 * e]) : 0.0f;
        }
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
#pragma unroll
            for (int e = 0; e < EACH; ++e) score[g] = fmaf(query[g][e], keys[e], score[g]);
            score[g] = warp_sum(score[g]) * scale;
            const float new_max = fmaxf(row_max[g], score[g]), rescale = exp2_approx(row_max[g] - new_max);
            const float p = exp2_approx(score[g] - new_max);
            row_max[g] = new_max;
            row_sum[g] = fmaf(row_sum[g], rescale, p);
#pragma unroll
            for (int e = 0; e < EACH; ++e) acc_o[g][e] = fmaf(acc_o[g][e], rescale, p * values[e]);
        }
    }

#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        const size_t part = (head + g) * (size_t)gridDim.x + blockIdx.x;
        __syncthreads();  // the head before is combined
        if (lane == 0) parts[warp] = {row_max[g], row_sum[g]};
#pragma unroll
        for (int e = 0; e < EACH; ++e)
            if (lane + 32 * e < HEAD_DIM) outputs[warp][lane + 32 * e] = acc_o[g][e];
        __syncthreads();
        if (warp == 0) combine<HEAD_DIM>(all_outputs + part * HEAD_DIM, all_parts + part, outputs[0], parts, WARPS);
    }
    if (!arrives_last(arrived + blockIdx.y, gridDim.x)) return;
    for (int h = head + warp; h < head + GROUP; h += WARPS) {
        const size_t first_part = h * (size_t)gridDim.x;  // the head's first part
        combine<HEAD_DIM>(out + h * HEAD_DIM, all_outputs + first_part * HEAD_DIM, all_parts + first_part, gridDim.x);
    }
}
