// Attention
#pragma once

// Which part of which key-value head's cache a block attends to, for TOGETHER query heads from `head` on; none with
// kv_head = kv_heads.
struct Part {
    int kv_head, head, part, first, last, splits;
};

__device__ inline int splits_of(const Decoder& m, int length) {
    return max(1, min(min((length + KEYS - 1) / KEYS, MOST_SPLITS), (int)gridDim.x / (m.heads / TOGETHER)));
}

__device__ inline Part part_of(const Decoder& m, int length) {
    Part p;
    p.splits = splits_of(m, length);
    p.head = min((int)blockIdx.x / p.splits * TOGETHER, m.heads);
    p.kv_head = p.head / GROUP;
    p.part = blockIdx.x % p.splits;
    const int each = (length + p.splits - 1) / p.splits;
    p.first = p.part * each;
    p.last = min(p.first + each, length);
    return p;
}

// Keys and values that ATTEND will want into the L2, and the lines where the newest will be written.
__device__ inline void foresee(const Decoder& m, const Part& p, int layer, int place) {
    if (p.kv_head == m.kv_heads) return;
    const size_t stride = (size_t)m.kv_heads * HEAD_DIM;
    const size_t start = (size_t)layer * m.capacity * stride + p.kv_head * HEAD_DIM;
    for (int i = threadIdx.x; i < (p.last - p.first) * (HEAD_DIM / 64); i += THREADS) {
        const size_t at = start + (p.first + i / (HEAD_DIM / 64)) * stride + i % (HEAD_DIM / 64) * 64;
        prefetch_l2(m.cache_k + at);
        prefetch_l2(m.cache_v + at);
    }
}

// N times two halves, past the L1.
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

// Query heads that share a key-value head against a part of the cache; the parts meet in OUT. A warp attends to keys of its
// own as if there were no others, and the warps meet once, in the end. Of a key eight lanes score a piece each; of a value
// each lane takes HEAD_DIM / 32 neighbours.
__device__ inline void attend(const Decoder& m, const Room& room, const Part& p, int layer) {
    constexpr int PIECES = HEAD_DIM / 64, PAIRS = HEAD_DIM / 64;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (p.kv_head == m.kv_heads) return;
    constexpr unsigned stride = KV_HEADS * HEAD_DIM;
    const size_t start = (size_t)layer * m.capacity * stride + p.kv_head * HEAD_DIM;
    const __half *keys = m.cache_k + start + lane % 8 * 8, *values = m.cache_v + start + lane * (HEAD_DIM / 32);
    const float scale = rsqrtf((float)HEAD_DIM) * 1.44269504f;
    float* outputs = reinterpret_cast<float*>(room.x);                                            // [WARPS][TOGETHER][HEAD_DIM]
    PartSums* sums = reinterpret_cast<PartSums*>(outputs + WARPS * TOGETHER * HEAD_DIM);  // [WARPS][TOGETHER]

    uint4 k[PIECES];
    unsigned v[KEYS_A_WARP][PAIRS];
    const auto load = [&](int first) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const int key = first + lane / 8;
            k[i] = make_uint4(0, 0, 0, 0);
            if (key < p.last) k[i] = __ldcg(reinterpret_cast<const uint4*>(keys + (unsigned)key * stride + 64 * i));
        }
#pragma unroll
        for (int n = 0; n < KEYS_A_WARP; ++n) {
#pragma unroll
            for (int e = 0; e < PAIRS; ++e) v[n][e] = 0;
            if (first + n < p.last) load_pairs(v[n], values + (unsigned)(first + n) * stride);
        }
    };
    int first = p.first + warp * KEYS_A_WARP;
    load(first);
    float largest[TOGETHER], weights[TOGETHER] = {};
    float2 sum[TOGETHER][PAIRS] = {};
#pragma unroll
    for (int h = 0; h < TOGETHER; ++h) largest[h] = -1e30f;
#pragma unroll 1
    for (; first < p.last; first += KEYS) {
        float weight[TOGETHER];
        const __half* queries = m.queries + p.head * HEAD_DIM + lane % 8 * 8;
        uint4 q[TOGETHER][PIECES];  // asked for again every time: registers are few
#pragma unroll
        for (int h = 0; h < TOGETHER; ++h)
#pragma unroll
            for (int i = 0; i < PIECES; ++i) q[h][i] = __ldcg(reinterpret_cast<const uint4*>(queries + h * HEAD_DIM + 64 * i));
#pragma unroll
        for (int h = 0; h < TOGETHER; ++h) {
            float dot = 0.0f;
#pragma unroll
            for (int i = 0; i < PIECES; ++i) dot = multiply_add_8(k[i], q[h][i], dot);
#pragma unroll
            for (int offset = 4; offset > 0; offset /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, offset);
            dot = first + lane / 8 < p.last ? dot * scale : -1e30f;
            float most = fmaxf(largest[h], dot);
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 8));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 16));
            const float rescale = exp2_approx(largest[h] - most);
            weight[h] = exp2_approx(dot - most);  // 0 beyond the last key: a first one is always there
            largest[h] = most;
            weights[h] = weights[h] * rescale + weight[h];
