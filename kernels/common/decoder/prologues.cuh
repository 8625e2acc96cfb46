// Prepare x for a phase's products: SiLU(gate) * up (DOWN), or the embedding or residual after RMSNorm (QKV, GATE_UP,
// HEAD).
#pragma once
#include "common/decoder/activations.cuh"

// x = SiLU(gate) * up, which GATE_UP stored in the order of x: eight neighbours a thread, all loads before the first use.
// INT4 also gets the sums of groups of 128, 16 lanes each.
template <int F>
__device__ inline void load_mlp_inner(const Decoder& m, const Smem& smem) {
    constexpr int PIECES = MLP / 8, VECTORS = (PIECES + THREADS - 1) / THREADS, ROUNDS = (VECTORS + 7) / 8;
    constexpr int BATCH = (VECTORS + ROUNDS - 1) / ROUNDS;
    const int lane = threadIdx.x % 32;
    for (int first = threadIdx.x; first < BATCH * ROUNDS * THREADS; first += BATCH * THREADS) {
        uint4 v16[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            v16[i] = make_uint4(0, 0, 0, 0);
            if (first + i * THREADS < PIECES)
                v16[i] = __ldcg(reinterpret_cast<const uint4*>(m.inner) + first + i * THREADS);
        }
        float v[8] = {};
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int piece = first + i * THREADS;
            if (F != Q8 && piece < PIECES) reinterpret_cast<uint4*>(smem.x)[piece] = v16[i];
            if (F != FP16) {
                const float2 a = __half22float2(as_half2(v16[i].x)), b = __half22float2(as_half2(v16[i].y));
                const float2 c = __half22float2(as_half2(v16[i].z)), d = __half22float2(as_half2(v16[i].w));
                v[i] = ((a.x + a.y) + (b.x + b.y)) + ((c.x + c.y) + (d.x + d.y));
                const float eight[8] = {a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y};
                if (F == Q8) store_x_int8(smem, 8 * piece, eight, piece < PIECES);
            }
        }
        if (F == INT4) {
#pragma unroll
            for (int offset = 8; offset >= 2; offset /= 2)  // each half of the lanes keeps half of the values
#pragma unroll
                for (int i = 0; i < offset / 2; ++i) {
                    const float keep = lane & offset ? v[i + offset / 2] : v[i], give = lane & offset ? v[i] : v[i + offset / 2];
                    v[i] = keep + __shfl_xor_sync(0xffffffffu, give, offset);
                }
            v[0] += __shfl_xor_sync(0xffffffffu, v[0], 1);
            const int vector = lane % 16 / 2, group = first / 16 + vector * (THREADS / 16);
            if (lane % 2 == 0 && vector < BATCH && group < MLP / 128) smem.x_sums[group] = v[0];
        }
    }
    sync_consumers(smem);
}

__device__ inline float4 four_halves(uint2 bits) {
    const float2 low = __half22float2(as_half2(bits.x)), high = __half22float2(as_half2(bits.y));
    return make_float4(low.x, low.y, high.x, high.y);
}

// Load four neighbours of a token's embedding.
__device__ inline float4 load_embedding(const Decoder& m, int token, int k) {
    const size_t at = (size_t)token * m.hidden + k;
    if (HEAD_FORMAT == FP16)
        return four_halves(*reinterpret_cast<const uint2*>(reinterpret_cast<const __half*>(m.embedding) + at));
    const float scale = __half2float(m.s_embedding[at / 32]);
    const int word = *reinterpret_cast<const int*>(reinterpret_cast<const signed char*>(m.embedding) + at);
    return make_float4(scale * (signed char)word, scale * (signed char)(word >> 8), scale * (signed char)(word >> 16),
                       scale * (word >> 24));
}

// Choose the best of all blocks' candidates; every block gets the same. All threads must call it.
__device__ inline int best_candidate(const Decoder& m, const Smem& smem) {
    if (threadIdx.x < 32) {
        Candidate best = {__int_as_float(0xff800000), 0x7fffffff};
        for (unsigned i = threadIdx.x; i < gridDim.x; i += 32) {
            const int2 bits = __ldcg(reinterpret_cast<const int2*>(m.candidates) + i);
            const float value = __int_as_float(bits.x);
            if (value > best.value || (value == best.value && bits.y < best.index)) best = {value, bits.y};
        }
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            const float value = __shfl_xor_sync(0xffffffffu, best.value, offset);
            const int index = __shfl_xor_sync(0xffffffffu, best.index, offset);
            if (value > best.value || (value == best.value && index < best.index)) best = {value, index};
        }
        if (threadIdx.x == 0) smem.scratch[WARPS] = __int_as_float(min(max(best.index, 0), m.vocab - 1));
    }
    sync_consumers(smem);
    return __float_as_int(smem.scratch[WARPS]);
}

// x = RMSNorm of the residual, or of the token's embedding where token >= 0, which block 0 stores as the residual.
template <int F>
__device__ inline void load_rmsnorm(const Decoder& m, const Smem& smem, int norm, int token) {
    constexpr int VECTORS = (HIDDEN + 4 * THREADS - 1) / (4 * THREADS);
    constexpr int HELD = VECTORS < 4 ? VECTORS : 4;  // vectors that a thread keeps in registers; it reads the others twice
    constexpr int BEYOND = VECTORS > HELD ? HIDDEN : 0;
    const __half* weights = m.norms + (size_t)norm * m.hidden;
    float4 held[HELD] = {};
    uint2 weight[HELD] = {};
    float square_sum = 0.0f;
    const auto value = [&](int k) {
        return token >= 0 ? load_embedding(m, token, k) : __ldcg(reinterpret_cast<const float4*>(m.residual + k));
    };
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int k = 4 * (threadIdx.x + i * THREADS);
        if (k < m.hidden) {
            held[i] = value(k);
            weight[i] = *reinterpret_cast<const uint2*>(weights + k);
        }
    }
    const bool stores = token >= 0 && blockIdx.x == 0;
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int k = 4 * (threadIdx.x + i * THREADS);
        if (k < m.hidden && stores) *reinterpret_cast<float4*>(m.residual + k) = held[i];
        square_sum += held[i].x * held[i].x + held[i].y * held[i].y + held[i].z * held[i].z + held[i].w * held[i].w;
    }
    for (int k = 4 * (threadIdx.x + HELD * THREADS); k < BEYOND; k += 4 * THREADS) {
        const float4 v = value(k);
        square_sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        if (stores) *reinterpret_cast<float4*>(m.residual + k) = v;
    }
    square_sum = warp_sum(square_sum);
    if (threadIdx.x % 32 == 0) smem.scratch[threadIdx.x / 32] = square_sum;
    sync_consumers(smem);
    square_sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) square_sum += smem.scratch[w];
    const float scale = rsqrtf(square_sum / m.hidden + m.epsilon);
    const auto put = [&](int k, float4 v, float4 w) {
        return store_x4<F>(smem, k,
                           make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w));
    };
    float sums[HELD] = {};
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int k = 4 * (threadIdx.x + i * THREADS);
        if (k < m.hidden) sums[i] = put(k, held[i], four_halves(weight[i]));
    }
    if (4 * (threadIdx.x / 32 * 32) < m.hidden) sum_groups<F>(smem, sums, 4 * threadIdx.x, m.hidden);
    for (int k = 4 * (threadIdx.x + HELD * THREADS); k < BEYOND; k += 4 * THREADS) {
        const float one[1] = {put(k, value(k), four_halves(*reinterpret_cast<const uint2*>(weights + k)))};
        sum_groups<F>(smem, one, k, m.hidden);
    }
    sync_consumers(smem);
}
