// attention 13, mbarrier ring: warps wait for tiles, not for each other.
//
// Purpose  a barrier for the whole block makes all its warps multiply together and compute exponentials together, and the tensor
//          cores idle meanwhile. Here a tile's keys and values lie in one of two slots, whose mbarriers count
//          copies that have arrived and threads that have read the slot. A warp may be half a tile ahead of another, so
//          that one's softmax runs beside another's products. One block for an SM shares what was copied twice before.
// Shapes   as rung 6, sm_80 and up, HEAD_DIM a multiple of 16 SLICES. A warp has 16 TALL queries and HEAD_DIM / SLICES
//          columns: TALL = 2 up to 128 columns, 1 up to 256 (16 by 128 outputs are 64 registers a thread).
// Bytes    4 HEAD_DIM read for each QUERIES and each key that one of them sees; SHARED_KV as in rung 6.
// Launch   32 WARPS threads a block, grid heads x ceil(n / QUERIES), QUERIES = 16 TALL WARPS / SLICES, latest first.
//          QUERIES + 4 KEYS rows of shared memory, 2 KEYS fewer with SHARED_KV.
// Macros   HEAD_DIM = 128: width of a head;
//          KEYS = 32: keys a tile;
//          WARPS = 4: warps a block;
//          TALL = 2: tiles of 16 queries a warp: 2 up to 128 columns, 1 up to 256;
//          SLICES = 1: warps that share queries, each with a slice of HEAD_DIM;
//          BF16 = 0: 1 for bfloat16 instead of FP16;
//          SHARED_KV = 0: 1 where v is k: one array serves as both.
// Branch   rung 7 with barriers that count arrivals (mbarrier, on this side of Hopper too) in the place of two for all.
//          SLICES = 2: two warps share queries, each with half of the columns; their scores are added up on the way.
#include "common/attention.cuh"
#include "common/ptx/arrivals.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"

constexpr int QUERIES = 16 * TALL * WARPS / SLICES, THREADS = 32 * WARPS, WIDTH = HEAD_DIM / SLICES;
constexpr int ROW = HEAD_DIM + 8;  // elements from a row of shared memory to the next
static_assert(HEAD_DIM % (16 * SLICES) == 0 && KEYS % 16 == 0 && WARPS % SLICES == 0 && SLICES <= 2, "no such tile");
constexpr int TILE = (SHARED_KV ? 1 : 2) * KEYS * ROW;

__device__ inline void multiply(float* d, const unsigned* a, const unsigned* b) {
#if BF16
    mma_m16n8k16_bf16(d, a, b);
#else
    mma_m16n8k16_f16(d, a, b);
#endif
}

