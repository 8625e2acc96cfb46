// attention 8, head dim slices: SLICES warps share 32 queries, each with its slice of HEAD_DIM.
//
// Purpose  wide heads: 32 rows of 512 outputs are more than a warp's registers. A warp holds WIDTH = HEAD_DIM / SLICES
//          columns, multiplies that slice of queries and keys, and hands its share of the scores on: each warp of the
//          group adds up and weighs 32 / SLICES queries, and the weights go back to all. No product is made twice.
// Shapes   as rung 6, HEAD_DIM = SLICES WIDTH with WIDTH up to 128; SLICES 2 or 4.
// Bytes    4 HEAD_DIM read for each 32 GROUPS queries and each key that one of them sees; SHARED_KV as in rung 6.
// Launch   32 SLICES GROUPS threads a block, grid heads x ceil(n / (32 GROUPS)). Rows of shared memory: 32 GROUPS
//          and 2 KEYS; for a group also 512 (SLICES - 1) KEYS / 4 bytes of scores, 64 KEYS of weights, 128 of factors.
// Macros   HEAD_DIM = 256: width of a head;
//          SLICES = 2: warps that share queries, each with a slice of HEAD_DIM: 2 or 4;
//          GROUPS = 2: groups of SLICES warps, 32 queries each;
//          KEYS = 32: keys a tile;
//          BF16 = 0: 1 for bfloat16 instead of FP16;
//          SHARED_KV = 0: 1 where v is k: one array serves as both.
// Branch   scores cross shared memory between the two products (never all of them: a tile's, and one barrier more), so
//          the softmax is spread over the warps and its results, weights and factors, are read by all.
#include "common/attention.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"

constexpr int QUERIES = 32 * GROUPS, THREADS = 32 * SLICES * GROUPS, WIDTH = HEAD_DIM / SLICES;
constexpr int EACH = 4 / SLICES;  // of the four sets of 8 rows (lane / 4) that a group has, how many a warp weighs
constexpr int ROW = HEAD_DIM + 8;  // elements from a row of shared memory to the next

__device__ inline void multiply(float* d, const unsigned* a, const unsigned* b) {
#if BF16
    mma_m16n8k16_bf16(d, a, b);
#else
    mma_m16n8k16_f16(d, a, b);
#endif
}

// Start copying rows first ... of a matrix whose rows lie `stride` elements apart; zeros from row `end` on.
template <int ROWS>
__device__ inline void stage(Element* shared, const Element* from, int first, int end, size_t stride) {
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * (HEAD_DIM / 8); i += THREADS) {
        const int row = i / (HEAD_DIM / 8), d = i % (HEAD_DIM / 8) * 8;
        copy_async_16_or_zero(shared + row * ROW + d, from + (first + row) * stride + d, first + row < end);
    }
    copy_async_commit();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_head_dim_slices(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                     Element* __restrict__ out, int n, int context, int start, int heads, int kv_heads, int causal,
                     int window, float scale) {
    extern __shared__ __align__(128) Element shared[];
    __shared__ float2 partial[GROUPS][4][SLICES - 1][KEYS / 8][32];
    __shared__ uint4 p_tiles[GROUPS][2][KEYS / 16][32];
    __shared__ float rescales[GROUPS][4][8];
    Element *queries = shared, *keys = queries + QUERIES * ROW, *values = keys + KEYS * ROW;
    const int lane = threadIdx.x % 32, slice = threadIdx.x / 32 % SLICES, group = threadIdx.x / 32 / SLICES;
    const int head = head_of_block(), first = (gridDim.y - 1 - blockIdx.y) * QUERIES;
    const int q_index = first + 32 * group + lane / 4, column = slice * WIDTH;  // queries q_index, + 8, 16, 24
    const size_t q_stride = heads * (size_t)HEAD_DIM, stride = kv_heads * (size_t)HEAD_DIM;
    const size_t kv = head / (heads / kv_heads) * (size_t)HEAD_DIM;
    const int from = seen_from(start + first, context, causal, window).first;
    const int to = seen_from(start + min(first + QUERIES, n) - 1, context, causal, window).last;
    // Between these, every query of the block sees every key.
    const int all_from = seen_from(start + min(first + QUERIES, n) - 1, context, causal, window).first;
    const int all_to = seen_from(start + first, context, causal, window).last;
    float acc_o[2][WIDTH / 8][4] = {}, row_max[EACH], row_sum[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) row_max[e] = NOTHING, row_sum[e] = 0.0f;

    stage<QUERIES>(queries, q + head * (size_t)HEAD_DIM, first, n, q_stride);
    stage<KEYS>(keys, k + kv, from, to, stride);
    for (int tile = from; tile < to; tile += KEYS) {
        copy_async_wait<0>();
        __syncthreads();  // keys have arrived, and the other buffer has been read
        if (SHARED_KV)
            stage<KEYS>(values, k + kv, tile + KEYS, to, stride);  // the next tile's keys
        else
            stage<KEYS>(values, v + kv, tile, to, stride);

        float s[2][KEYS / 8][4] = {};
#pragma unroll
        for (int d = 0; d < WIDTH; d += 16) {
            unsigned a[2][4], b[4];
            load_matrix_x4(a[0], queries + (32 * group + lane % 16) * ROW + column + d + lane / 16 * 8);
            load_matrix_x4(a[1], queries + (32 * group + 16 + lane % 16) * ROW + column + d + lane / 16 * 8);
#pragma unroll
            for (int key = 0; key < KEYS; key += 16) {
                load_matrix_x4(b, keys + (key + lane % 8 + lane / 16 * 8) * ROW + column + d + lane / 8 % 2 * 8);
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    multiply(s[m][key / 8], a[m], b);
                    multiply(s[m][key / 8 + 1], a[m], b + 2);
                }
            }
        }

        // Each set of rows goes to the warp that weighs it.
        float own[EACH][KEYS / 8][2];
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) {
                const float* pair = s[r / 2][j] + r % 2 * 2;
                if (slice == r / EACH)
                    own[r % EACH][j][0] = pair[0], own[r % EACH][j][1] = pair[1];
                else
                    partial[group][r][slice - (slice > r / EACH)][j][lane] = make_float2(pair[0], pair[1]);
            }
        __syncthreads();  // scores have arrived, and the keys have been read
        if (!SHARED_KV) stage<KEYS>(keys, k + kv, tile + KEYS, to, stride);

