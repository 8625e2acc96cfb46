// attention 13, ring: warps wait for tiles, not for each other.
//
// Purpose  a barrier for the whole block makes all its warps multiply together and take powers together, and the tensor
//          cores rest meanwhile. Here a tile's keys and values lie in one of two places, whose arrivals are counted:
//          copies that are done, and threads that need the place no more. A warp may be half a tile ahead of another, so
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
// Changed  rung 7 with barriers that count arrivals (mbarrier, on this side of Hopper too) in the place of two for all.
//          SLICES = 2: two warps share queries, each with half of the columns; their scores are added up on the way.
#include "common/attention.cuh"
#include "common/ptx.cuh"

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
    attention_ring(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                   Element* __restrict__ out, int n, int context, int start, int heads, int kv_heads, int causal,
                   int window, float scale) {
    extern __shared__ __align__(128) Element shared[];
    __shared__ unsigned long long there[2], left[2];
#if SLICES > 1
    __shared__ float4 partial[WARPS][TALL][KEYS / 8][32];
    __shared__ unsigned long long handed[WARPS / 2], taken[WARPS / 2];
#endif
    Element *const queries = shared, *const ring = queries + QUERIES * ROW;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / SLICES, column = warp % SLICES * WIDTH;
    const int head = head_of_block(), first = (gridDim.y - 1 - blockIdx.y) * QUERIES;
    const int mine = first + 16 * TALL * group + lane / 4;  // and + 8, or + 8, 16, 24
    const size_t q_stride = heads * (size_t)HEAD_DIM, stride = kv_heads * (size_t)HEAD_DIM;
    const size_t kv = head / (heads / kv_heads) * (size_t)HEAD_DIM;
    const int from = seen_from(start + first, context, causal, window).first;
    const int to = seen_from(start + min(first + QUERIES, n) - 1, context, causal, window).last;
    // Between these, every query of the block sees every key.
    const int all_from = seen_from(start + min(first + QUERIES, n) - 1, context, causal, window).first;
    const int all_to = seen_from(start + first, context, causal, window).last;
    float o[TALL][WIDTH / 8][4] = {}, most[2 * TALL], sum[2 * TALL] = {};
#pragma unroll
    for (int r = 0; r < 2 * TALL; ++r) most[r] = NOTHING;

    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) arrivals_init(there + i, THREADS), arrivals_init(left + i, THREADS);
#if SLICES > 1
        for (int i = 0; i < WARPS / 2; ++i) arrivals_init(handed + i, 64), arrivals_init(taken + i, 64);
#endif
    }
    __syncthreads();
    const auto bring = [&](int tile, int place) {
        Element* const to_here = ring + place * TILE;
        stage<KEYS>(to_here, k + kv, tile, to, stride);
        if (!SHARED_KV) stage<KEYS>(to_here + KEYS * ROW, v + kv, tile, to, stride);
        arrivals_add_when_copied(there + place);
    };
    if (from < to) {
        stage<QUERIES>(queries, q + head * (size_t)HEAD_DIM, first, n, q_stride);
        bring(from, 0);
    }
    for (int tile = from, turn = 0; tile < to; tile += KEYS, ++turn) {
        const Element *const keys = ring + turn % 2 * TILE, *const values = SHARED_KV ? keys : keys + KEYS * ROW;
        arrivals_wait(there + turn % 2, turn / 2 % 2);

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
            if (turn) arrivals_wait(left + (turn + 1) % 2, (turn - 1) / 2 % 2);  // all are done with the tile before
            bring(tile + KEYS, (turn + 1) % 2);
        }

#if SLICES > 1
        if (turn) arrivals_wait(taken + group, (turn - 1) % 2);
#pragma unroll
        for (int m = 0; m < TALL; ++m)
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j)
                partial[warp][m][j][lane] = make_float4(s[m][j][0], s[m][j][1], s[m][j][2], s[m][j][3]);
        arrivals_add(handed + group);
        arrivals_wait(handed + group, turn % 2);
#pragma unroll
        for (int m = 0; m < TALL; ++m)
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) {
                const float4 other = partial[warp ^ 1][m][j][lane];
                s[m][j][0] += other.x, s[m][j][1] += other.y, s[m][j][2] += other.z, s[m][j][3] += other.w;
            }
        arrivals_add(taken + group);
#endif

        if (tile < all_from || tile + KEYS > all_to)
#pragma unroll
            for (int r = 0; r < 2 * TALL; ++r) {
                const Seen seen = seen_from(start + mine + 8 * r, context, causal, window);
#pragma unroll
                for (int i = 0; i < KEYS / 4; ++i) {
                    const int key = tile + i / 2 * 8 + lane % 4 * 2 + i % 2;
                    if (key < seen.first || key >= seen.last) s[r / 2][i / 2][r % 2 * 2 + i % 2] = NOTHING;
                }
            }

#pragma unroll
        for (int r = 0; r < 2 * TALL; ++r) {
            float raised = most[r];
#pragma unroll
            for (int i = 0; i < KEYS / 4; ++i) raised = fmaxf(raised, s[r / 2][i / 2][r % 2 * 2 + i % 2]);
            raised = fmaxf(raised, __shfl_xor_sync(0xffffffffu, raised, 1));
            raised = fmaxf(raised, __shfl_xor_sync(0xffffffffu, raised, 2));
            const float base = raised == NOTHING ? 0.0f : raised * scale;  // a row that saw nothing weighs 0, not NaN
            if (__any_sync(0xffffffffu, raised != most[r])) {
                const float rescale = exp2_approx(most[r] * scale - base);
                sum[r] *= rescale;
#pragma unroll
                for (int i = 0; i < WIDTH / 4; ++i) o[r / 2][i / 2][r % 2 * 2 + i % 2] *= rescale;
            }
            most[r] = raised;
#pragma unroll
            for (int i = 0; i < KEYS / 4; ++i) {
                float& weight = s[r / 2][i / 2][r % 2 * 2 + i % 2];
                weight = exp2_approx(fmaf(weight, scale, -base));
                sum[r] += weight;
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
                    multiply(o[m][d / 8], a[m], b);
                    multiply(o[m][d / 8 + 1], a[m], b + 2);
                }
            }
        }
        arrivals_add(left + turn % 2);
    }

#pragma unroll
    for (int r = 0; r < 2 * TALL; ++r) {
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
        const float by = inverse(sum[r]);
        if (mine + 8 * r >= n) continue;
        const size_t row = (mine + 8 * r) * q_stride + head * (size_t)HEAD_DIM + column;
#pragma unroll
        for (int d = 0; d < WIDTH; d += 8)
            reinterpret_cast<unsigned*>(out + row + d)[lane % 4] =
                rounded_pair(o[r / 2][d / 8][r % 2 * 2] * by, o[r / 2][d / 8][r % 2 * 2 + 1] * by);
    }
}
