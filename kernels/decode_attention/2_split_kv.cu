// decode_attention 2, split kv: the context is cut into parts, a block each.
//
// Purpose  enough blocks for the whole GPU. The last block of a head to finish combines its parts, in the order of the
//          parts, not of arrival: the same bits each time, and no second launch.
// Shapes   as rung 1; outputs [heads, splits, HEAD_DIM] float and parts [heads, splits] of two floats are the
//          workspace; arrived [heads] starts at zero and is zero again afterwards.
// Bytes    as rung 1, and 8 HEAD_DIM for each part and head.
// Launch   THREADS threads a block, grid splits x heads.
// Macros   THREADS = 256: threads a block;
//          HEAD_DIM = 128: width of a head;
//          BF16 = 0: 1 for bfloat16 instead of FP16.
// Changed  blockIdx.x chooses a part of the keys; results go through memory to the block that arrives last.
#include "common/arrive.cuh"
#include "common/attention.cuh"
#include "common/ptx/exp2.cuh"
#include "common/reduce.cuh"

constexpr int WARPS = THREADS / 32, EACH = (HEAD_DIM + 31) / 32;  // numbers of a row that a lane holds

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    decode_attention_split_kv(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                           Element* __restrict__ out, const int* __restrict__ length, int capacity, int heads,
                           int kv_heads, int window, float scale, float* __restrict__ all_outputs,
                           Part* __restrict__ all_parts, unsigned* __restrict__ arrived) {
    __shared__ __align__(16) float outputs[WARPS][HEAD_DIM];
    __shared__ Part parts[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y;
    const int kv_head = head / (heads / kv_heads);
    const int last = min(*length, capacity) - 1;
    const Seen all = seen_from(last, last + 1, true, window), seen = part_of(all, blockIdx.x, gridDim.x);
    const size_t first_part = head * (size_t)gridDim.x;  // the head's first part
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
    const size_t part = first_part + blockIdx.x;
    if (warp == 0) combine<HEAD_DIM>(all_outputs + part * HEAD_DIM, all_parts + part, outputs[0], parts, WARPS);
    if (arrives_last(arrived + head, gridDim.x) && warp == 0)
        combine<HEAD_DIM>(out + head * HEAD_DIM, all_outputs + first_part * HEAD_DIM, all_parts + first_part, gridDim.x);
}