#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int r = slice * EACH + e;
            const Seen seen = seen_from(start + q_index + 8 * r, context, causal, window);
            const bool edge = tile < all_from || tile + KEYS > all_to;
            float new_max = row_max[e];
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int key = tile + 8 * j + lane % 4 * 2 + i;
#pragma unroll
                    for (int other = 0; other < SLICES - 1; ++other)
                        own[e][j][i] += i ? partial[group][r][other][j][lane].y : partial[group][r][other][j][lane].x;
                    if (edge && (key < seen.first || key >= seen.last)) own[e][j][i] = NOTHING;
                    new_max = fmaxf(new_max, own[e][j][i]);
                }
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 1));
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 2));
            const float base = new_max == NOTHING ? 0.0f : new_max * scale;  // a row without visible keys gets p = 0, not NaN
            const float rescale = exp2_approx(row_max[e] * scale - base);
            row_max[e] = new_max;
            row_sum[e] *= rescale;
            if (lane % 4 == 0) rescales[group][r][lane / 4] = rescale;
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) {
                const float left = exp2_approx(fmaf(own[e][j][0], scale, -base));
                const float right = exp2_approx(fmaf(own[e][j][1], scale, -base));
                row_sum[e] += left + right;
                reinterpret_cast<unsigned*>(&p_tiles[group][r / 2][j / 2][lane])[r % 2 + j % 2 * 2] =
                    rounded_pair(left, right);
            }
        }
        if (SHARED_KV) {
            Element* const next = values;
            values = keys, keys = next;
        } else {
            copy_async_wait<1>();
        }
        __syncthreads();  // p and values have arrived
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const float rescale = rescales[group][r][lane / 4];
            if (__any_sync(0xffffffffu, rescale != 1.0f))
#pragma unroll
                for (int i = 0; i < WIDTH / 4; ++i) acc_o[r / 2][i / 2][r % 2 * 2 + i % 2] *= rescale;
        }
#pragma unroll
        for (int key = 0; key < KEYS; key += 16) {
            const uint4 a[2] = {p_tiles[group][0][key / 16][lane], p_tiles[group][1][key / 16][lane]};
#pragma unroll
            for (int d = 0; d < WIDTH; d += 16) {
                unsigned b[4];
                load_matrix_x4_transposed(b, values + (key + lane % 16) * ROW + column + d + lane / 16 * 8);
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    multiply(acc_o[m][d / 8], &a[m].x, b);
                    multiply(acc_o[m][d / 8 + 1], &a[m].x, b + 2);
                }
            }
        }
    }

#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        row_sum[e] += __shfl_xor_sync(0xffffffffu, row_sum[e], 1);
        row_sum[e] += __shfl_xor_sync(0xffffffffu, row_sum[e], 2);
    }
    __syncthreads();  // the last factors have been read
#pragma unroll
    for (int e = 0; e < EACH; ++e)
        if (lane % 4 == 0) rescales[group][slice * EACH + e][lane / 4] = inverse(row_sum[e]);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        const float inv_sum = rescales[group][r][lane / 4];
        if (q_index + 8 * r >= n) continue;
        const size_t row = (q_index + 8 * r) * q_stride + head * (size_t)HEAD_DIM + column;
#pragma unroll
        for (int d = 0; d < WIDTH; d += 8)
            reinterpret_cast<unsigned*>(out + row + d)[lane % 4] =
                rounded_pair(acc_o[r / 2][d / 8][r % 2 * 2] * inv_sum, acc_o[r / 2][d / 8][r % 2 * 2 + 1] * inv_sum);
    }
}
