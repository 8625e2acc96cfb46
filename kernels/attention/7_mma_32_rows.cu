// attention 7, mma 32 rows: 32 queries a warp.
//
// Purpose  a fragment of keys or values from shared memory serves two products instead of one: shared memory, which
//          feeds rung 6's products, is asked for little more than half. Outputs are rescaled only when a score was
//          larger than all before, which is soon rare.
// Shapes   as rung 6, HEAD_DIM up to 128 (32 rows of output are HEAD_DIM registers a thread).
// Bytes    4 HEAD_DIM read for each 128 queries and each key that one of them sees.
// Launch   128 threads a block, grid heads x ceil(n / 128). 128 + 2 KEYS rows of shared memory.
// Macros   HEAD_DIM = 128: width of a head;
//          KEYS = 32: keys a tile;
//          BF16 = 0: 1 for bfloat16 instead of FP16;
//          SHARED_KV = 0: 1 where v is k: one array serves as both.
// Changed  two 16-row halves a warp, and a vote before outputs are rescaled.
#include "common/attention.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"

constexpr int WARPS = 4, QUERIES = 32 * WARPS, THREADS = 32 * WARPS;
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
    attention_mma_32_rows(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                     Element* __restrict__ out, int n, int context, int start, int heads, int kv_heads, int causal,
                     int window, float scale) {
    extern __shared__ __align__(128) Element shared[];
    Element *queries = shared, *keys = queries + QUERIES * ROW, *values = keys + KEYS * ROW;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = head_of_block();
    const int first = (gridDim.y - 1 - blockIdx.y) * QUERIES, q_index = first + 32 * warp + lane / 4;  // and + 8, 16, 24
    const size_t q_stride = heads * (size_t)HEAD_DIM, stride = kv_heads * (size_t)HEAD_DIM;
    const size_t kv = head / (heads / kv_heads) * (size_t)HEAD_DIM;
    const int from = seen_from(start + first, context, causal, window).first;
    const int to = seen_from(start + min(first + QUERIES, n) - 1, context, causal, window).last;
    // Between these, every query of the block sees every key.
    const int all_from = seen_from(start + min(first + QUERIES, n) - 1, context, causal, window).first;
    const int all_to = seen_from(start + first, context, causal, window).last;
    float acc_o[2][HEAD_DIM / 8][4] = {}, row_max[4] = {NOTHING, NOTHING, NOTHING, NOTHING}, row_sum[4] = {};

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
        for (int d = 0; d < HEAD_DIM; d += 16) {
            unsigned a[2][4], b[4];
            load_matrix_x4(a[0], queries + (32 * warp + lane % 16) * ROW + d + lane / 16 * 8);
            load_matrix_x4(a[1], queries + (32 * warp + 16 + lane % 16) * ROW + d + lane / 16 * 8);
#pragma unroll
            for (int key = 0; key < KEYS; key += 16) {
                load_matrix_x4(b, keys + (key + lane % 8 + lane / 16 * 8) * ROW + d + lane / 8 % 2 * 8);
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    multiply(s[m][key / 8], a[m], b);
                    multiply(s[m][key / 8 + 1], a[m], b + 2);
                }
            }
        }

        if (tile < all_from || tile + KEYS > all_to)
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const Seen seen = seen_from(start + q_index + 8 * r, context, causal, window);
#pragma unroll
                for (int i = 0; i < KEYS / 4; ++i) {
                    const int key = tile + i / 2 * 8 + lane % 4 * 2 + i % 2;
                    if (key < seen.first || key >= seen.last) s[r / 2][i / 2][r % 2 * 2 + i % 2] = NOTHING;
                }
            }

#pragma unroll
        for (int r = 0; r < 4; ++r) {
            float new_max = row_max[r];
#pragma unroll
            for (int i = 0; i < KEYS / 4; ++i) new_max = fmaxf(new_max, s[r / 2][i / 2][r % 2 * 2 + i % 2]);
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 1));
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 2));
            const float base = new_max == NOTHING ? 0.0f : new_max * scale;  // a row that saw nothing weighs 0, not NaN
            if (__any_sync(0xffffffffu, new_max != row_max[r])) {
                const float rescale = exp2_approx(row_max[r] * scale - base);
                row_sum[r] *= rescale;
#pragma unroll
                for (int i = 0; i < HEAD_DIM / 4; ++i) acc_o[r / 2][i / 2][r % 2 * 2 + i % 2] *= rescale;
            }
            row_max[r] = new_max;
#pragma unroll
            for (int i = 0; i < KEYS / 4; ++i) {
                float& p = s[r / 2][i / 2][r % 2 * 2 + i % 2];
                p = exp2_approx(fmaf(p, scale, -base));
                row_sum[r] += p;
            }
        }

        if (SHARED_KV) {
            Element* const next = values;
            values = keys, keys = next;
        } else {
            copy_async_wait<0>();
            __syncthreads();  // values have arrived, and the keys have been read
            stage<KEYS>(keys, k + kv, tile + KEYS, to, stride);
        }
#pragma unroll
        for (int key = 0; key < KEYS; key += 16) {
            unsigned a[2][4];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float* pair = s[i / 4][key / 8 + i / 2 % 2] + i % 2 * 2;
                a[i / 4][i % 4] = rounded_pair(pair[0], pair[1]);
            }
#pragma unroll
            for (int d = 0; d < HEAD_DIM; d += 16) {
                unsigned b[4];
                load_matrix_x4_transposed(b, values + (key + lane % 16) * ROW + d + lane / 16 * 8);
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    multiply(acc_o[m][d / 8], a[m], b);
                    multiply(acc_o[m][d / 8 + 1], a[m], b + 2);
                }
            }
        }
    }

#pragma unroll
    for (int r = 0; r < 4; ++r) {
        row_sum[r] += __shfl_xor_sync(0xffffffffu, row_sum[r], 1);
        row_sum[r] += __shfl_xor_sync(0xffffffffu, row_sum[r], 2);
        const float inv_sum = inverse(row_sum[r]);
        if (q_index + 8 * r >= n) continue;
        unsigned* row = reinterpret_cast<unsigned*>(out + (q_index + 8 * r) * q_stride + head * (size_t)HEAD_DIM);
#pragma unroll
        for (int d = 0; d < HEAD_DIM; d += 8)
            row[d / 2 + lane % 4] = rounded_pair(acc_o[r / 2][d / 8][r % 2 * 2] * inv_sum, acc_o[r / 2][d / 8][r % 2 * 2 + 1] * inv_sum);
    }
}
