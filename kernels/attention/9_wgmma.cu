// attention 9, wgmma: Hopper's warpgroup products, fed by warps that do nothing else.
//
// Purpose  four warps multiply 64 rows at once with both operands in shared memory, and go on while they multiply: the
//          softmax of one tile runs beside the weighted sum of the tile before. Keys and values come through a ring of
//          STAGES tiles, filled by a warpgroup of its own, so that products wait for barriers of shared memory alone.
// Shapes   as rung 1, FP16, HEAD_DIM 64, 128 or 256.
// Bytes    4 HEAD_DIM read for each 128 queries and each key that one of them sees.
// Launch   384 threads a block: one warpgroup copies, two have 64 queries each; grid heads x ceil(n / 128),
//          latest queries first. 128 + 2 STAGES KEYS rows of shared memory of 2 HEAD_DIM bytes, 1024-aligned.
// Macros   HEAD_DIM = 128: width of a head;
//          KEYS = 128: keys a tile;
//          STAGES = 2: tiles of keys and of values in the ring.
// Changed  rung 7's products as wgmma, its two barriers a tile as mbarriers between those who copy and those who
//          multiply, its padding as the swizzle that wgmma reads, and registers moved to where they are needed.
#include "common/attention.cuh"
#include "common/ptx.cuh"

constexpr int QUERIES = 128, THREADS = 384, COPIERS = 128;
constexpr int BLOCK = 64;  // columns whose rows of 128 bytes stand together; a tile has HEAD_DIM / 64 of them

