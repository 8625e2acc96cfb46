// Attend to a split of the cache by one or two query heads: eight lanes score a key.
#pragma once
#include "common/ptx/exp2.cuh"

// Queries lie in global memory or, where FLAGGED, in shared.
__device__ inline uint4 load_query(const uint4* from) {
#if FLAGS_IN_DATA
    return *from;
#else
    return __ldcg(from);
#endif
}

// Load N pairs of halves, bypassing L1.
template <int N>
__device__ inline void load_pairs(unsigned (&pairs)[N], const __half* p) {
    if constexpr (N == 1) {
        pairs[0] = __ldcg(reinterpret_cast<const unsigned*>(p));
    } else if constexpr (N == 2) {
        const uint2 two = __ldcg(reinterpret_cast<const uint2*>(p));
        pairs[0] = two.x, pairs[1] = two.y;
    } else {
#pragma unroll
        for (int i = 0; i < N / 4; ++i) {
            const uint4 four = __ldcg(reinterpret_cast<const uint4*>(p) + i);
            pairs[4 * i] = four.x, pairs[4 * i + 1] = four.y, pairs[4 * i + 2] = four.z, pairs[4 * i + 3] = four.w;
        }
    }
}

#if FLAGS_IN_DATA
// Wait for the block's queries and, if its split has them, the newest key and value, and put them in shared
// memory where other phases keep sums: [HEADS_PER_BLOCK + 2][HEAD_DIM].
__device__ inline void stage_newest(const Decoder& m, const Smem& smem, const KvSplit& split, bool newest) {
    const int queries = HEADS_PER_BLOCK * HEAD_DIM / 4, each = HEAD_DIM / 4;
    static_assert(SLOTS * WARPS * UNIT * 2 >= (HEADS_PER_BLOCK + 2) * HEAD_DIM, "the warps' sums leave room for them");
    for (int i = threadIdx.x; i < queries + (newest ? 2 * each : 0); i += THREADS) {
        const int key = i - queries;
        const unsigned* from = handed(m, QUERIES_AT) + split.head * HEAD_DIM + 4 * i;
        if (key >= 0) from = handed(m, NEWEST_AT) + (key / each * KV_HEADS + split.kv_head) * HEAD_DIM + key % each * 4;
        reinterpret_cast<uint2*>(smem.sums)[i] = wait_for_four(from, m.flag);
    }
    __syncwarp();
    sync_consumers(smem);
}
#endif

// Attend with the block's query heads to its split of the cache; OUT merges the splits (load_attention). Each warp runs an
// online softmax over keys of its own, and the warps' results are merged once at the end. Eight lanes score a key; each
// lane sums HEAD_DIM / 32 neighbours of the values.
__device__ inline void attend(const Decoder& m, const Smem& smem, const KvSplit& split, int layer, int pos) {
    constexpr int PIECES = HEAD_DIM / 64, PAIRS = HEAD_DIM / 64;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (split.kv_head == m.kv_heads) return;
    constexpr unsigned stride = KV_HEADS * HEAD_DIM;
    const size_t start = (size_t)layer * m.capacity * stride + split.kv_head * HEAD_DIM;
    const __half *keys = m.cache_k + start + lane % 8 * 8, *values = m.cache_v + start + lane * (HEAD_DIM / 32);
    const float scale = rsqrtf((float)HEAD_DIM) * 1.44269504f;
    float* outputs = reinterpret_cast<float*>(smem.x);  // [WARPS][HEADS_PER_BLOCK][HEAD_DIM], then stats without HEAD_DIM
    SplitStats* stats = reinterpret_cast<SplitStats*>(outputs + WARPS * HEADS_PER_BLOCK * HEAD_DIM);

#if FLAGS_IN_DATA
    // The newest key and value, of this layer, come by flagged words and the others from the cache.
    const bool newest = split.first < split.last && split.last == pos + 1;
    const int last = split.last - newest;
#else
    const int& last = split.last;
#endif
    uint4 k[PIECES];
    unsigned v[KEYS_PER_WARP][PAIRS];
    const auto load = [&](int first) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const int key = first + lane / 8;
            k[i] = make_uint4(0, 0, 0, 0);
            if (key < last) k[i] = __ldcg(reinterpret_cast<const uint4*>(keys + (unsigned)key * stride + 64 * i));
        }
#pragma unroll
        for (int n = 0; n < KEYS_PER_WARP; ++n) {
#pragma unroll
            for (int e = 0; e < PAIRS; ++e) v[n][e] = 0;
            if (first + n < last) load_pairs(v[n], values + (unsigned)(first + n) * stride);
        }
    };
    int first = split.first + warp * KEYS_PER_WARP;
    load(first);
#if FLAGS_IN_DATA
    stage_newest(m, smem, split, newest);
#endif
    float row_max[HEADS_PER_BLOCK], row_sum[HEADS_PER_BLOCK] = {};
    float2 acc_o[HEADS_PER_BLOCK][PAIRS] = {};
#pragma unroll
    for (int h = 0; h < HEADS_PER_BLOCK; ++h) row_max[h] = -1e30f;
