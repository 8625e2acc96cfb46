// Attend to a split of the cache by all query heads of a key-value head, on the tensor cores.
//
// A warp takes 16 keys at a time. Scores are heads (rows of the first operand, of which 8 are used) by keys; they lie in
// the registers where the second operand of the next product wants them: outputs, transposed, are dimensions by heads.
// Loads are of 16 bytes from global memory, without shared memory: the dimensions that a product adds up may come in any
// order that both operands share, and those of the outputs in any order that is undone when they are stored.
#pragma once
#include "common/ptx/exp2.cuh"
#include "common/ptx/mma.cuh"

// Keys from `last` on are read as the last one, so that what they are multiplied by decides.
// With g = lane / 4 and t = lane % 4, dimensions 32 i + 8 t to 32 i + 8 t + 7 of keys `first` + g and `first` + 8 + g.
__device__ inline void load_keys(uint4 (&k)[2][HEAD_DIM / 32], const __half* keys, int lane, int first, int last) {
    constexpr unsigned stride = KV_HEADS * HEAD_DIM;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        const unsigned key = min(first + 8 * n + lane / 4, last - 1);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 32; ++i)
            k[n][i] = __ldcg(reinterpret_cast<const uint4*>(keys + key * stride + 32 * i));
    }
}

// Dimensions 8 g to 8 g + 7 of keys `first` + 2 t, 2 t + 1, 2 t + 8 and 2 t + 9.
__device__ inline void load_values(uint4 (&v)[4], const __half* values, int lane, int first, int last) {
    constexpr unsigned stride = KV_HEADS * HEAD_DIM;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const unsigned key = min(first + n / 2 * 8 + n % 2 + lane % 4 * 2, last - 1);
        v[n] = __ldcg(reinterpret_cast<const uint4*>(values + key * stride));
    }
}

// The scores of 16 keys (columns) by the heads (rows g): score[n][0] and [1] of keys 8 n + 2 t and the one after it. q is this
// lane's share of the queries, in shared memory.
__device__ inline void score_keys(float (&score)[2][4], const uint4* q, const uint4 (&k)[2][HEAD_DIM / 32]) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 32; ++i) {
        const uint4 piece = q[4 * i];
        const unsigned q0[4] = {piece.x, 0, piece.y, 0}, q1[4] = {piece.z, 0, piece.w, 0};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const unsigned k0[2] = {k[n][i].x, k[n][i].y}, k1[2] = {k[n][i].z, k[n][i].w};
            mma_m16n8k16_f16(score[n], q0, k0);
            mma_m16n8k16_f16(score[n], q1, k1);
        }
    }
}

__device__ inline unsigned word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Attend with the block's query heads to its split of the cache; OUT merges the splits (load_attention). Each warp runs an
// online softmax over keys of its own, and the warps' results are merged once at the end.
__device__ inline void attend(const Decoder& m, const Smem& smem, const KvSplit& split, int layer, int pos) {
    static_assert(GROUP <= 8, "eight rows of scores are used");
    constexpr int STEPS = HEAD_DIM / 16;  // of 16 dimensions of the outputs
    const int thread = thread_number(), warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    if (split.kv_head == m.kv_heads) return;
    const size_t start = ((size_t)layer * m.capacity * KV_HEADS + split.kv_head) * HEAD_DIM;
    const __half *keys = m.cache_k + start + 8 * t, *values = m.cache_v + start + 8 * g;
    const float scale = rsqrtf((float)HEAD_DIM) * 1.44269504f;
    int first = split.first + warp * KEYS_PER_WARP;
    uint4 k[2][HEAD_DIM / 32], v[HEAD_DIM / 64][4];
    load_keys(k, keys, lane, first, split.last);
    load_values(v[0], values, lane, first, split.last);
    constexpr int PIECES = GROUP * HEAD_DIM / 8;
    uint4* queries = reinterpret_cast<uint4*>(smem.sums);  // [GROUP][HEAD_DIM]
    for (int i = thread; i < PIECES; i += THREADS)
        queries[i] = __ldcg(reinterpret_cast<const uint4*>(m.queries + split.head * HEAD_DIM) + i);
    sync_consumers(smem);
    const uint4* q = queries + min(g, GROUP - 1) * (HEAD_DIM / 8) + t;  // rows beyond the heads count for nothing
    float row_max = -1e30f, row_sum = 0.0f;  // of head g; of the sum this lane's share
    float acc_o[STEPS][4] = {};              // dimensions (see below) of heads 2 t and 2 t + 1
#pragma unroll 1
    for (; first < split.last; first += KEYS_PER_BLOCK) {
        float score[2][4] = {};
        score_keys(score, q, k);
#pragma unroll
        for (int i = 1; i < HEAD_DIM / 64; ++i) load_values(v[i], values + 64 * i, lane, first, split.last);
        float new_max = row_max;
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                score[n][e] = first + 8 * n + 2 * t + e < split.last ? score[n][e] * scale : -1e30f;
                new_max = fmaxf(new_max, score[n][e]);
            }
        new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 1));
        new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 2));
        const float rescale = exp2_approx(row_max - new_max);
        row_max = new_max;
        row_sum *= rescale;
        unsigned p[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            // 0 beyond the last key, because the first of 16 keys is one.
            const __half2 pair = __floats2half2_rn(exp2_approx(score[n][0] - new_max), exp2_approx(score[n][1] - new_max));
            const float2 rounded = __half22float2(pair);
            row_sum += rounded.x + rounded.y;
            p[n] = as_word(pair);
        }
        const float even = __shfl_sync(0xffffffffu, rescale, 8 * t), odd = __shfl_sync(0xffffffffu, rescale, 8 * t + 4);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            acc_o[step][0] *= even, acc_o[step][1] *= odd, acc_o[step][2] *= even, acc_o[step][3] *= odd;
            // Rows g and g + 8 are dimensions 64 i + 8 g + 2 j and the one after it, with step = 4 i + j.
            unsigned word[4], a[4];
