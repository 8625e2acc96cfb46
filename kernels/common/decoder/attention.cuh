// Attend to the cache with one query a head (ATTEND), the context split among blocks, and merge the splits (OUT).
#pragma once
#include "common/ptx/cache_hints.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ordered.cuh"

// A block's share: HEADS_PER_BLOCK query heads from `head` on against keys [first, last) of their key-value head, split
// number `index` of `splits`. kv_head = kv_heads: the block has none.
struct KvSplit {
    int kv_head, head, index, first, last, splits;
};

__device__ inline int count_splits(const Decoder& m, int length) {
    return max(1, min(min((length + KEYS_PER_BLOCK - 1) / KEYS_PER_BLOCK, MAX_SPLITS),
                      (int)gridDim.x / (m.heads / HEADS_PER_BLOCK)));
}

__device__ inline KvSplit split_of(const Decoder& m, int length) {
    KvSplit split;
    split.splits = count_splits(m, length);
    split.head = min((int)blockIdx.x / split.splits * HEADS_PER_BLOCK, m.heads);
    split.kv_head = split.head / GROUP;
    split.index = blockIdx.x % split.splits;
    const int each = (length + split.splits - 1) / split.splits;
    split.first = split.index * each;
    split.last = min(split.first + each, length);
    return split;
}

// The same in shared memory, where phases read it when they need it: it would take registers from the products.
__device__ inline const KvSplit& shared_split(const Decoder& m, const Smem& smem, int length) {
    static_assert(sizeof(KvSplit) <= sizeof(Plan), "ATTEND has no plan, and its place is free");
    KvSplit& split = *reinterpret_cast<KvSplit*>(smem.plans + ATTEND);
    sync_consumers(smem);
    if (threadIdx.x == 0) split = split_of(m, length);
    sync_consumers(smem);
    return split;
}

// Prefetch the keys and values of a layer into L2, and the lines that the newest ones will be written to.
__device__ inline void prefetch_kv(const Decoder& m, const KvSplit& split, int layer, int pos) {
    if (split.kv_head == m.kv_heads) return;
    const size_t stride = (size_t)m.kv_heads * HEAD_DIM;
    const size_t start = (size_t)layer * m.capacity * stride + split.kv_head * HEAD_DIM;
    for (int i = threadIdx.x; i < (split.last - split.first) * (HEAD_DIM / 64); i += THREADS) {
        const size_t at = start + (split.first + i / (HEAD_DIM / 64)) * stride + i % (HEAD_DIM / 64) * 64;
        prefetch_l2(m.cache_k + at);
        prefetch_l2(m.cache_v + at);
    }
}

#if TENSOR_ATTENTION
#include "common/decoder/attend_tensor.cuh"
#else
#include "common/decoder/attend_lanes.cuh"
#endif

