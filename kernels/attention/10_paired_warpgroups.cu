// attention 10, paired warpgroups: two warpgroups share 64 queries whose heads are 512 wide.
//
// Purpose  64 rows of 512 outputs are 256 registers a thread of one warpgroup. Two have 256 columns each: each
//          multiplies its half of queries and keys, they hand each other half of their scores, weigh 32 queries each, hand
//          each other the weights, and add their own half of the values. Every product is made once.
// Shapes   as rung 9, HEAD_DIM 512.
// Bytes    4 HEAD_DIM read for each 64 queries and each key that one of them sees.
// Launch   384 threads a block as in rung 9; grid heads x ceil(n / 64). 64 rows of queries, keys and values each.
// Macros   HEAD_DIM = 512: width of a head;
//          KEYS = 64: keys a tile.
// Branch   rung 8's idea in rung 9's shape: scores and weights cross shared memory between twins, the threads of the
//          two warpgroups that have the same rows and columns of a tile; one place for keys and one for values.
#include "common/attention.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/warpgroup.cuh"
#include "common/ptx/wgmma/wide.cuh"

constexpr int QUERIES = 64, THREADS = 384, PRODUCER_THREADS = 128, WIDTH = HEAD_DIM / 2;
constexpr int BLOCK = 64;  // columns of a swizzled block with rows of 128 bytes; a tile has HEAD_DIM / 64 blocks

// Start copying rows first ... of a matrix whose rows lie `stride` elements apart, swizzled; zeros from row `end` on.
template <int ROWS>
__device__ inline void stage(Element* shared, const Element* from, int first, int end, size_t stride) {
#pragma unroll 4
    for (int i = threadIdx.x % (PRODUCER_THREADS / 2); i < ROWS * (HEAD_DIM / 8); i += PRODUCER_THREADS / 2) {
        const int row = i / (HEAD_DIM / 8), piece = i % (HEAD_DIM / 8);
        Element* const to = shared + (piece / 8 * ROWS + row) * BLOCK + (piece % 8 ^ row % 8) * 8;
        copy_async_16_or_zero(to, from + (first + row) * stride + piece * 8, first + row < end);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_paired_warpgroups(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                    Element* __restrict__ out, int n, int context, int start, int heads, int kv_heads, int causal,
                    int window, float scale) {
    extern __shared__ __align__(1024) Element shared[];
    __shared__ float4 scores[2][KEYS / 16][128];  // what each warpgroup hands over, by the thread that made it
    __shared__ uint4 p_exchange[2][KEYS / 32][128];   // weights
    __shared__ float rescales[2][128];
    __shared__ unsigned long long full[2], empty[2], scores_full, p_full;  // keys, values; scores; weights
    constexpr int TILE = KEYS * HEAD_DIM;
    Element *queries = shared, *ring = queries + QUERIES * HEAD_DIM;  // keys, values
    const int lane = threadIdx.x % 32, head = blockIdx.x, first = (gridDim.y - 1 - blockIdx.y) * QUERIES;
    const size_t q_stride = heads * (size_t)HEAD_DIM, stride = kv_heads * (size_t)HEAD_DIM;
    const int from = seen_from(start + first, context, causal, window).first;
    const int to = seen_from(start + min(first + QUERIES, n) - 1, context, causal, window).last;
    const int tiles = to > from ? (to - from + KEYS - 1) / KEYS : 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) mbarrier_init(full + i, PRODUCER_THREADS / 2), mbarrier_init(empty + i, 8);
        mbarrier_init(&scores_full, 256), mbarrier_init(&p_full, 256);
    }
    __syncthreads();

    if (threadIdx.x < PRODUCER_THREADS) {
        setmaxnreg_fewer<40>();
        const size_t kv = head / (heads / kv_heads) * (size_t)HEAD_DIM;
        // Item i is a tile's keys (even) or values (odd), copied by the first or second half of the producer's
        // threads. The first copy brings the queries too.
        for (int i = threadIdx.x / (PRODUCER_THREADS / 2); i < 2 * tiles; i += 2) {
            const int slot = i % 2;
            mbarrier_wait(empty + slot, i / 2 % 2 ^ 1);
            if (i == 0) stage<QUERIES>(queries, q + head * (size_t)HEAD_DIM, first, n, q_stride);
            stage<KEYS>(ring + slot * TILE, (i % 2 ? v : k) + kv, from + i / 2 * KEYS, to, stride);
            copy_async_commit();
            copy_async_wait<0>();
            warpgroup_shared_fence();
            mbarrier_arrive(full + slot);
        }
        return;
    }

    setmaxnreg_more<232>();
    const int group = threadIdx.x / 128 - 1, thread = threadIdx.x % 128;
    const int q_index = first + thread / 32 * 16 + lane / 4;  // and + 8; this one weighs q_index + 8 group
    const int all_from = seen_from(start + min(first + QUERIES, n) - 1, context, causal, window).first;
    const int all_to = seen_from(start + first, context, causal, window).last;
    float acc_o[WIDTH / 2], s[KEYS / 2], own[KEYS / 4], row_max = NOTHING, row_sum = 0.0f;
    unsigned p[KEYS / 4];
#pragma unroll
    for (int i = 0; i < WIDTH / 2; ++i) acc_o[i] = 0.0f;

    // Start this half's share of the scores of tile t, when its keys have arrived.
    const auto start_qk = [&](int t) {
        mbarrier_wait(full, t % 2);
        warpgroup_arrive();
        const unsigned long long rows = wgmma_columns(queries + WIDTH * group * QUERIES);
        const unsigned long long columns = wgmma_columns(ring + WIDTH * group * KEYS);
#pragma unroll
        for (int d = 0; d < WIDTH; d += 16)  // in units of 16 bytes, of which a row of a block has 8
            wgmma_shared_f16<KEYS>(s, rows + d / BLOCK * QUERIES * 8 + d % BLOCK / 8,
                                   columns + d / BLOCK * KEYS * 8 + d % BLOCK / 8, d > 0);
        warpgroup_commit();
    };
    // Start adding this half of the weighted values of tile t.
    const auto start_pv = [&](int t) {
        mbarrier_wait(full + 1, t % 2);
        warpgroup_arrive();
        const unsigned long long rows = wgmma_rows(ring + TILE + WIDTH * group * KEYS, KEYS * BLOCK * 2);
#pragma unroll
        for (int key = 0; key < KEYS; key += 16) wgmma_rows_f16<WIDTH>(acc_o, p + key / 4, rows + key * 8);
        warpgroup_commit();
    };
    const auto release = [&](int slot) {
        if (lane == 0) mbarrier_arrive(empty + slot);
    };
    // Shares of scores to the weights of this thread's row, which it hands over.
    const auto softmax = [&](int t) {
#pragma unroll
        for (int i = 0; i < KEYS / 16; ++i) {
            const float* const two = s + 8 * i;
            scores[group][i][thread] = group ? make_float4(two[0], two[1], two[4], two[5])
                                             : make_float4(two[2], two[3], two[6], two[7]);
            own[4 * i] = group ? two[2] : two[0], own[4 * i + 1] = group ? two[3] : two[1];
            own[4 * i + 2] = group ? two[6] : two[4], own[4 * i + 3] = group ? two[7] : two[5];
        }
        mbarrier_arrive(&scores_full);
        mbarrier_wait(&scores_full, t % 2);
        float new_max = row_max;
        const Seen seen = seen_from(start + q_index + 8 * group, context, causal, window);
        const bool edge = from + t * KEYS < all_from || from + (t + 1) * KEYS > all_to;
#pragma unroll
        for (int i = 0; i < KEYS / 16; ++i) {
            const float4 other = scores[1 - group][i][thread];
            own[4 * i] += other.x, own[4 * i + 1] += other.y, own[4 * i + 2] += other.z, own[4 * i + 3] += other.w;
        }
#pragma unroll
        for (int i = 0; i < KEYS / 4; ++i) {
            const int key = from + t * KEYS + i / 2 * 8 + lane % 4 * 2 + i % 2;
            if (edge && (key < seen.first || key >= seen.last)) own[i] = NOTHING;
            new_max = fmaxf(new_max, own[i]);
        }
        new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 1));
        new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 2));
        const float base = new_max == NOTHING ? 0.0f : new_max * scale;  // a row that saw nothing weighs 0, not NaN
        const float rescale = exp2_approx(row_max * scale - base);
        row_max = new_max;
        row_sum *= rescale;
        unsigned words[KEYS / 8];
