// Prepare x for a phase's products: SiLU(gate) * up (DOWN), or the embedding or residual after RMSNorm (QKV, GATE_UP,
// HEAD).
#pragma once
#include "common/decoder/activations.cuh"
#include "common/ptx/ordered.cuh"

// x = SiLU(gate) * up, or the slab of it that this block multiplies, which GATE_UP stored in the order of x: eight
// neighbours a thread, all loads before the first use. INT4 also gets the sums of groups of 128, 16 lanes each.
template <int F>
__device__ inline void load_mlp_inner(const Decoder& m, const Smem& smem) {
    const int thread = thread_number();
    constexpr int CHUNKS = MLP / CHUNK<F>, MOST = SPLIT_K ? (CHUNKS + SLABS_OF_DOWN - 1) / larger(SLABS_OF_DOWN, 1) : CHUNKS;
    constexpr int VECTORS = (MOST * CHUNK<F> / 8 + THREADS - 1) / THREADS, ROUNDS = (VECTORS + 7) / 8;
    const int PIECES = SPLIT_K ? smem.plans[DOWN].chunks * (CHUNK<F> / 8) : MLP / 8;
    const int begin = SPLIT_K ? smem.plans[DOWN].first_chunk * (CHUNK<F> / 8) : 0;
    constexpr int BATCH = (VECTORS + ROUNDS - 1) / ROUNDS;
    const int lane = thread % 32;
#pragma unroll 1
    for (int round = 0; round < ROUNDS; ++round) {
        const int first = thread + round * (BATCH * THREADS);
        uint4 v16[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            v16[i] = make_uint4(0, 0, 0, 0);
            if (first + i * THREADS < PIECES)
#if FLAGS_IN_DATA
                v16[i] = wait_for_eight(handed(m, INNER_AT) + 8 * (begin + first + i * THREADS), m.flag);
#else
                v16[i] = __ldcg(reinterpret_cast<const uint4*>(m.inner) + begin + first + i * THREADS);
#endif
        }
        float v[8] = {};
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int piece = first + i * THREADS;
            if (!AS_BYTES<F> && piece < PIECES) reinterpret_cast<uint4*>(smem.x)[piece] = v16[i];
            if (F != FP16) {
                const float2 a = __half22float2(as_half2(v16[i].x)), b = __half22float2(as_half2(v16[i].y));
                const float2 c = __half22float2(as_half2(v16[i].z)), d = __half22float2(as_half2(v16[i].w));
                v[i] = ((a.x + a.y) + (b.x + b.y)) + ((c.x + c.y) + (d.x + d.y));
                const float eight[1][8] = {{a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y}};
                if (F == Q8) store_x_int8(smem, 8 * piece, eight[0], piece < PIECES);
                if (F == INT4 && AS_BYTES<F>) store_x_bytes(smem, 8 * piece, eight, piece < PIECES);
            }
        }
        if (F == INT4 && !AS_BYTES<F>) {
#pragma unroll
            for (int offset = 8; offset >= 2; offset /= 2)  // each half of the lanes keeps half of the values
#pragma unroll
                for (int i = 0; i < offset / 2; ++i) {
                    const float keep = lane & offset ? v[i + offset / 2] : v[i], give = lane & offset ? v[i] : v[i + offset / 2];
                    v[i] = keep + __shfl_xor_sync(0xffffffffu, give, offset);
                }
            v[0] += __shfl_xor_sync(0xffffffffu, v[0], 1);
            const int vector = lane % 16 / 2, group = first / 16 + vector * (THREADS / 16);
            if (lane % 2 == 0 && vector < BATCH && group < PIECES / 16) smem.x_sums[group] = v[0];
        }
    }
    sync_consumers(smem);
}

__device__ inline float4 four_halves(uint2 bits) {
    const float2 low = __half22float2(as_half2(bits.x)), high = __half22float2(as_half2(bits.y));
    return make_float4(low.x, low.y, high.x, high.y);
}

