// decode_attention 4, cp async: keys and values stream through shared memory into the tensor cores.
//
// Purpose  a warp has STAGES - 1 times 16 keys and values on their way while it works on 16 others, and no thread waits
//          for another: each warp copies its own. The tensor cores make what is left of arithmetic small. Warps beyond
//          WARPS only help to add parts up, 16 of them at once (common/parts.cuh).
// Shapes   as rung 2; up to 8 of the query heads that share a key-value head to a block, HEAD_DIM a multiple of 16.
// Bytes    as rung 3 with GROUP = 8.
// Launch   256 threads a block, grid splits x kv_heads ceil(heads / kv_heads / 8). `arrived` as many as grid.y.
//          8 + WARPS STAGES 32 rows of HEAD_DIM + 8 elements of shared memory, which the outputs, 8 WARPS HEAD_DIM
//          floats, take over in the end.
// Macros   WARPS = 4: warps that read keys and values;
//          STAGES = 2: tiles of 16 keys and values in a warp's ring;
//          HEAD_DIM = 128: width of a head;
//          BF16 = 0: 1 for bfloat16 instead of FP16.
// Branch   the loop over keys: cp.async, then scores with the queries as the first operand (8 heads of 16 rows), whose
//          results are laid out as the second operand of transposed outputs: numbers by heads.
#include "common/arrive.cuh"
#include "common/attention.cuh"
#include "common/parts.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"

constexpr int THREADS = 256, ROW = HEAD_DIM + 8, HEADS = 8, KEYS = 16;

__device__ inline void multiply(float* d, const unsigned* a, const unsigned* b) {
#if BF16
    mma_m16n8k16_bf16(d, a, b);
#else
    mma_m16n8k16_f16(d, a, b);
#endif
}

// Start copying the rows of 16 keys; zeros from row `end` on.
__device__ inline void stage(Element* shared, const Element* from, int first, int end, size_t stride) {
#pragma unroll 8
    for (int i = threadIdx.x % 32; i < KEYS * (HEAD_DIM / 8); i += 32) {
        const int row = i / (HEAD_DIM / 8), d = i % (HEAD_DIM / 8) * 8;
        copy_async_16_or_zero(shared + row * ROW + d, from + (first + row) * stride + d, first + row < end);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    decode_attention_cp_async(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                           Element* __restrict__ out, const int* __restrict__ length, int capacity, int heads,
                           int kv_heads, int window, float scale, float* __restrict__ all_outputs,
                           Part* __restrict__ all_parts, unsigned* __restrict__ arrived) {
    extern __shared__ __align__(128) Element shared[];
    __shared__ Part parts[HEADS][WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = heads / kv_heads;
    const int blocks = (group + HEADS - 1) / HEADS, kv_head = blockIdx.y / blocks;
    const int head = kv_head * group + blockIdx.y % blocks * HEADS, count = min(HEADS, (kv_head + 1) * group - head);
    const size_t stride = kv_heads * (size_t)HEAD_DIM;
    const int last = min(*length, capacity) - 1;
    const Seen all = seen_from(last, last + 1, true, window), seen = part_of(all, blockIdx.x, gridDim.x);
    Element *const queries = shared, *const ring = queries + (HEADS + warp * STAGES * 2 * KEYS) * ROW;
    k += kv_head * HEAD_DIM;
    v += kv_head * HEAD_DIM;

    float acc_o[HEAD_DIM / 16][4] = {}, row_max = NOTHING, row_sum = 0.0f;
    // Lane / 4 is the head of a query's numbers and scores; lane % 4 * 2 and the next are the heads of its outputs.
    for (int i = threadIdx.x; i < HEADS * (HEAD_DIM / 8); i += THREADS) {
        const int h = i / (HEAD_DIM / 8), d = i % (HEAD_DIM / 8) * 8;
        copy_async_16_or_zero(queries + h * ROW + d, q + (head + h) * HEAD_DIM + d, h < count);
    }
    int tile = warp < WARPS ? seen.first + warp * KEYS : seen.last;  // the other warps help before and after
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        const int ahead = tile + s * WARPS * KEYS;
        if (warp < WARPS) {
            stage(ring + s * 2 * KEYS * ROW, k, ahead, seen.last, stride);
            stage(ring + (s * 2 + 1) * KEYS * ROW, v, ahead, seen.last, stride);
        }
        copy_async_commit();
    }
    copy_async_wait<STAGES - 2>();
    __syncthreads();  // queries have arrived
    for (int slot = 0; tile < seen.last; tile += WARPS * KEYS, slot = (slot + 1) % STAGES) {
        copy_async_wait<STAGES - 2>();
        __syncwarp();  // the other lanes' copies have arrived too, and the slot before has been read
        const int ahead = tile + (STAGES - 1) * WARPS * KEYS, next_slot = (slot + STAGES - 1) % STAGES;
        stage(ring + next_slot * 2 * KEYS * ROW, k, ahead, seen.last, stride);
        stage(ring + (next_slot * 2 + 1) * KEYS * ROW, v, ahead, seen.last, stride);
        copy_async_commit();
        const Element *keys = ring + slot * 2 * KEYS * ROW, *values = keys + KEYS * ROW;

        float s[2][4] = {};
#pragma unroll
        for (int d = 0; d < HEAD_DIM; d += 16) {
            unsigned b[4], half[2];
            load_matrix_x2(half, queries + lane % 8 * ROW + d + lane / 8 % 2 * 8);
            load_matrix_x4(b, keys + (lane % 8 + lane / 16 * 8) * ROW + d + lane / 8 % 2 * 8);
            const unsigned a[4] = {half[0], 0, half[1], 0};  // rows 8 to 15 are unused
            multiply(s[0], a, b);
            multiply(s[1], a, b + 2);
        }
        float p[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            p[i] = tile + i / 2 * 8 + lane % 4 * 2 + i % 2 < seen.last ? s[i / 2][i % 2] * scale : NOTHING;
        float new_max = fmaxf(fmaxf(fmaxf(row_max, p[0]), fmaxf(p[1], p[2])), p[3]);
        new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 1));
        new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 2));
        const float base = new_max == NOTHING ? 0.0f : new_max;
        if (__any_sync(0xffffffffu, new_max != row_max)) {
            const float rescale = exp2_approx(row_max - base);
            const float left = __shfl_sync(0xffffffffu, rescale, lane % 4 * 8);
            const float right = __shfl_sync(0xffffffffu, rescale, lane % 4 * 8 + 4);
            row_sum *= rescale;
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 4; ++i) acc_o[i / 4][i % 4] *= i % 2 ? right : left;
        }
        row_max = new_max;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            p[i] = exp2_approx(p[i] - base);
            row_sum += p[i];
        }
        const unsigned b[2] = {rounded_pair(p[0], p[1]), rounded_pair(p[2], p[3])};
