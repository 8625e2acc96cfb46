// batch_attention 1, pdl: decode_attention/4_cp_async for a batch, with all keys but the newest on their way before the
// kernel before has ended.
//
// Purpose  only the newest key and value of a sequence depend on the step: the others can be copied while the product that
//          makes queries still runs. With many sequences one block a key-value head is enough, and what its warps have
//          found meets in shared memory alone.
// Shapes   q [TOKENS][heads][HEAD_DIM] and out, all sequences' heads in a row; k and v [capacity][kv_heads][HEAD_DIM], as
//          wide as all sequences; length [1] int, keys that the first token sees, of which the last is new: each token
//          after it sees one more, which is new, too. Up to 8 of the queries that share a key-value head to a block,
//          HEAD_DIM a multiple of 16; all 16-byte aligned.
// Bytes    4 length kv_heads HEAD_DIM a group of 8 queries, and queries and outputs.
// Launch   32 WARPS threads a block, grid splits x kv_heads ceil(TOKENS heads / kv_heads / 8). `arrived` as many as grid.y.
//          8 + WARPS STAGES 32 rows of HEAD_DIM + 8 halves of shared memory, which the outputs, 8 WARPS (HEAD_DIM + 4) floats,
//          take over in the end. As a dependent of what makes q and the newest key and value.
// Macros   WARPS = 2: warps of a block;
//          STAGES = 2: tiles of 16 keys and values in a warp's ring;
//          HEAD_DIM = 128: width of a head;
//          TOKENS = 1: successive tokens of one sequence that are checked at once.
// Below    decode_attention/4_cp_async, which starts when its queries are there.
#include "common/arrive.cuh"
#include "common/attention.cuh"
#include "common/parts.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/dependent_launch.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"

constexpr int THREADS = 32 * WARPS, ROW = HEAD_DIM + 8, HEADS = 8, KEYS = 16, LANES = HEAD_DIM / 8;
constexpr int PADDED = HEAD_DIM + 4;  // of outputs [warps][heads][HEAD_DIM]: what lanes write together lies in other banks