// Start copying rows first ... of a matrix whose rows lie `stride` elements apart; zeros from row `end` on. A thread has
// its columns, so that an address is one addition.
template <int ROWS>
__device__ inline void stage(Element* shared, const Element* from, int first, int end, size_t stride) {
    constexpr int PIECES = HEAD_DIM / 8, STEP = THREADS / PIECES;
    const int row = threadIdx.x / PIECES, d = threadIdx.x % PIECES * 8;
    if (row >= STEP) return;
    shared += row * ROW + d;
    from += (first + row) * stride + d;
    if (first + ROWS <= end) {
#pragma unroll
        for (int i = 0; i < ROWS; i += STEP, from += STEP * stride)
            if (ROWS % STEP == 0 || row + i < ROWS) copy_async_16(shared + i * ROW, from);
    } else {
#pragma unroll 1
        for (int i = 0; i < ROWS; i += STEP, from += STEP * stride)
            if (row + i < ROWS) copy_async_16_or_zero(shared + i * ROW, from, first + row + i < end);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_mbarrier_ring(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                   Element* __restrict__ out, int n, int context, int start, int heads, int kv_heads, int causal,
                   int window, float scale) {
    extern __shared__ __align__(128) Element shared[];
    __shared__ unsigned long long full[2], empty[2];
#if SLICES > 1
    __shared__ float4 partial[WARPS][TALL][KEYS / 8][32];
    __shared__ unsigned long long partial_full[WARPS / 2], partial_empty[WARPS / 2];
#endif
    Element *const queries = shared, *const ring = queries + QUERIES * ROW;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / SLICES, column = warp % SLICES * WIDTH;
    const int head = head_of_block(), first = (gridDim.y - 1 - blockIdx.y) * QUERIES;
    const int q_index = first + 16 * TALL * group + lane / 4;  // and + 8, or + 8, 16, 24
    const size_t q_stride = heads * (size_t)HEAD_DIM, stride = kv_heads * (size_t)HEAD_DIM;
    const size_t kv = head / (heads / kv_heads) * (size_t)HEAD_DIM;
    const int from = seen_from(start + first, context, causal, window).first;
    const int to = seen_from(start + min(first + QUERIES, n) - 1, context, causal, window).last;
    // Between these, every query of the block sees every key.
    const int all_from = seen_from(start + min(first + QUERIES, n) - 1, context, causal, window).first;
    const int all_to = seen_from(start + first, context, causal, window).last;
    float acc_o[TALL][WIDTH / 8][4] = {}, row_max[2 * TALL], row_sum[2 * TALL] = {};
#pragma unroll
    for (int r = 0; r < 2 * TALL; ++r) row_max[r] = NOTHING;

    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) arrivals_init(full + i, THREADS), arrivals_init(empty + i, THREADS);
#if SLICES > 1
        for (int i = 0; i < WARPS / 2; ++i) arrivals_init(partial_full + i, 64), arrivals_init(partial_empty + i, 64);
#endif
    }
    __syncthreads();
    const auto load_tile = [&](int tile, int slot) {
        Element* const to_here = ring + slot * TILE;
        stage<KEYS>(to_here, k + kv, tile, to, stride);
        if (!SHARED_KV) stage<KEYS>(to_here + KEYS * ROW, v + kv, tile, to, stride);
        arrivals_add_when_copied(full + slot);
    };
    if (from < to) {
        stage<QUERIES>(queries, q + head * (size_t)HEAD_DIM, first, n, q_stride);
        load_tile(from, 0);
    }
    for (int tile = from, step = 0; tile < to; tile += KEYS, ++step) {
        const Element *const keys = ring + step % 2 * TILE, *const values = SHARED_KV ? keys : keys + KEYS * ROW;
        arrivals_wait(full + step % 2, step / 2 % 2);

        float s[TALL][KEYS / 8][4] = {};
#pragma unroll
        for (int d = 0; d < WIDTH; d += 16) {
            unsigned a[TALL][4], b[4];
#pragma unroll
            for (int m = 0; m < TALL; ++m)
                load_matrix_x4(a[m], queries + (16 * (TALL * group + m) + lane % 16) * ROW + column + d + lane / 16 * 8);
#pragma unroll
            for (int key = 0; key < KEYS; key += 16) {
                load_matrix_x4(b, keys + (key + lane % 8 + lane / 16 * 8) * ROW + column + d + lane / 8 % 2 * 8);
#pragma unroll
                for (int m = 0; m < TALL; ++m) {
                    multiply(s[m][key / 8], a[m], b);
                    multiply(s[m][key / 8 + 1], a[m], b + 2);
                }
            }
        }

        if (tile + KEYS < to) {
            if (step) arrivals_wait(empty + (step + 1) % 2, (step - 1) / 2 % 2);  // all threads have read the tile before
            load_tile(tile + KEYS, (step + 1) % 2);
        }

#if SLICES > 1
        if (step) arrivals_wait(partial_empty + group, (step - 1) % 2);
#pragma unroll
        for (int m = 0; m < TALL; ++m)
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j)
                partial[warp][m][j][lane] = make_float4(s[m][j][0], s[m][j][1], s[m][j][2], s[m][j][3]);
        arrivals_add(partial_full + group);
        arrivals_wait(partial_full + group, step % 2);
#pragma unroll
        for (int m = 0; m < TALL; ++m)
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) {
                const float4 other = partial[warp ^ 1][m][j][lane];
                s[m][j][0] += other.x, s[m][j][1] += other.y, s[m][j][2] += other.z, s[m][j][3] += other.w;
            }
        arrivals_add(partial_empty + group);