#pragma unroll
        for (int d = 0; d < HEAD_DIM; d += 16) {
            unsigned a[4];
            load_matrix_x4_transposed(a, values + (lane % 8 + lane / 16 * 8) * ROW + d + lane / 8 % 2 * 8);
            multiply(acc_o[d / 16], a, b);
        }
    }
    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 1);
    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 2);
    copy_async_wait<0>();
    __syncthreads();  // keys and values have been read: outputs [heads][warps][HEAD_DIM] reuse their memory
    float* const outputs = reinterpret_cast<float*>(shared);
    if (lane % 4 == 0 && warp < WARPS) parts[lane / 4][warp] = {row_max, row_sum};
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 4; ++i)
        if (warp < WARPS)
            outputs[((lane % 4 * 2 + i % 2) * WARPS + warp) * HEAD_DIM + i / 4 * 16 + i % 4 / 2 * 8 + lane / 4] =
                acc_o[i / 4][i % 4];
    __syncthreads();
    for (int h = warp; h < count; h += THREADS / 32) {
        const size_t part = (head + h) * (size_t)gridDim.x + blockIdx.x;
        combine<HEAD_DIM>(all_outputs + part * HEAD_DIM, all_parts + part, outputs + h * WARPS * HEAD_DIM, parts[h],
                          WARPS);
    }
    if (!arrives_last(arrived + blockIdx.y, gridDim.x)) return;
    constexpr int PIECES = (HEAD_DIM + 127) / 128;
    for (int i = warp; i < count * PIECES; i += THREADS / 32) {
        const int h = head + i / PIECES;
        const size_t first_part = h * (size_t)gridDim.x;  // the head's first part
        combine_columns<HEAD_DIM>(i % PIECES * 128, out + h * HEAD_DIM, all_outputs + first_part * HEAD_DIM,
                                  all_parts + first_part, gridDim.x);
    }
}