#pragma unroll
            for (int e = 0; e < PAIRS; ++e) sum[h][e].x *= rescale, sum[h][e].y *= rescale;
        }
#pragma unroll
        for (int n = 0; n < KEYS_A_WARP; ++n)
#pragma unroll
            for (int h = 0; h < TOGETHER; ++h) {
                const float by = __shfl_sync(0xffffffffu, weight[h], n * 8);
#pragma unroll
                for (int e = 0; e < PAIRS; ++e) {
                    const float2 value = __half22float2(as_half2(v[n][e]));
                    sum[h][e].x = fmaf(by, value.x, sum[h][e].x), sum[h][e].y = fmaf(by, value.y, sum[h][e].y);
                }
            }
        load(first + KEYS);
    }
#pragma unroll
    for (int h = 0; h < TOGETHER; ++h) {
        weights[h] += __shfl_xor_sync(0xffffffffu, weights[h], 8);
        weights[h] += __shfl_xor_sync(0xffffffffu, weights[h], 16);
        if (lane == 0) sums[warp * TOGETHER + h] = {largest[h], weights[h]};
        float2* out = reinterpret_cast<float2*>(outputs + (warp * TOGETHER + h) * HEAD_DIM) + lane * PAIRS;
#pragma unroll
        for (int e = 0; e < PAIRS; ++e) out[e] = sum[h][e];
    }
    sync_workers(room);
    for (int i = threadIdx.x; i < TOGETHER * HEAD_DIM; i += THREADS) {
        const int h = i / HEAD_DIM;
        float most = -1e30f, all = 0.0f, output = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) most = fmaxf(most, sums[w * TOGETHER + h].largest);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const PartSums own = sums[w * TOGETHER + h];
            const float by = exp2_approx(own.largest - most);
            all = fmaf(by, own.sum, all);
            output = fmaf(by, outputs[w * TOGETHER * HEAD_DIM + i], output);
        }
        const int at = (p.head + h) * MOST_SPLITS + p.part;
        m.part_outputs[(size_t)at * HEAD_DIM + i % HEAD_DIM] = __float2half(all > 0.0f ? output / all : 0.0f);
        if (i % HEAD_DIM == 0) m.parts[at] = {most, all};
    }
}

// x = the parts' outputs as one, head by head.
template <int F>
__device__ inline void attended(const Decoder& m, const Room& room, int splits) {
    constexpr int WIDTH = HEADS * HEAD_DIM, TURNS = (WIDTH + 4 * THREADS - 1) / (4 * THREADS), ROUNDS = (TURNS + 2) / 3;
    constexpr int AT_ONCE = (TURNS + ROUNDS - 1) / ROUNDS, PARTS = AT_ONCE == 1 ? 6 : 3;  // that are asked for together
    for (int first = 4 * threadIdx.x; first < WIDTH; first += AT_ONCE * 4 * THREADS) {
        float4 sum[AT_ONCE] = {};
        float largest[AT_ONCE], weights[AT_ONCE] = {};
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) largest[i] = -1e30f;
        for (int p = 0; p < splits; p += PARTS) {
            float2 part[AT_ONCE][PARTS];
            uint2 o[AT_ONCE][PARTS];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
                for (int j = 0; j < PARTS; ++j) {
                    const int k = first + i * 4 * THREADS, at = k / HEAD_DIM * MOST_SPLITS + p + j;
                    const bool there = p + j < splits && k < WIDTH;
                    part[i][j] = make_float2(-1e30f, 0.0f), o[i][j] = make_uint2(0, 0);
                    if (there) part[i][j] = __ldcg(reinterpret_cast<const float2*>(m.parts) + at);
                    if (there) o[i][j] = __ldcg(reinterpret_cast<const uint2*>(m.part_outputs + at * HEAD_DIM + k % HEAD_DIM));
                }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                float most = largest[i];
#pragma unroll
                for (int j = 0; j < PARTS; ++j) most = fmaxf(most, part[i][j].x);
                const float old = exp2_approx(largest[i] - most);
                weights[i] *= old, sum[i].x *= old, sum[i].y *= old, sum[i].z *= old, sum[i].w *= old;
                largest[i] = most;
#pragma unroll
                for (int j = 0; j < PARTS; ++j) {
                    const float weight = exp2_approx(part[i][j].x - most) * part[i][j].y;
                    const float4 v = four_halves(o[i][j]);
                    weights[i] += weight;
                    sum[i].x = fmaf(weight, v.x, sum[i].x), sum[i].y = fmaf(weight, v.y, sum[i].y);
                    sum[i].z = fmaf(weight, v.z, sum[i].z), sum[i].w = fmaf(weight, v.w, sum[i].w);
                }
            }
        }
        float sums[AT_ONCE] = {};
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int k = first + i * 4 * THREADS;
            const float by = 1.0f / weights[i];
            if (k < WIDTH)
                sums[i] = put_four<F>(room, k, make_float4(sum[i].x * by, sum[i].y * by, sum[i].z * by, sum[i].w * by));
        }
        sum_groups<F>(room, sums, first, WIDTH);
    }
    sync_workers(room);
}