// Start copying the rows of 16 keys and 16 values; zeros from row `end` on. New keys, from `fresh` to there, are left alone.
__device__ inline void stage(Element* shared, const Element* k, const Element* v, int first, int end, int fresh, size_t stride) {
#pragma unroll 4
    for (int i = threadIdx.x % 32; i < KEYS * LANES; i += 32) {
        const int row = i / LANES, d = i % LANES * 8;
        if (first + row >= fresh && first + row < end) continue;
        const size_t from = (first + row) * stride + d;
        copy_async_16_or_zero(shared + row * ROW + d, k + from, first + row < end);
        copy_async_16_or_zero(shared + (KEYS + row) * ROW + d, v + from, first + row < end);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    batch_attention_pdl(const Element* q, const Element* k, const Element* v, Element* __restrict__ out, const int* length,
                        int capacity, int heads, int kv_heads, float scale, float* all_outputs, Part* all_parts,
                        unsigned* arrived) {
    extern __shared__ __align__(128) Element shared[];
    __shared__ Part parts[HEADS][WARPS];
    let_successor_start();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = heads / kv_heads;
    const int blocks = (TOKENS * group + HEADS - 1) / HEADS, kv_head = blockIdx.y / blocks;
    const int query = blockIdx.y % blocks * HEADS, count = min(HEADS, TOKENS * group - query);  // of all tokens' queries
    const auto token_of = [&](int i) { return TOKENS == 1 ? 0 : (query + i) / group; };
    const auto head_of = [&](int i) { return token_of(i) * (heads - group) + kv_head * group + query + i; };
    const size_t stride = kv_heads * (size_t)HEAD_DIM;
    const int fresh = min(__ldcg(length), capacity) - 1;  // the same all through a step
    const Seen seen = part_of({0, min(fresh + 1 + token_of(count - 1), capacity)}, blockIdx.x, gridDim.x);
    const int end = TOKENS == 1 ? seen.last : min(seen.last, fresh + 1 + token_of(min(lane / 4, count - 1)));
    Element *const queries = shared, *const ring = queries + (HEADS + warp * STAGES * 2 * KEYS) * ROW;
    k += kv_head * HEAD_DIM;
    v += kv_head * HEAD_DIM;

    float acc_o[HEAD_DIM / 16][4] = {}, row_max = NOTHING, row_sum = 0.0f;
    int tile = seen.first + warp * KEYS;
#pragma unroll 1
    for (int s = 0; s < STAGES; ++s) {
        const int first = tile + s * WARPS * KEYS;
        if (first < seen.last) stage(ring + s * 2 * KEYS * ROW, k, v, first, seen.last, fresh, stride);
    }
    wait_for_predecessor();
    for (int i = threadIdx.x; i < HEADS * LANES; i += THREADS) {
        const int h = i / LANES, d = i % LANES * 8;
        copy_async_16_or_zero(queries + h * ROW + d, q + head_of(min(h, count - 1)) * HEAD_DIM + d, h < count);
    }
#pragma unroll 1
    for (int key = fresh; key < seen.last && key < fresh + TOKENS; ++key) {
        if (key < tile || (key - tile) / KEYS % WARPS || key - tile >= STAGES * WARPS * KEYS) continue;
        Element* const row = ring + ((key - tile) / (WARPS * KEYS) * 2 * KEYS + (key - tile) % KEYS) * ROW;
        for (int i = lane; i < 2 * LANES; i += 32)
            copy_async_16(row + (i / LANES * KEYS) * ROW + i % LANES * 8, (i < LANES ? k : v) + key * stride + i % LANES * 8);
    }
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();  // queries have arrived, and what every warp has in its ring
    for (int slot = 0; tile < seen.last; tile += WARPS * KEYS, slot = slot + 1 == STAGES ? 0 : slot + 1) {
        copy_async_wait<STAGES - 1>();
        __syncwarp();  // the other lanes' copies have arrived too
        Element *const keys = ring + slot * 2 * KEYS * ROW, *const values = keys + KEYS * ROW;

        float s[2][4] = {};
#pragma unroll
        for (int d = 0; d < HEAD_DIM; d += 16) {
            unsigned b[4], half[2];
            load_matrix_x2(half, queries + lane % 8 * ROW + d + lane / 8 % 2 * 8);
            load_matrix_x4(b, keys + (lane % 8 + lane / 16 * 8) * ROW + d + lane / 8 % 2 * 8);
            const unsigned a[4] = {half[0], 0, half[1], 0};  // rows 8 to 15 are unused
            mma_m16n8k16_f16(s[0], a, b);
            mma_m16n8k16_f16(s[1], a, b + 2);
        }
        float p[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            p[i] = tile + i / 2 * 8 + lane % 4 * 2 + i % 2 < end ? s[i / 2][i % 2] * scale : NOTHING;
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
            mma_m16n8k16_f16(acc_o[d / 16], a, b);
        }
        __syncwarp();  // all lanes have read the slot
        const int ahead = tile + STAGES * WARPS * KEYS;
        if (ahead < seen.last) stage(keys, k, v, ahead, seen.last, seen.last, stride);
        copy_async_commit();
    }
    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 1);
    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 2);
    copy_async_wait<0>();
    __syncthreads();  // keys and values have been read: outputs reuse their memory
    float* const outputs = reinterpret_cast<float*>(shared);
    if (lane % 4 == 0) parts[lane / 4][warp] = {row_max, row_sum};
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 4; ++i)
        outputs[(warp * HEADS + lane % 4 * 2 + i % 2) * PADDED + i / 4 * 16 + i % 4 / 2 * 8 + lane / 4] = acc_o[i / 4][i % 4];
    __syncthreads();
    for (int h = warp; h < count; h += WARPS) {
        Part all = {-1e30f, 0.0f};
        float weights[WARPS];
#pragma unroll
        for (int w = 0; w < WARPS; ++w) all.row_max = fmaxf(all.row_max, parts[h][w].row_max);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            weights[w] = exp2_approx(parts[h][w].row_max - all.row_max);
            all.row_sum += parts[h][w].row_sum * weights[w];
        }
        const size_t part = head_of(h) * (size_t)gridDim.x + blockIdx.x;
        const float by = gridDim.x == 1 ? inverse(all.row_sum) : 1.0f;
        for (int d = lane * 4; d < HEAD_DIM; d += 128) {
            float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                const float4 o = *reinterpret_cast<const float4*>(outputs + (w * HEADS + h) * PADDED + d);
                sum.x = fmaf(weights[w], o.x, sum.x), sum.y = fmaf(weights[w], o.y, sum.y);
                sum.z = fmaf(weights[w], o.z, sum.z), sum.w = fmaf(weights[w], o.w, sum.w);
            }
            if (gridDim.x > 1)
                *reinterpret_cast<float4*>(all_outputs + part * HEAD_DIM + d) = sum;
            else
                *reinterpret_cast<uint2*>(out + head_of(h) * HEAD_DIM + d) =
                    make_uint2(rounded_pair(sum.x * by, sum.y * by), rounded_pair(sum.z * by, sum.w * by));
        }
        if (gridDim.x > 1 && lane == 0) all_parts[part] = all;
    }
    if (gridDim.x == 1 || !arrives_last(arrived + blockIdx.y, gridDim.x)) return;
    constexpr int PIECES = (HEAD_DIM + 127) / 128;
    for (int i = warp; i < count * PIECES; i += WARPS) {
        const int h = head_of(i / PIECES);
        const size_t first_part = h * (size_t)gridDim.x;  // the head's first part
        combine_columns<HEAD_DIM>(i % PIECES * 128, out + h * HEAD_DIM, all_outputs + first_part * HEAD_DIM,
                                  all_parts + first_part, gridDim.x);
    }
}