// Start copying rows first ... of a matrix whose rows lie `stride` elements apart, swizzled; zeros from row `end` on.
template <int ROWS>
__device__ inline void stage(Element* shared, const Element* from, int first, int end, size_t stride) {
#pragma unroll 4
    for (int i = threadIdx.x % (COPIERS / 2); i < ROWS * (HEAD_DIM / 8); i += COPIERS / 2) {
        const int row = i / (HEAD_DIM / 8), piece = i % (HEAD_DIM / 8);
        Element* const to = shared + (piece / 8 * ROWS + row) * BLOCK + (piece % 8 ^ row % 8) * 8;
        copy_async_16_or_zero(to, from + (first + row) * stride + piece * 8, first + row < end);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_wgmma(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                    Element* __restrict__ out, int n, int context, int start, int heads, int kv_heads, int causal,
                    int window, float scale) {
    extern __shared__ __align__(1024) Element shared[];
    __shared__ volatile float settled[THREADS / 32];
    __shared__ unsigned long long there[2 * STAGES], free[2 * STAGES];  // keys, values, keys, values ...
    constexpr int TILE = KEYS * HEAD_DIM;
    Element *queries = shared, *ring = queries + QUERIES * HEAD_DIM;  // keys, values, keys, values ...
    const int lane = threadIdx.x % 32, head = blockIdx.x, first = (gridDim.y - 1 - blockIdx.y) * QUERIES;
    const size_t q_stride = heads * (size_t)HEAD_DIM, stride = kv_heads * (size_t)HEAD_DIM;
    const int from = seen_from(start + first, context, causal, window).first;
    const int to = seen_from(start + min(first + QUERIES, n) - 1, context, causal, window).last;
    const int tiles = to > from ? (to - from + KEYS - 1) / KEYS : 0;
    if (threadIdx.x == 0)
        for (int i = 0; i < 2 * STAGES; ++i) mbarrier_init(there + i, COPIERS / 2), mbarrier_init(free + i, 8);
    __syncthreads();

    if (threadIdx.x < COPIERS) {
        setmaxnreg_fewer<40>();
        const size_t kv = head / (heads / kv_heads) * (size_t)HEAD_DIM;
        // Item i is a tile's keys (even) or values (odd), copied by the first or second half of the copiers; it lies in
        // place i % (2 STAGES). The queries come with the first.
        for (int i = threadIdx.x / (COPIERS / 2); i < 2 * tiles; i += 2) {
            const int place = i % (2 * STAGES);
            mbarrier_wait(free + place, i / (2 * STAGES) % 2 ^ 1);
            if (i == 0) stage<QUERIES>(queries, q + head * (size_t)HEAD_DIM, first, n, q_stride);
            stage<KEYS>(ring + place * TILE, (i % 2 ? v : k) + kv, from + i / 2 * KEYS, to, stride);
            copy_async_commit();
            copy_async_wait<0>();
            warpgroup_shared_fence();
            mbarrier_arrive(there + place);
        }
        return;
    }

    setmaxnreg_more<232>();
    const int group = threadIdx.x / 128 - 1, mine = first + 64 * group + threadIdx.x / 32 % 4 * 16 + lane / 4;
    const int low = start + first + 64 * group, high = min(low + 63, start + n - 1);
    const int all_from = seen_from(high, context, causal, window).first;
    const int all_to = seen_from(low, context, causal, window).last;
    float o[HEAD_DIM / 2], s[KEYS / 2], most[2] = {NOTHING, NOTHING}, sum[2] = {}, rescale[2];
    unsigned weights[KEYS / 4];
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; ++i) o[i] = 0.0f;

    // Start the scores of tile t, once its keys are there.
    const auto multiply_keys = [&](int t) {
        const int place = t % STAGES * 2;
        mbarrier_wait(there + place, t / STAGES % 2);
        warpgroup_arrive();
        const unsigned long long rows = wgmma_columns(queries + 64 * group * BLOCK);
        const unsigned long long columns = wgmma_columns(ring + place * TILE);
#pragma unroll
        for (int d = 0; d < HEAD_DIM; d += 16)  // in units of 16 bytes, of which a row of a block has 8
            wgmma_shared_f16<KEYS>(s, rows + d / BLOCK * QUERIES * 8 + d % BLOCK / 8,
                                   columns + d / BLOCK * KEYS * 8 + d % BLOCK / 8, d > 0);
        warpgroup_commit();
    };
    // Start adding the weighted values of tile t.
    const auto multiply_values = [&](int t) {
        const int place = t % STAGES * 2 + 1;
        mbarrier_wait(there + place, t / STAGES % 2);
        warpgroup_arrive();
        const unsigned long long rows = wgmma_rows(ring + place * TILE, KEYS * BLOCK * 2);
#pragma unroll
        for (int key = 0; key < KEYS; key += 16) wgmma_rows_f16<HEAD_DIM>(o, weights + key / 4, rows + key * 8);
        warpgroup_commit();
    };
    // Scores to weights, still in FP32 and in place.
    const auto weigh = [&](int t) {
        const int tile = from + t * KEYS;
        if (tile < all_from || tile + KEYS > all_to)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const Seen seen = seen_from(start + mine + 8 * half, context, causal, window);
#pragma unroll
                for (int i = 0; i < KEYS / 4; ++i) {
                    const int key = tile + i / 2 * 8 + lane % 4 * 2 + i % 2;
                    if (key < seen.first || key >= seen.last) s[i / 2 * 4 + 2 * half + i % 2] = NOTHING;
                }
            }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float raised = most[half];
#pragma unroll
            for (int i = 0; i < KEYS / 4; ++i) raised = fmaxf(raised, s[i / 2 * 4 + 2 * half + i % 2]);
            raised = fmaxf(raised, __shfl_xor_sync(0xffffffffu, raised, 1));
            raised = fmaxf(raised, __shfl_xor_sync(0xffffffffu, raised, 2));
            const float base = raised == NOTHING ? 0.0f : raised * scale;  // a row that saw nothing weighs 0, not NaN
            rescale[half] = exp2_approx(most[half] * scale - base);
            most[half] = raised;
            sum[half] *= rescale[half];
#pragma unroll
            for (int i = 0; i < KEYS / 4; ++i) {
                float& weight = s[i / 2 * 4 + 2 * half + i % 2];
                weight = exp2_approx(fmaf(weight, scale, -base));
                sum[half] += weight;
            }
        }
    };
    const auto let_go = [&](int item) {
        if (lane == 0) mbarrier_arrive(free + item % (2 * STAGES));
    };

    const auto round_weights = [&] {
#pragma unroll
        for (int i = 0; i < KEYS / 4; ++i) weights[i] = rounded_pair(s[2 * i], s[2 * i + 1]);
    };

    if (tiles) {
        multiply_keys(0);
        warpgroup_wait<0>();
        let_go(0);
        weigh(0);
        round_weights();
        for (int t = 1; t < tiles; ++t) {
            multiply_keys(t);
            multiply_values(t - 1);
            warpgroup_wait<1>();
            let_go(2 * t);
            weigh(t);
            // A store that nobody reads: it needs all weights and stays in front of the wait. Without it the compiler
            // works the weights out after the wait, and nothing runs beside the products.
            if (lane == 0) settled[threadIdx.x / 32] = sum[0] + sum[1];
            warpgroup_wait<0>();
            let_go(2 * t - 1);
            round_weights();
            if (__any_sync(0xffffffffu, rescale[0] != 1.0f || rescale[1] != 1.0f))
#pragma unroll
                for (int i = 0; i < HEAD_DIM / 2; ++i) o[i] *= rescale[i / 2 % 2];
        }
        multiply_values(tiles - 1);
        warpgroup_wait<0>();
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
        const float by = inverse(sum[half]);
        if (mine + 8 * half >= n) continue;
        unsigned* row = reinterpret_cast<unsigned*>(out + (mine + 8 * half) * q_stride + head * (size_t)HEAD_DIM);
#pragma unroll
        for (int d = 0; d < HEAD_DIM; d += 8)
            row[d / 2 + lane % 4] = rounded_pair(o[d / 2 + 2 * half] * by, o[d / 2 + 2 * half + 1] * by);
    }
}