// Load two neighbours of a token's embedding.
__device__ inline float2 load_embedding_pair(const Decoder& m, int token, int k) {
    const size_t at = (size_t)token * m.hidden + k;
    if (HEAD_FORMAT == FP16)
        return __half22float2(*reinterpret_cast<const __half2*>(reinterpret_cast<const __half*>(m.embedding) + at));
    const float scale = __half2float(m.s_embedding[at / 32]);
    const signed char* from = reinterpret_cast<const signed char*>(m.embedding) + at;
    return make_float2(scale * from[0], scale * from[1]);
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

// Four elements of the residual as they lie in memory: neighbours from a thread's place k on; in fixed point, where a warp's
// loads of 16 bytes shall be contiguous, two from its place on and two from 64 further on, see pair_place. They are converted
// when they are used: a thread that converts one load before it issues the next waits for memory twice.
struct Residual4 {
    uint4 first, second;  // `second` in fixed point alone
};

constexpr bool FIXED = SPLIT_K && !FLAGGED;  // whether a residual that has been loaded is still in fixed point

__device__ inline Residual4 of_floats(float a, float b, float c, float d) {
    return {make_uint4(__float_as_uint(a), __float_as_uint(b), __float_as_uint(c), __float_as_uint(d)), make_uint4(0, 0, 0, 0)};
}

__device__ inline float4 values_of(const Residual4& r) {
    const uint4 a = r.first, b = r.second;
    if constexpr (FIXED) {
        const auto number = [](unsigned low, unsigned high) {
            return from_fixed((long long)((unsigned long long)high << 32 | low));
        };
        return make_float4(number(a.x, a.y), number(a.z, a.w), number(b.x, b.y), number(b.z, b.w));
    }
    return make_float4(__uint_as_float(a.x), __uint_as_float(a.y), __uint_as_float(a.z), __uint_as_float(a.w));
}

__device__ inline int pair_place(int k) { return SPLIT_K ? k / 128 * 128 + k % 128 / 2 : k; }

#if FLAGS_IN_DATA
// Wait until the residual is complete after the layers before or, if `after_out`, after this layer's OUT: of N
// times four elements, from `first` on and 4 THREADS apart.
template <int N>
__device__ inline void wait_for_residual(const Decoder& m, Residual4 (&held)[N], int first, bool after_out) {
    const unsigned awaited = after_out ? counted_out(m) : counted_down(m);
    const unsigned long long* sums = m.sums + (after_out ? 0 : HIDDEN);
    const float4* kept = kept_sums(m, !after_out);
    float4 rest[N] = {};  // before the first layer's GATE_UP nothing has been added to DOWN's sums
#pragma unroll
    for (int i = 0; i < N; ++i)
        if (first + i * 4 * THREADS < HIDDEN && !(after_out && m.layers_done == 0)) rest[i] = kept[first / 4 + i * THREADS];
    const auto words = [](const ulonglong2& v) {
        return make_uint4((unsigned)v.x, (unsigned)(v.x >> 32), (unsigned)v.y, (unsigned)(v.y >> 32));
    };
    unsigned missing;
    do {
        missing = 0;
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (first + i * 4 * THREADS < HIDDEN) {
                const ulonglong2* from = reinterpret_cast<const ulonglong2*>(sums + pair_place(first + i * 4 * THREADS));
                held[i] = {words(load_relaxed(from)), words(load_relaxed(from + 32))};
            }
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (first + i * 4 * THREADS < HIDDEN)
                missing |= (held[i].first.x - awaited) | (held[i].first.z - awaited) | (held[i].second.x - awaited) |
                           (held[i].second.z - awaited);
    } while (missing & ((1 << COUNT_BITS) - 1));
    __syncwarp();
    const auto number = [&](unsigned low, unsigned high) {
        return from_fixed((long long)(((unsigned long long)high << 32 | low) - awaited));
    };
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if (first + i * 4 * THREADS >= HIDDEN) continue;
        const uint4 a = held[i].first, b = held[i].second;
        const float4 v = make_float4(number(a.x, a.y), number(a.z, a.w), number(b.x, b.y), number(b.z, b.w));
        kept_sums(m, after_out)[first / 4 + i * THREADS] = v;
        held[i] = of_floats(v.x + rest[i].x, v.y + rest[i].y, v.z + rest[i].z, v.w + rest[i].w);
    }
}

// A token begins with its embedding, which is added to OUT's sums.
__device__ inline void store_residual(const Decoder& m, int k, const Residual4& embedding) {
    const float4 v = values_of(embedding);
    const float four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
        atomicAdd(m.sums + pair_place(k) + i / 2 * 64 + i % 2, (unsigned long long)to_fixed(four[i]) + 1);
}

__device__ inline Residual4 load_residual(const Decoder& m, int k, bool after_out) {
    Residual4 one[1] = {};
    wait_for_residual(m, one, k, after_out);
    return one[0];
}
#else
__device__ inline Residual4 load_residual(const Decoder& m, int k, bool = false) {
    if constexpr (SPLIT_K) {
        const uint4* from = reinterpret_cast<const uint4*>(m.residual_fixed + pair_place(k));
        return {__ldcg(from), __ldcg(from + 32)};
    }
    return {__ldcg(reinterpret_cast<const uint4*>(m.residual + k)), make_uint4(0, 0, 0, 0)};
}

