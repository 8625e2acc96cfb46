// Prologues
#pragma once
#include "common/decoder/activations.cuh"

// x = the rows of gate and up, which lie in its order: eight neighbours a thread, all asked for together. INT4 wants the sums of
// groups of 128, 16 lanes each.
template <int F>
__device__ inline void gated(const Decoder& m, const Room& room) {
    constexpr int PIECES = MLP / 8, TURNS = (PIECES + THREADS - 1) / THREADS, ROUNDS = (TURNS + 7) / 8;
    constexpr int AT_ONCE = (TURNS + ROUNDS - 1) / ROUNDS;
    const int lane = threadIdx.x % 32;
    for (int first = threadIdx.x; first < AT_ONCE * ROUNDS * THREADS; first += AT_ONCE * THREADS) {
        uint4 held[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            held[i] = make_uint4(0, 0, 0, 0);
            if (first + i * THREADS < PIECES)
                held[i] = __ldcg(reinterpret_cast<const uint4*>(m.inner) + first + i * THREADS);
        }
        float v[8] = {};
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int piece = first + i * THREADS;
            if (F != Q8 && piece < PIECES) reinterpret_cast<uint4*>(room.x)[piece] = held[i];
            if (F != HALF) {
                const float2 a = __half22float2(as_half2(held[i].x)), b = __half22float2(as_half2(held[i].y));
                const float2 c = __half22float2(as_half2(held[i].z)), d = __half22float2(as_half2(held[i].w));
                v[i] = ((a.x + a.y) + (b.x + b.y)) + ((c.x + c.y) + (d.x + d.y));
                const float eight[8] = {a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y};
                if (F == Q8) put_bytes(room, 8 * piece, eight, piece < PIECES);
            }
        }
        if (F == INT4) {
#pragma unroll
            for (int offset = 8; offset >= 2; offset /= 2)  // half of the lanes go on with half of the values
#pragma unroll
                for (int i = 0; i < offset / 2; ++i) {
                    const float keep = lane & offset ? v[i + offset / 2] : v[i], give = lane & offset ? v[i] : v[i + offset / 2];
                    v[i] = keep + __shfl_xor_sync(0xffffffffu, give, offset);
                }
            v[0] += __shfl_xor_sync(0xffffffffu, v[0], 1);
            const int turn = lane % 16 / 2, group = first / 16 + turn * (THREADS / 16);
            if (lane % 2 == 0 && turn < AT_ONCE && group < MLP / 128) room.x_sums[group] = v[0];
        }
    }
    sync_workers(room);
}

__device__ inline float4 four_halves(uint2 bits) {
    const float2 low = __half22float2(as_half2(bits.x)), high = __half22float2(as_half2(bits.y));
    return make_float4(low.x, low.y, high.x, high.y);
}

// Four neighbours of a token's embedding.
__device__ inline float4 embedded(const Decoder& m, int token, int k) {
    const size_t at = (size_t)token * m.hidden + k;
    if (HEAD_FORMAT == HALF)
        return four_halves(*reinterpret_cast<const uint2*>(reinterpret_cast<const __half*>(m.embedding) + at));
    const float scale = __half2float(m.s_embedding[at / 32]);
    const int word = *reinterpret_cast<const int*>(reinterpret_cast<const signed char*>(m.embedding) + at);
    return make_float4(scale * (signed char)word, scale * (signed char)(word >> 8), scale * (signed char)(word >> 16),
                       scale * (word >> 24));
}

// The likeliest of all blocks' candidates, the same in every block; all threads must call it.
__device__ inline int chosen_token(const Decoder& m, const Room& room) {
    if (threadIdx.x < 32) {
        Best best = {__int_as_float(0xff800000), 0x7fffffff};
        for (unsigned i = threadIdx.x; i < gridDim.x; i += 32) {
            const int2 bits = __ldcg(reinterpret_cast<const int2*>(m.bests) + i);
            const float value = __int_as_float(bits.x);
            if (value > best.value || (value == best.value && bits.y < best.index)) best = {value, bits.y};
        }
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            const float value = __shfl_xor_sync(0xffffffffu, best.value, offset);
            const int index = __shfl_xor_sync(0xffffffffu, best.index, offset);
            if (value > best.value || (value == best.value && index < best.index)) best = {value, index};
        }
        if (threadIdx.x == 0) room.few[WARPS] = __int_as_float(min(max(best.index, 0), m.vocab - 1));
    }
    sync_workers(room);
    return __float_as_int(room.few[WARPS]);
}

// x = the residual, or at a token's start its embedding (token >= 0), normalised and weighted.
template <int F>
__device__ inline void normalised(const Decoder& m, const Room& room, int norm, int token) {
    constexpr int TURNS = (HIDDEN + 4 * THREADS - 1) / (4 * THREADS);
    constexpr int HELD = TURNS < 4 ? TURNS : 4;  // pieces of a row that a thread keeps; what is beyond is read twice
    constexpr int BEYOND = TURNS > HELD ? HIDDEN : 0;
    const __half* weights = m.norms + (size_t)norm * m.hidden;
    float4 held[HELD] = {};
    uint2 by_weight[HELD] = {};
    float squares = 0.0f;
    const auto value = [&](int k) {
        return token >= 0 ? embedded(m, token, k) : __ldcg(reinterpret_cast<const float4*>(m.residual + k));
    };
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int k = 4 * (threadIdx.x + i * THREADS);
        if (k < m.hidden) {
            held[i] = value(k);
            by_weight[i] = *reinterpret_cast<const uint2*>(weights + k);
        }
    }
    const bool keeps = token >= 0 && blockIdx.x == 0;  // one for all
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int k = 4 * (threadIdx.x + i * THREADS);
        if (k < m.hidden && keeps) *reinterpret_cast<float4*>(m.residual + k) = held[i];
        squares += held[i].x * held[i].x + held[i].y * held[i].y + held[i].z * held[i].z + held[i].w * held[i].w;
    }
    for (int k = 4 * (threadIdx.x + HELD * THREADS); k < BEYOND; k += 4 * THREADS) {
        const float4 v = value(k);
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        if (keeps) *reinterpret_cast<float4*>(m.residual + k) = v;
    }
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) room.few[threadIdx.x / 32] = squares;
    sync_workers(room);
    squares = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) squares += room.few[w];
    const float by = rsqrtf(squares / m.hidden + m.epsilon);
    const auto put = [&](int k, float4 v, float4 w) {
        return put_four<F>(room, k, make_float4(v.x * by * w.x, v.y * by * w.y, v.z * by * w.z, v.w * by * w.w));
    };
    float sums[HELD] = {};
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int k = 4 * (threadIdx.x + i * THREADS);
        if (k < m.hidden) sums[i] = put(k, held[i], four_halves(by_weight[i]));
    }
    if (4 * (threadIdx.x / 32 * 32) < m.hidden) sum_groups<F>(room, sums, 4 * threadIdx.x, m.hidden);
    for (int k = 4 * (threadIdx.x + HELD * THREADS); k < BEYOND; k += 4 * THREADS) {
        const float one[1] = {put(k, value(k), four_halves(*reinterpret_cast<const uint2*>(weights + k)))};
        sum_groups<F>(room, one, k, m.hidden);
    }
    sync_workers(room);
}