#pragma unroll
            for (int n = 0; n < 4; ++n) word[n] = word_of(v[step / 4][n], step % 4);
            a[0] = __byte_perm(word[0], word[1], 0x5410), a[1] = __byte_perm(word[0], word[1], 0x7632);
            a[2] = __byte_perm(word[2], word[3], 0x5410), a[3] = __byte_perm(word[2], word[3], 0x7632);
            mma_m16n8k16_f16(acc_o[step], a, p);
        }
        load_keys(k, keys, lane, first + KEYS_PER_BLOCK, split.last);
        load_values(v[0], values, lane, first + KEYS_PER_BLOCK, split.last);
    }
    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 1);
    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 2);
    __half* outputs = smem.x;  // [WARPS][GROUP][HEAD_DIM], each divided by its row_sum; then stats without HEAD_DIM
    SplitStats* stats = reinterpret_cast<SplitStats*>(outputs + WARPS * GROUP * HEAD_DIM);
    if (t == 0 && g < GROUP) stats[warp * GROUP + g] = {row_max, row_sum};
    const float inverse = row_sum > 0.0f ? __fdividef(1.0f, row_sum) : 0.0f;
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
        const int head = 2 * t + odd;
        const float by = __shfl_sync(0xffffffffu, inverse, 4 * head);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 64; ++i) {
            unsigned word[4];
#pragma unroll
            for (int j = 0; j < 4; ++j)
                word[j] = as_word(__floats2half2_rn(acc_o[4 * i + j][odd] * by, acc_o[4 * i + j][odd + 2] * by));
            if (head < GROUP)
                *reinterpret_cast<uint4*>(outputs + (warp * GROUP + head) * HEAD_DIM + 64 * i + 8 * g) =
                    make_uint4(word[0], word[1], word[2], word[3]);
        }
    }
    sync_consumers(smem);
    for (int i = thread; i < GROUP * HEAD_DIM / 2; i += THREADS) {
        const int h = 2 * i / HEAD_DIM;
        float row_max = -1e30f, row_sum = 0.0f;
        float2 output = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) row_max = fmaxf(row_max, stats[w * GROUP + h].row_max);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const SplitStats own = stats[w * GROUP + h];
            const float weight = exp2_approx(own.row_max - row_max) * own.row_sum;
            const float2 o = __half22float2(reinterpret_cast<const __half2*>(outputs)[w * (GROUP * HEAD_DIM / 2) + i]);
            row_sum += weight;
            output.x = fmaf(weight, o.x, output.x), output.y = fmaf(weight, o.y, output.y);
        }
        const int at = (split.head + h) * MAX_SPLITS + split.index;
        const float by = row_sum > 0.0f ? __fdividef(1.0f, row_sum) : 0.0f;
        reinterpret_cast<__half2*>(m.split_outputs)[at * (HEAD_DIM / 2) + i % (HEAD_DIM / 2)] =
            __floats2half2_rn(output.x * by, output.y * by);
        if (2 * i % HEAD_DIM == 0) m.split_stats[at] = {row_max, row_sum};
    }
}