__device__ inline void store_residual(const Decoder& m, int k, const Residual4& r) {
    if constexpr (SPLIT_K) {
        uint4* to = reinterpret_cast<uint4*>(m.residual_fixed + pair_place(k));
        to[0] = r.first, to[32] = r.second;
    } else {
        *reinterpret_cast<uint4*>(m.residual + k) = r.first;
    }
}
#endif

// Four elements of a token's embedding as a residual. Fixed point holds them exactly: they are multiples of 2^-24.
__device__ inline Residual4 embedded(const Decoder& m, int token, int k) {
    if constexpr (SPLIT_K) {
        const int at = pair_place(k);
        const float2 v = load_embedding_pair(m, token, at), w = load_embedding_pair(m, token, at + 64);
        if constexpr (!FIXED) return of_floats(v.x, v.y, w.x, w.y);
        const auto pair = [](float2 two) {
            const unsigned long long x = to_fixed(two.x), y = to_fixed(two.y);
            return make_uint4((unsigned)x, (unsigned)(x >> 32), (unsigned)y, (unsigned)(y >> 32));
        };
        return {pair(v), pair(w)};
    }
    const float4 v = load_embedding(m, token, k);
    return of_floats(v.x, v.y, v.z, v.w);
}

// Four weights of an RMSNorm, for the elements that load_residual gives.
__device__ inline uint2 load_norm(const __half* weights, int k) {
    if constexpr (SPLIT_K)
        return make_uint2(*reinterpret_cast<const unsigned*>(weights + pair_place(k)),
                          *reinterpret_cast<const unsigned*>(weights + pair_place(k) + 64));
    return *reinterpret_cast<const uint2*>(weights + k);
}

// x = RMSNorm of the residual, or of the token's embedding where token >= 0, which block 0 stores as the residual.
template <int F>
__device__ inline void load_rmsnorm(const Decoder& m, const Smem& smem, int norm, int token) {
    const int thread = thread_number();
    constexpr int VECTORS = (HIDDEN + 4 * THREADS - 1) / (4 * THREADS);
    constexpr int HELD = VECTORS < 4 ? VECTORS : 4;  // vectors that a thread keeps in registers; it reads the others twice
    const auto beyond = [&](auto body) {  // what a thread does not keep
        if constexpr (VECTORS > HELD)
            for (int k = 4 * (thread + HELD * THREADS); k < HIDDEN; k += 4 * THREADS) body(k);
    };
    const __half* weights = m.norms + (size_t)norm * m.hidden;
    Residual4 held[HELD] = {};
    uint2 weight[HELD] = {};
    float square_sum = 0.0f;
    const auto load = [&](int k) { return token < 0 ? load_residual(m, k, norm % 2) : embedded(m, token, k); };
    const auto add_squares = [&](const Residual4& r) {
        const float4 v = values_of(r);
        square_sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    };
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int k = 4 * (thread + i * THREADS);
        if (k < m.hidden) weight[i] = load_norm(weights, k);
    }
    if (token < 0) {
#if FLAGS_IN_DATA
        wait_for_residual(m, held, 4 * thread, norm % 2);
#else
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            const int k = 4 * (thread + i * THREADS);
            if (k < m.hidden) held[i] = load_residual(m, k);
        }
#endif
    } else {
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            const int k = 4 * (thread + i * THREADS);
            if (k >= m.hidden) continue;
            held[i] = embedded(m, token, k);
            if (blockIdx.x == 0) store_residual(m, k, held[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < HELD; ++i) add_squares(held[i]);  // 0 beyond the last element
    beyond([&](int k) {
        const Residual4 r = load(k);
        add_squares(r);
        if (token >= 0 && blockIdx.x == 0) store_residual(m, k, r);
    });
    square_sum = warp_sum(square_sum);
    if (thread % 32 == 0) smem.scratch[thread / 32] = square_sum;
    sync_consumers(smem);
    square_sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) square_sum += smem.scratch[w];
    const float scale = rsqrtf(square_sum * (1.0f / HIDDEN) + m.epsilon);
    const auto put = [&](int k, float4 v, float4 w) {
        const float4 x = make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
        if constexpr (SPLIT_K) return store_x_pairs<F>(smem, pair_place(k), x);
        return store_x4<F>(smem, k, x);
    };
    float sums[HELD] = {};
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int k = 4 * (thread + i * THREADS);
        if (k < m.hidden) sums[i] = put(k, values_of(held[i]), four_halves(weight[i]));
    }
    if (4 * (thread / 32 * 32) < m.hidden) sum_groups<F>(smem, sums, 4 * thread, m.hidden);
    beyond([&](int k) {
        const float one[1] = {put(k, values_of(load(k)), four_halves(load_norm(weights, k)))};
        sum_groups<F>(smem, one, k, m.hidden);
    });
    sync_consumers(smem);
}
