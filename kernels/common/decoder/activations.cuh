// Write x, a phase's input vector, to shared memory in the order and number format that the products of format F read.
#pragma once

// The place of element k of x. Where X_PERMUTED: element 16 i + 8 j + 2 t + e of 64 at 16 t + 4 i + 2 j + e. (Q8_0 takes
// bytes, see store_x_int8, which replace the half at this place.)
template <int F>
__device__ inline int x_index(int k) {
    if (X_PERMUTED<F>) return k / 64 * 64 + k % 8 / 2 * 16 + k % 64 / 16 * 4 + k % 16 / 8 * 2 + k % 2;
    return k;
}

// Q8_0: quantise N neighbours of x, from k on, to 16 bits in the scale of their block of 32, and store the high bytes of
// 128 elements, then their low bytes. All lanes of a warp must call it, with 32 N neighbours in all.
template <int N>
__device__ inline void store_x_int8(const Smem& smem, int k, const float (&v)[N], bool valid) {
    float amax = 0.0f;
#pragma unroll
    for (int e = 0; e < N; ++e) amax = fmaxf(amax, fabsf(v[e]));
#pragma unroll
    for (int offset = 1; offset < 32 / N; offset *= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, offset));
    const float inverse = amax > 0.0f ? __fdividef(32512.0f, amax) : 0.0f;  // 127 * 256: the low byte is signed
    if (!valid) return;
    const int within = N * threadIdx.x % 128;  // k % 128
    unsigned char* to = reinterpret_cast<unsigned char*>(smem.x) + (2 * k - within);
#pragma unroll
    for (int e = 0; e < N; e += 4) {
        unsigned high = 0, low = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int number = __float2int_rn(v[e + i] * inverse);
            low |= (number & 255u) << 8 * i;
            high |= ((number + 128) >> 8 & 255u) << 8 * i;
        }
        *reinterpret_cast<unsigned*>(to + e) = high;
        *reinterpret_cast<unsigned*>(to + 128 + e) = low;
    }
    if (within % 32 == 0) smem.x_sums[k / 32] = amax * (1.0f / 32512.0f);
}

// INT4 as bytes: quantise SETS times N neighbours of x, from k on and 64 apart, to 16 bits in the scale of their group of 128, and
// store the high bytes of the group, then the low ones, and behind the scale 32 times the sum. Elements 2 t, 2 t + 8, 2 t + 1 and
// 2 t + 9 of 16 follow each other, as their codes do in a word: so lanes 8 elements apart put theirs together, and one stores high
// bytes, the other low ones. All lanes of a warp must call it, with 32 SETS N neighbours in all.
template <int SETS, int N>
__device__ inline void store_x_bytes(const Smem& smem, int k, const float (&v)[SETS][N], bool valid) {
    constexpr int LANES = 128 / (SETS * N), EACH = N < 4 ? N : 4, WORDS = N / EACH;
    float amax = 0.0f;
#pragma unroll
    for (int set = 0; set < SETS; ++set)
#pragma unroll
        for (int e = 0; e < N; ++e) amax = fmaxf(amax, fabsf(v[set][e]));
#pragma unroll
    for (int offset = 1; offset < LANES; offset *= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, offset));
    const float inverse = amax > 0.0f ? __fdividef(32512.0f, amax) : 0.0f;  // as store_x_int8
    const bool second = k / 8 % 2;
    unsigned char* const to = reinterpret_cast<unsigned char*>(smem.x) + 2 * (k - k % 128) + 128 * second + k % 128 / 64 * 64 +
                              k % 8 / 2 * 16 + k % 64 / 16 * 4;
    int sum = 0;
#pragma unroll
    for (int set = 0; set < SETS; ++set) {
        unsigned high[WORDS] = {}, low[WORDS] = {};
#pragma unroll
        for (int e = 0; e < N; ++e) {
            const int number = __float2int_rn(v[set][e] * inverse);
            sum += number;
            low[e / EACH] |= (number & 255u) << 8 * (e % EACH);
            high[e / EACH] |= ((number + 128) >> 8 & 255u) << 8 * (e % EACH);
        }
#pragma unroll
        for (int w = 0; w < WORDS; ++w) {
            const unsigned other = __shfl_xor_sync(0xffffffffu, second ? high[w] : low[w], 8 / N);
            const unsigned first = second ? other : high[w], last = second ? low[w] : other;
#pragma unroll
            for (int q = 0; q < EACH / 2; ++q)
                if (valid)
                    *reinterpret_cast<unsigned*>(to + 64 * set + 32 * w + 16 * q) =
                        __byte_perm(first, last, q ? 0x7362 : 0x5140);
        }
    }
#pragma unroll
    for (int offset = 1; offset < LANES; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (valid && k % 128 == 0)
        reinterpret_cast<float2*>(smem.x_sums)[k / 128] = make_float2(amax * (1.0f / (4 * 32512.0f)), __int_as_float(32 * sum));
}

