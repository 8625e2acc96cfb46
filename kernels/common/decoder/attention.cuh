// Attend to the cache with one query a head (ATTEND), the context split among blocks, and merge the splits (OUT).
#pragma once

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

// Attend with the block's query heads to its split of the cache; OUT merges the splits (load_attention). Each warp runs an
// online softmax over keys of its own, and the warps' results are merged once at the end. Eight lanes score a key; each
// lane sums HEAD_DIM / 32 neighbours of the values.
__device__ inline void attend(const Decoder& m, const Smem& smem, const KvSplit& split, int layer) {
    constexpr int PIECES = HEAD_DIM / 64, PAIRS = HEAD_DIM / 64;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (split.kv_head == m.kv_heads) return;
    constexpr unsigned stride = KV_HEADS * HEAD_DIM;
    const size_t start = (size_t)layer * m.capacity * stride + split.kv_head * HEAD_DIM;
    const __half *keys = m.cache_k + start + lane % 8 * 8, *values = m.cache_v + start + lane * (HEAD_DIM / 32);
    const float scale = rsqrtf((float)HEAD_DIM) * 1.44269504f;
    float* outputs = reinterpret_cast<float*>(smem.x);  // [WARPS][HEADS_PER_BLOCK][HEAD_DIM], then stats without HEAD_DIM
    SplitStats* stats = reinterpret_cast<SplitStats*>(outputs + WARPS * HEADS_PER_BLOCK * HEAD_DIM);

    uint4 k[PIECES];
    unsigned v[KEYS_PER_WARP][PAIRS];
    const auto load = [&](int first) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const int key = first + lane / 8;
            k[i] = make_uint4(0, 0, 0, 0);
            if (key < split.last) k[i] = __ldcg(reinterpret_cast<const uint4*>(keys + (unsigned)key * stride + 64 * i));
        }
#pragma unroll
        for (int n = 0; n < KEYS_PER_WARP; ++n) {
#pragma unroll
            for (int e = 0; e < PAIRS; ++e) v[n][e] = 0;
            if (first + n < split.last) load_pairs(v[n], values + (unsigned)(first + n) * stride);
        }
    };
    int first = split.first + warp * KEYS_PER_WARP;
    load(first);
    float row_max[HEADS_PER_BLOCK], row_sum[HEADS_PER_BLOCK] = {};
    float2 acc_o[HEADS_PER_BLOCK][PAIRS] = {};
#pragma unroll
    for (int h = 0; h < HEADS_PER_BLOCK; ++h) row_max[h] = -1e30f;
#pragma unroll 1
    for (; first < split.last; first += KEYS_PER_BLOCK) {
        float p[HEADS_PER_BLOCK];
        const __half* queries = m.queries + split.head * HEAD_DIM + lane % 8 * 8;
        uint4 q[HEADS_PER_BLOCK][PIECES];  // loaded again for every tile to save registers
#pragma unroll
        for (int h = 0; h < HEADS_PER_BLOCK; ++h)
#pragma unroll
            for (int i = 0; i < PIECES; ++i) q[h][i] = __ldcg(reinterpret_cast<const uint4*>(queries + h * HEAD_DIM + 64 * i));
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
        m.split_outputs[(size_t)at * HEAD_DIM + i % HEAD_DIM] = __float2half(row_sum > 0.0f ? output / row_sum : 0.0f);
        if (i % HEAD_DIM == 0) m.split_stats[at] = {row_max, row_sum};
    }
}

// x = the outputs of attention: the splits of each head merged by their softmax states.
template <int F>
__device__ inline void load_attention(const Decoder& m, const Smem& smem, int splits) {
    constexpr int WIDTH = HEADS * HEAD_DIM, VECTORS = (WIDTH + 4 * THREADS - 1) / (4 * THREADS), ROUNDS = (VECTORS + 2) / 3;
    constexpr int BATCH = (VECTORS + ROUNDS - 1) / ROUNDS, SPLITS = BATCH == 1 ? 6 : 3;  // loaded together
    for (int first = 4 * threadIdx.x; first < WIDTH; first += BATCH * 4 * THREADS) {
        float4 acc_o[BATCH] = {};
        float row_max[BATCH], row_sum[BATCH] = {};
#pragma unroll
        for (int i = 0; i < BATCH; ++i) row_max[i] = -1e30f;
        for (int p = 0; p < splits; p += SPLITS) {
            float2 stats[BATCH][SPLITS];
            uint2 split_o[BATCH][SPLITS];
#pragma unroll
            for (int i = 0; i < BATCH; ++i)
#pragma unroll
                for (int j = 0; j < SPLITS; ++j) {
                    const int k = first + i * 4 * THREADS, at = k / HEAD_DIM * MAX_SPLITS + p + j;
                    const bool valid = p + j < splits && k < WIDTH;
                    stats[i][j] = make_float2(-1e30f, 0.0f), split_o[i][j] = make_uint2(0, 0);
                    if (valid) stats[i][j] = __ldcg(reinterpret_cast<const float2*>(m.split_stats) + at);
                    if (valid)
                        split_o[i][j] =
                            __ldcg(reinterpret_cast<const uint2*>(m.split_outputs + at * HEAD_DIM + k % HEAD_DIM));
                }
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
            const float inverse = 1.0f / row_sum[i];
            if (k < WIDTH)
                sums[i] = store_x4<F>(smem, k,
                                      make_float4(acc_o[i].x * inverse, acc_o[i].y * inverse, acc_o[i].z * inverse,
                                                  acc_o[i].w * inverse));
        }
        sum_groups<F>(smem, sums, first, WIDTH);
    }
    sync_consumers(smem);
}
