// attention 4, mma: scores and weighted sums by the tensor cores, 16 queries a warp.
//
// Purpose  an instruction multiplies 16 x 16 by 16 x 8 numbers; scores, weights and sums stay in registers (FP32), for
//          the layout in which a product leaves its result is the one in which the next takes its left operand.
// Shapes   as rung 1, HEAD_DIM a multiple of 16 up to 256 (16 rows of output are HEAD_DIM / 2 registers a thread).
// Bytes    4 HEAD_DIM read for each 64 queries and each key that one of them sees.
// Launch   128 threads a block, grid heads x ceil(n / 64), latest queries first. (64 + 2 KEYS) rows of shared memory.
// Macros   HEAD_DIM = 128: width of a head;
//          KEYS = 64: keys a tile;
//          BF16 = 0: 1 for bfloat16 instead of FP16.
// Branch   a warp has 16 queries and a tile's keys are handled at once: loads, products, softmax, products. A key that
//          is not seen scores minus infinity, so only tiles at the edges of what is seen are looked at key by key.
#include "common/attention.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"

constexpr int WARPS = 4, QUERIES = 16 * WARPS, THREADS = 32 * WARPS;
constexpr int ROW = HEAD_DIM;  // elements from a row of shared memory to the next

__device__ inline void multiply(float* d, const unsigned* a, const unsigned* b) {
#if BF16
    mma_m16n8k16_bf16(d, a, b);
#else
    mma_m16n8k16_f16(d, a, b);
#endif
}

// Rows first ... of a matrix whose rows lie `stride` elements apart, to shared memory; zeros from row `end` on.
template <int ROWS>
__device__ inline void stage(Element* shared, const Element* from, int first, int end, size_t stride) {
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * (HEAD_DIM / 8); i += THREADS) {
        const int row = i / (HEAD_DIM / 8), d = i % (HEAD_DIM / 8) * 8;
        uint4 bits = make_uint4(0, 0, 0, 0);
        if (first + row < end) bits = *reinterpret_cast<const uint4*>(from + (first + row) * stride + d);
        *reinterpret_cast<uint4*>(shared + row * ROW + d) = bits;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_mma(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                     Element* __restrict__ out, int n, int context, int start, int heads, int kv_heads, int causal,
                     int window, float scale) {
    extern __shared__ __align__(128) Element shared[];
    Element *queries = shared, *keys = queries + QUERIES * ROW, *values = keys + KEYS * ROW;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.x;
    const int first = (gridDim.y - 1 - blockIdx.y) * QUERIES, q_index = first + 16 * warp + lane / 4;  // and q_index + 8
    const size_t q_stride = heads * (size_t)HEAD_DIM, stride = kv_heads * (size_t)HEAD_DIM;
    const size_t kv = head / (heads / kv_heads) * (size_t)HEAD_DIM;
    const int from = seen_from(start + first, context, causal, window).first;
    const int to = seen_from(start + min(first + QUERIES, n) - 1, context, causal, window).last;
    // Between these, every query of the block sees every key.
    const int all_from = seen_from(start + min(first + QUERIES, n) - 1, context, causal, window).first;
    const int all_to = seen_from(start + first, context, causal, window).last;
    float acc_o[HEAD_DIM / 8][4] = {}, row_max[2] = {NOTHING, NOTHING}, row_sum[2] = {};

    stage<QUERIES>(queries, q + head * (size_t)HEAD_DIM, first, n, q_stride);
    for (int tile = from; tile < to; tile += KEYS) {
        __syncthreads();
        stage<KEYS>(keys, k + kv, tile, to, stride);
        stage<KEYS>(values, v + kv, tile, to, stride);
        __syncthreads();

        float s[KEYS / 8][4] = {};
#pragma unroll
        for (int d = 0; d < HEAD_DIM; d += 16) {
            unsigned a[4], b[4];
            load_matrix_x4(a, queries + (16 * warp + lane % 16) * ROW + d + lane / 16 * 8);
#pragma unroll
            for (int key = 0; key < KEYS; key += 16) {
                load_matrix_x4(b, keys + (key + lane % 8 + lane / 16 * 8) * ROW + d + lane / 8 % 2 * 8);
                multiply(s[key / 8], a, b);
                multiply(s[key / 8 + 1], a, b + 2);
            }
        }

        if (tile < all_from || tile + KEYS > all_to)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const Seen seen = seen_from(start + q_index + 8 * half, context, causal, window);
#pragma unroll
                for (int i = 0; i < KEYS / 4; ++i) {
                    const int key = tile + i / 2 * 8 + lane % 4 * 2 + i % 2;
                    if (key < seen.first || key >= seen.last) s[i / 2][2 * half + i % 2] = NOTHING;
                }
            }

#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float new_max = row_max[half];
#pragma unroll
            for (int i = 0; i < KEYS / 4; ++i) new_max = fmaxf(new_max, s[i / 2][2 * half + i % 2]);
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 1));
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 2));
            const float base = new_max == NOTHING ? 0.0f : new_max * scale;  // a row that saw nothing weighs 0, not NaN
            const float rescale = exp2_approx(row_max[half] * scale - base);
            row_max[half] = new_max;
            row_sum[half] *= rescale;
#pragma unroll
            for (int i = 0; i < KEYS / 4; ++i) {
                float& p = s[i / 2][2 * half + i % 2];
                p = exp2_approx(fmaf(p, scale, -base));
                row_sum[half] += p;
            }
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 4; ++i) acc_o[i / 2][2 * half + i % 2] *= rescale;
        }

#pragma unroll
        for (int key = 0; key < KEYS; key += 16) {
            const float *left = s[key / 8], *right = s[key / 8 + 1];
            const unsigned a[4] = {rounded_pair(left[0], left[1]), rounded_pair(left[2], left[3]),
                                   rounded_pair(right[0], right[1]), rounded_pair(right[2], right[3])};
#pragma unroll
            for (int d = 0; d < HEAD_DIM; d += 16) {
                unsigned b[4];
                load_matrix_x4_transposed(b, values + (key + lane % 16) * ROW + d + lane / 16 * 8);
                multiply(acc_o[d / 8], a, b);
                multiply(acc_o[d / 8 + 1], a, b + 2);
            }
        }
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
        row_sum[half] += __shfl_xor_sync(0xffffffffu, row_sum[half], 1);
        row_sum[half] += __shfl_xor_sync(0xffffffffu, row_sum[half], 2);
        const float inv_sum = inverse(row_sum[half]);
        if (q_index + 8 * half >= n) continue;
        unsigned* row = reinterpret_cast<unsigned*>(out + (q_index + 8 * half) * q_stride + head * (size_t)HEAD_DIM);
#pragma unroll
        for (int d = 0; d < HEAD_DIM; d += 8)
            row[d / 2 + lane % 4] = rounded_pair(acc_o[d / 8][2 * half] * inv_sum, acc_o[d / 8][2 * half + 1] * inv_sum);
    }
}