// x = the outputs of attention, or the slab of them that this block multiplies: the splits of each head merged by their
// softmax states.
template <int F>
__device__ inline void load_attention(const Decoder& m, const Smem& smem, int splits) {
    const int thread = thread_number();
    constexpr int CHUNKS = HEADS * HEAD_DIM / CHUNK<F>;
    constexpr int MOST = (SPLIT_K ? (CHUNKS + SLABS_OF_OUT - 1) / larger(SLABS_OF_OUT, 1) : CHUNKS) * CHUNK<F>;
    constexpr int VECTORS = (MOST + 4 * THREADS - 1) / (4 * THREADS), ROUNDS = (VECTORS + 2) / 3;
    constexpr int BATCH = (VECTORS + ROUNDS - 1) / ROUNDS,
                  SPLITS = BATCH == 1 ? TENSOR_ATTEND ? 16 : SPLIT_K ? (FLAGGED ? 6 : 8) : 6 : 3;  // loaded together
    const int WIDTH = SPLIT_K ? smem.plans[OUT].chunks * CHUNK<F> : HEADS * HEAD_DIM;
    const int begin = SPLIT_K ? smem.plans[OUT].first_chunk * CHUNK<F> : 0;
#pragma unroll 1
    for (int round = 0; round < ROUNDS; ++round) {
        const int first = 4 * thread + round * (BATCH * 4 * THREADS);
        if (first >= WIDTH) break;
        float4 acc_o[BATCH] = {};
        float row_max[BATCH], row_sum[BATCH] = {};
#pragma unroll
        for (int i = 0; i < BATCH; ++i) row_max[i] = -1e30f;
        for (int p = 0; p < splits; p += SPLITS) {
            float2 stats[BATCH][SPLITS];
            uint2 split_o[BATCH][SPLITS];
#if FLAGS_IN_DATA
            const unsigned flag = m.flag;
            bool all;
            do {
                unsigned long long stat[BATCH][SPLITS];
                uint4 words[BATCH][SPLITS];
#pragma unroll
                for (int i = 0; i < BATCH; ++i)
#pragma unroll
                    for (int j = 0; j < SPLITS; ++j) {
                        const int k = begin + first + i * 4 * THREADS, at = k / HEAD_DIM * MAX_SPLITS + p + j;
                        const bool valid = p + j < splits && k - begin < WIDTH;
                        stat[i][j] = (unsigned long long)flag << 32 | __float_as_uint(-1e30f);
                        words[i][j] = make_uint4(flag, flag, flag, flag);
                        if (valid) stat[i][j] = load_relaxed(handed_stats(m) + at);
                        if (valid)
                            words[i][j] = load_relaxed(
                                reinterpret_cast<const uint4*>(handed(m, OUTPUTS_AT) + at * HEAD_DIM + k % HEAD_DIM));
                    }
                all = true;
#pragma unroll
                for (int i = 0; i < BATCH; ++i)
#pragma unroll
                    for (int j = 0; j < SPLITS; ++j) {
                        all &= (unsigned)(stat[i][j] >> 32) == flag && arrived(words[i][j], flag);
                        stats[i][j] = make_float2(__uint_as_float((unsigned)stat[i][j]), 1.0f);
                        split_o[i][j] = halves_of(words[i][j]);
                    }
            } while (!all);
#else
#pragma unroll
            for (int i = 0; i < BATCH; ++i)
#pragma unroll
                for (int j = 0; j < SPLITS; ++j) {
                    const int k = begin + first + i * 4 * THREADS, at = k / HEAD_DIM * MAX_SPLITS + p + j;
                    const bool valid = p + j < splits && k - begin < WIDTH;
                    stats[i][j] = make_float2(-1e30f, 0.0f), split_o[i][j] = make_uint2(0, 0);
                    if (valid) stats[i][j] = __ldcg(reinterpret_cast<const float2*>(m.split_stats) + at);
                    if (valid)
                        split_o[i][j] =
                            __ldcg(reinterpret_cast<const uint2*>(m.split_outputs + at * HEAD_DIM + k % HEAD_DIM));
                }
#endif
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                float new_max = row_max[i];
#pragma unroll
                for (int j = 0; j < SPLITS; ++j) new_max = fmaxf(new_max, stats[i][j].x);
                const float rescale = exp2_approx(row_max[i] - new_max);
                row_sum[i] *= rescale;
                acc_o[i].x *= rescale, acc_o[i].y *= rescale, acc_o[i].z *= rescale, acc_o[i].w *= rescale;
                row_max[i] = new_max;
#pragma unroll
                for (int j = 0; j < SPLITS; ++j) {
                    const float weight = exp2_approx(stats[i][j].x - new_max) * stats[i][j].y;
                    const float4 v = four_halves(split_o[i][j]);
                    row_sum[i] += weight;
                    acc_o[i].x = fmaf(weight, v.x, acc_o[i].x), acc_o[i].y = fmaf(weight, v.y, acc_o[i].y);
                    acc_o[i].z = fmaf(weight, v.z, acc_o[i].z), acc_o[i].w = fmaf(weight, v.w, acc_o[i].w);
                }
            }
        }
        float sums[BATCH] = {};
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int k = first + i * 4 * THREADS;
            const float inverse = __fdividef(1.0f, row_sum[i]);
            if (k < WIDTH)
                sums[i] = store_x4<F>(smem, k,
                                      make_float4(acc_o[i].x * inverse, acc_o[i].y * inverse, acc_o[i].z * inverse,
                                                  acc_o[i].w * inverse));
        }
        sum_groups<F>(smem, sums, first, WIDTH);
    }
    sync_consumers(smem);
}
