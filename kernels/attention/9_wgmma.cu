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
// Branch   rung 7's products as wgmma, its two barriers a tile as mbarriers between the warps that copy and those that
//          multiply, its padding as the swizzle that wgmma reads, and registers moved to where they are needed.
#include "common/attention.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/warpgroup.cuh"
#include "common/ptx/wgmma/wide.cuh"

constexpr int QUERIES = 128, THREADS = 384, PRODUCER_THREADS = 128;
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
    attention_wgmma(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                    Element* __restrict__ out, int n, int context, int start, int heads, int kv_heads, int causal,
                    int window, float scale) {
    extern __shared__ __align__(1024) Element shared[];
    __shared__ volatile float ordered[THREADS / 32];
    __shared__ unsigned long long full[2 * STAGES], empty[2 * STAGES];  // keys, values, keys, values ...
    constexpr int TILE = KEYS * HEAD_DIM;
    Element *queries = shared, *ring = queries + QUERIES * HEAD_DIM;  // keys, values, keys, values ...
    const int lane = threadIdx.x % 32, head = blockIdx.x, first = (gridDim.y - 1 - blockIdx.y) * QUERIES;
    const size_t q_stride = heads * (size_t)HEAD_DIM, stride = kv_heads * (size_t)HEAD_DIM;
    const int from = seen_from(start + first, context, causal, window).first;
    const int to = seen_from(start + min(first + QUERIES, n) - 1, context, causal, window).last;
    const int tiles = to > from ? (to - from + KEYS - 1) / KEYS : 0;
    if (threadIdx.x == 0)
        for (int i = 0; i < 2 * STAGES; ++i) mbarrier_init(full + i, PRODUCER_THREADS / 2), mbarrier_init(empty + i, 8);
    __syncthreads();

    if (threadIdx.x < PRODUCER_THREADS) {
        setmaxnreg_fewer<40>();
        const size_t kv = head / (heads / kv_heads) * (size_t)HEAD_DIM;
        // Item i is a tile's keys (even) or values (odd), copied by the first or second half of the producer's threads; it lies in
        // slot i % (2 STAGES). The first copy brings the queries too.
        for (int i = threadIdx.x / (PRODUCER_THREADS / 2); i < 2 * tiles; i += 2) {
            const int slot = i % (2 * STAGES);
            mbarrier_wait(empty + slot, i / (2 * STAGES) % 2 ^ 1);
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
    const int group = threadIdx.x / 128 - 1, q_index = first + 64 * group + threadIdx.x / 32 % 4 * 16 + lane / 4;
    const int low = start + first + 64 * group, high = min(low + 63, start + n - 1);
    const int all_from = seen_from(high, context, causal, window).first;
    const int all_to = seen_from(low, context, causal, window).last;
    float acc_o[HEAD_DIM / 2], s[KEYS / 2], row_max[2] = {NOTHING, NOTHING}, row_sum[2] = {}, rescale[2];
    unsigned p[KEYS / 4];
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; ++i) acc_o[i] = 0.0f;

    // Start the scores of tile t when its keys have arrived.
    const auto start_qk = [&](int t) {
        const int slot = t % STAGES * 2;
        mbarrier_wait(full + slot, t / STAGES % 2);
        warpgroup_arrive();
        const unsigned long long rows = wgmma_columns(queries + 64 * group * BLOCK);
        const unsigned long long columns = wgmma_columns(ring + slot * TILE);
#pragma unroll
        for (int d = 0; d < HEAD_DIM; d += 16)  // in units of 16 bytes, of which a row of a block has 8
            wgmma_shared_f16<KEYS>(s, rows + d / BLOCK * QUERIES * 8 + d % BLOCK / 8,
                                   columns + d / BLOCK * KEYS * 8 + d % BLOCK / 8, d > 0);
        warpgroup_commit();
    };
    // Start adding p times the values of tile t.
    const auto start_pv = [&](int t) {
        const int slot = t % STAGES * 2 + 1;
        mbarrier_wait(full + slot, t / STAGES % 2);
        warpgroup_arrive();
        const unsigned long long rows = wgmma_rows(ring + slot * TILE, KEYS * BLOCK * 2);
#pragma unroll
        for (int key = 0; key < KEYS; key += 16) wgmma_rows_f16<HEAD_DIM>(acc_o, p + key / 4, rows + key * 8);
        warpgroup_commit();
    };
    // Softmax of the scores, in FP32 and in place.
    const auto softmax = [&](int t) {
        const int tile = from + t * KEYS;
        if (tile < all_from || tile + KEYS > all_to)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const Seen seen = seen_from(start + q_index + 8 * half, context, causal, window);
#pragma unroll
                for (int i = 0; i < KEYS / 4; ++i) {
                    const int key = tile + i / 2 * 8 + lane % 4 * 2 + i % 2;
                    if (key < seen.first || key >= seen.last) s[i / 2 * 4 + 2 * half + i % 2] = NOTHING;
                }
            }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float new_max = row_max[half];
#pragma unroll
            for (int i = 0; i < KEYS / 4; ++i) new_max = fmaxf(new_max, s[i / 2 * 4 + 2 * half + i % 2]);
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 1));
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 2));
            const float base = new_max == NOTHING ? 0.0f : new_max * scale;  // a row without visible keys gets p = 0, not NaN
            rescale[half] = exp2_approx(row_max[half] * scale - base);
            row_max[half] = new_max;
            row_sum[half] *= rescale[half];
#pragma unroll
            for (int i = 0; i < KEYS / 4; ++i) {
                float& p = s[i / 2 * 4 + 2 * half + i % 2];
                p = exp2_approx(fmaf(p, scale, -base));
                row_sum[half] += p;
            }
        }
    };
    const auto release = [&](int item) {
        if (lane == 0) mbarrier_arrive(empty + item % (2 * STAGES));
    };

    const auto convert_p = [&] {
#pragma unroll
        for (int i = 0; i < KEYS / 4; ++i) p[i] = rounded_pair(s[2 * i], s[2 * i + 1]);
    };

    if (tiles) {
        start_qk(0);
        warpgroup_wait<0>();
        release(0);
        softmax(0);
        convert_p();
        for (int t = 1; t < tiles; ++t) {
            start_qk(t);
            start_pv(t - 1);
            warpgroup_wait<1>();
            release(2 * t);
            softmax(t);
            // A store that is never read: it needs all of p and stays before the wait. Without it the compiler moves the
            // softmax behind the wait, and nothing overlaps the products.
            if (lane == 0) ordered[threadIdx.x / 32] = row_sum[0] + row_sum[1];
            warpgroup_wait<0>();
            release(2 * t - 1);
            convert_p();
            if (__any_sync(0xffffffffu, rescale[0] != 1.0f || rescale[1] != 1.0f))
#pragma unroll
                for (int i = 0; i < HEAD_DIM / 2; ++i) acc_o[i] *= rescale[i / 2 % 2];
        }
        start_pv(tiles - 1);
        warpgroup_wait<0>();
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
            row[d / 2 + lane % 4] = rounded_pair(acc_o[d / 2 + 2 * half] * inv_sum, acc_o[d / 2 + 2 * half + 1] * inv_sum);
    }
}