#pragma unroll 1
    for (; first < split.last; first += KEYS_PER_BLOCK) {
        float p[HEADS_PER_BLOCK];
#if FLAGS_IN_DATA
        const __half *staged = reinterpret_cast<const __half*>(smem.sums), *queries = staged + lane % 8 * 8;
        if (newest && last - first < KEYS_PER_WARP) {  // it is among these
            const __half* key = staged + HEADS_PER_BLOCK * HEAD_DIM;
#pragma unroll
            for (int i = 0; i < PIECES; ++i)
                if (first + lane / 8 == last) k[i] = *reinterpret_cast<const uint4*>(key + lane % 8 * 8 + 64 * i);
#pragma unroll
            for (int n = 0; n < KEYS_PER_WARP; ++n)
#pragma unroll
                for (int e = 0; e < PAIRS; ++e)
                    if (first + n == last)
                        v[n][e] = reinterpret_cast<const unsigned*>(key + HEAD_DIM + lane * (HEAD_DIM / 32))[e];
        }
#else
        const __half* queries = m.queries + split.head * HEAD_DIM + lane % 8 * 8;
#endif
        uint4 q[HEADS_PER_BLOCK][PIECES];  // loaded again for every tile to save registers
#pragma unroll
        for (int h = 0; h < HEADS_PER_BLOCK; ++h)
#pragma unroll
            for (int i = 0; i < PIECES; ++i)
                q[h][i] = load_query(reinterpret_cast<const uint4*>(queries + h * HEAD_DIM + 64 * i));
#pragma unroll
        for (int h = 0; h < HEADS_PER_BLOCK; ++h) {
            float score = 0.0f;
#pragma unroll
            for (int i = 0; i < PIECES; ++i) score = multiply_add_8(k[i], q[h][i], score);
#pragma unroll
            for (int offset = 4; offset > 0; offset /= 2) score += __shfl_xor_sync(0xffffffffu, score, offset);
            score = first + lane / 8 < split.last ? score * scale : -1e30f;
            float new_max = fmaxf(row_max[h], score);
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 8));
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 16));
            const float rescale = exp2_approx(row_max[h] - new_max);
            p[h] = exp2_approx(score - new_max);  // 0 beyond the last key, because a split has at least one key
            row_max[h] = new_max;
            row_sum[h] = row_sum[h] * rescale + p[h];
#pragma unroll
            for (int e = 0; e < PAIRS; ++e) acc_o[h][e].x *= rescale, acc_o[h][e].y *= rescale;
        }
#pragma unroll
        for (int n = 0; n < KEYS_PER_WARP; ++n)
#pragma unroll
            for (int h = 0; h < HEADS_PER_BLOCK; ++h) {
                const float p_n = __shfl_sync(0xffffffffu, p[h], n * 8);
#pragma unroll
                for (int e = 0; e < PAIRS; ++e) {
                    const float2 value = __half22float2(as_half2(v[n][e]));
                    acc_o[h][e].x = fmaf(p_n, value.x, acc_o[h][e].x), acc_o[h][e].y = fmaf(p_n, value.y, acc_o[h][e].y);
                }
            }
        load(first + KEYS_PER_BLOCK);
    }
#pragma unroll
    for (int h = 0; h < HEADS_PER_BLOCK; ++h) {
        row_sum[h] += __shfl_xor_sync(0xffffffffu, row_sum[h], 8);
        row_sum[h] += __shfl_xor_sync(0xffffffffu, row_sum[h], 16);
        if (lane == 0) stats[warp * HEADS_PER_BLOCK + h] = {row_max[h], row_sum[h]};
        float2* out = reinterpret_cast<float2*>(outputs + (warp * HEADS_PER_BLOCK + h) * HEAD_DIM) + lane * PAIRS;
#pragma unroll
        for (int e = 0; e < PAIRS; ++e) out[e] = acc_o[h][e];
    }
    sync_consumers(smem);
    for (int i = threadIdx.x; i < HEADS_PER_BLOCK * HEAD_DIM; i += THREADS) {
        const int h = i / HEAD_DIM;
        float row_max = -1e30f, row_sum = 0.0f, output = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) row_max = fmaxf(row_max, stats[w * HEADS_PER_BLOCK + h].row_max);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const SplitStats own = stats[w * HEADS_PER_BLOCK + h];
            const float rescale = exp2_approx(own.row_max - row_max);
            row_sum = fmaf(rescale, own.row_sum, row_sum);
            output = fmaf(rescale, outputs[w * HEADS_PER_BLOCK * HEAD_DIM + i], output);
        }
        const int at = (split.head + h) * MAX_SPLITS + split.index;
#if FLAGS_IN_DATA
        store_flagged(m, handed(m, OUTPUTS_AT) + at * HEAD_DIM + i % HEAD_DIM,
                      __float2half(row_sum > 0.0f ? __fdividef(output, row_sum) : 0.0f));
        if (i % HEAD_DIM == 0) store_split(m, at, row_max, row_sum);
#else
        m.split_outputs[(size_t)at * HEAD_DIM + i % HEAD_DIM] =
            __float2half(row_sum > 0.0f ? __fdividef(output, row_sum) : 0.0f);
        if (i % HEAD_DIM == 0) m.split_stats[at] = {row_max, row_sum};
#endif
    }
}