// Store four neighbours of x, from k on. Returns their sum for INT4, whose products need it of every group of 128.
template <int F>
__device__ inline float store_x4(const Smem& smem, int k, float4 v) {
    if constexpr (F == Q8) {
        const float four[4] = {v.x, v.y, v.z, v.w};
        store_x_int8(smem, k, four, true);
        return 0.0f;
    }
    if constexpr (F == INT4 && AS_BYTES<F>) {
        store_x_bytes(smem, k, {{v.x, v.y, v.z, v.w}}, true);
        return 0.0f;
    }
    const __half2 low = __floats2half2_rn(v.x, v.y), high = __floats2half2_rn(v.z, v.w);
    __half* to = smem.x + x_index<F>(k);
    if constexpr (X_PERMUTED<F>) {
        reinterpret_cast<unsigned*>(to)[0] = as_word(low);
        reinterpret_cast<unsigned*>(to)[8] = as_word(high);
        const float2 a = __half22float2(low), b = __half22float2(high);
        if (F == INT4) return a.x + a.y + b.x + b.y;
    } else {
        *reinterpret_cast<uint2*>(to) = make_uint2(as_word(low), as_word(high));
    }
    return 0.0f;
}

// The same for two pairs of neighbours, v.x and v.y from k on and v.z and v.w from k + 64 on, where a warp stores 128 elements:
// k = 2 lane from a multiple of 128 on.
template <int F>
__device__ inline float store_x_pairs(const Smem& smem, int k, float4 v) {
    if constexpr (F == Q8) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float a = h ? v.z : v.x, b = h ? v.w : v.y;
            float amax = fmaxf(fabsf(a), fabsf(b));
#pragma unroll
            for (int offset = 1; offset < 16; offset *= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, offset));
            const float inverse = amax > 0.0f ? __fdividef(32512.0f, amax) : 0.0f;  // as store_x_int8
            const int first = __float2int_rn(a * inverse), second = __float2int_rn(b * inverse);
            unsigned char* to = reinterpret_cast<unsigned char*>(smem.x) + (2 * k - k % 128 + 64 * h);
            *reinterpret_cast<unsigned short*>(to) =
                (unsigned short)(((first + 128) >> 8 & 255) | ((second + 128) >> 8 & 255) << 8);
            *reinterpret_cast<unsigned short*>(to + 128) = (unsigned short)((first & 255) | (second & 255) << 8);
            if (k % 32 == 0) smem.x_sums[k / 32 + 2 * h] = amax * (1.0f / 32512.0f);
        }
        return 0.0f;
    }
    if constexpr (F == INT4 && AS_BYTES<F>) {
        store_x_bytes(smem, k, {{v.x, v.y}, {v.z, v.w}}, true);
        return 0.0f;
    }
    const __half2 low = __floats2half2_rn(v.x, v.y), high = __floats2half2_rn(v.z, v.w);
    *reinterpret_cast<unsigned*>(smem.x + x_index<F>(k)) = as_word(low);
    *reinterpret_cast<unsigned*>(smem.x + x_index<F>(k + 64)) = as_word(high);
    const float2 a = __half22float2(low), b = __half22float2(high);
    return a.x + a.y + b.x + b.y;
}

// INT4: add up each of a lane's `sums` over the warp and store it: sums[i] is of the group at k + i * 4 * THREADS, if below
// `end`.
template <int F, int COUNT>
__device__ inline void sum_groups(const Smem& smem, const float (&sums)[COUNT], int k, int end) {
    if constexpr (F == INT4 && !AS_BYTES<F>) {
        const int lane = threadIdx.x % 32;
        if (COUNT == 1) {
            const float sum = warp_sum(sums[0]);
            if (lane == 0) smem.x_sums[k / 128] = sum;
            return;
        }
        float v[8] = {};
#pragma unroll
        for (int i = 0; i < COUNT; ++i) v[i] = sums[i];
#pragma unroll
        for (int offset = 16; offset >= 4; offset /= 2)  // each half of the lanes keeps half of the values
#pragma unroll
            for (int i = 0; i < offset / 4; ++i) {
                const float keep = lane & offset ? v[i + offset / 4] : v[i], give = lane & offset ? v[i] : v[i + offset / 4];
                v[i] = keep + __shfl_xor_sync(0xffffffffu, give, offset);
            }
        v[0] += __shfl_xor_sync(0xffffffffu, v[0], 2);
        v[0] += __shfl_xor_sync(0xffffffffu, v[0], 1);
        const int group = k - 4 * lane + lane / 4 * 4 * THREADS;
        if (lane % 4 == 0 && lane / 4 < COUNT && group < end) smem.x_sums[group / 128] = v[0];
    }
}