#pragma unroll
        for (int i = 0; i < KEYS / 8; ++i) {
            const float left = exp2_approx(fmaf(own[2 * i], scale, -base));
            const float right = exp2_approx(fmaf(own[2 * i + 1], scale, -base));
            row_sum += left + right;
            words[i] = rounded_pair(left, right);
        }
#pragma unroll
        for (int i = 0; i < KEYS / 32; ++i)
            p_exchange[group][i][thread] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
        rescales[group][thread] = rescale;
        mbarrier_arrive(&p_full);
        mbarrier_wait(&p_full, t % 2);
    };
    // Both rows' weights, and outputs brought down to them.
    const auto take_weights = [&] {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int i = 0; i < KEYS / 32; ++i) {
                const uint4 four = p_exchange[half][i][thread];
                p[8 * i + half] = four.x, p[8 * i + 2 + half] = four.y;
                p[8 * i + 4 + half] = four.z, p[8 * i + 6 + half] = four.w;
            }
        const float rescale[2] = {rescales[0][thread], rescales[1][thread]};
        if (__any_sync(0xffffffffu, rescale[0] != 1.0f || rescale[1] != 1.0f))
#pragma unroll
            for (int i = 0; i < WIDTH / 2; ++i) acc_o[i] *= rescale[i / 2 % 2];
    };

    if (tiles) {
        start_qk(0);
        warpgroup_wait<0>();
        release(0);
        softmax(0);
        take_weights();
        for (int t = 1; t < tiles; ++t) {
            start_qk(t);
            start_pv(t - 1);
            warpgroup_wait<1>();
            release(0);
            softmax(t);
            warpgroup_wait<0>();
            release(1);
            take_weights();
        }
        start_pv(tiles - 1);
        warpgroup_wait<0>();
    }

    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 1);
    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 2);
    // All threads have read the last factors when they arrive at this barrier.
    mbarrier_arrive(&scores_full);
    mbarrier_wait(&scores_full, tiles % 2);
    rescales[group][thread] = inverse(row_sum);
    mbarrier_arrive(&p_full);
    mbarrier_wait(&p_full, tiles % 2);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float inv_sum = rescales[half][thread];
        if (q_index + 8 * half >= n) continue;
        const size_t row = (q_index + 8 * half) * q_stride + head * (size_t)HEAD_DIM + WIDTH * group;
#pragma unroll
        for (int d = 0; d < WIDTH; d += 8)
            reinterpret_cast<unsigned*>(out + row + d)[lane % 4] =
                rounded_pair(acc_o[d / 2 + 2 * half] * inv_sum, acc_o[d / 2 + 2 * half + 1] * inv_sum);
    }
}