#endif

        if (tile < all_from || tile + KEYS > all_to)
#pragma unroll
            for (int r = 0; r < 2 * TALL; ++r) {
                const Seen seen = seen_from(start + q_index + 8 * r, context, causal, window);
#pragma unroll
                for (int i = 0; i < KEYS / 4; ++i) {
                    const int key = tile + i / 2 * 8 + lane % 4 * 2 + i % 2;
                    if (key < seen.first || key >= seen.last) s[r / 2][i / 2][r % 2 * 2 + i % 2] = NOTHING;
                }
            }

#pragma unroll
        for (int r = 0; r < 2 * TALL; ++r) {
            float new_max = row_max[r];
#pragma unroll
            for (int i = 0; i < KEYS / 4; ++i) new_max = fmaxf(new_max, s[r / 2][i / 2][r % 2 * 2 + i % 2]);
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 1));
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 2));
            const float base = new_max == NOTHING ? 0.0f : new_max * scale;  // a row without visible keys gets p = 0, not NaN
            if (__any_sync(0xffffffffu, new_max != row_max[r])) {
                const float rescale = exp2_approx(row_max[r] * scale - base);
                row_sum[r] *= rescale;
#pragma unroll
                for (int i = 0; i < WIDTH / 4; ++i) acc_o[r / 2][i / 2][r % 2 * 2 + i % 2] *= rescale;
            }
            row_max[r] = new_max;
#pragma unroll
            for (int i = 0; i < KEYS / 4; ++i) {
                float& p = s[r / 2][i / 2][r % 2 * 2 + i % 2];
                p = exp2_approx(fmaf(p, scale, -base));
                row_sum[r] += p;
            }
        }

#pragma unroll
        for (int key = 0; key < KEYS; key += 16) {
            unsigned a[TALL][4];
#pragma unroll
            for (int i = 0; i < 4 * TALL; ++i) {
                const float* pair = s[i / 4][key / 8 + i / 2 % 2] + i % 2 * 2;
                a[i / 4][i % 4] = rounded_pair(pair[0], pair[1]);
            }
#pragma unroll
            for (int d = 0; d < WIDTH; d += 16) {
                unsigned b[4];
                load_matrix_x4_transposed(b, values + (key + lane % 16) * ROW + column + d + lane / 16 * 8);
#pragma unroll
                for (int m = 0; m < TALL; ++m) {
                    multiply(acc_o[m][d / 8], a[m], b);
                    multiply(acc_o[m][d / 8 + 1], a[m], b + 2);
                }
            }
        }
        arrivals_add(empty + step % 2);
    }

#pragma unroll
    for (int r = 0; r < 2 * TALL; ++r) {
        row_sum[r] += __shfl_xor_sync(0xffffffffu, row_sum[r], 1);
        row_sum[r] += __shfl_xor_sync(0xffffffffu, row_sum[r], 2);
        const float inv_sum = inverse(row_sum[r]);
        if (q_index + 8 * r >= n) continue;
        const size_t row = (q_index + 8 * r) * q_stride + head * (size_t)HEAD_DIM + column;
#pragma unroll
        for (int d = 0; d < WIDTH; d += 8)
            reinterpret_cast<unsigned*>(out + row + d)[lane % 4] =
                rounded_pair(acc_o[r / 2][d / 8][r % 2 * 2] * inv_sum, acc_o[r / 2][d / 8][r % 2 * 2 + 1] * inv_sum);
    }
}
