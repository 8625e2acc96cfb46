// x in shared memory
#pragma once

// Where element k of x lies for format F. INT4 and boxes of FP16: element 16 i + 8 j + 2 t + e of 64 at 16 t + 4 i + 2 j + e.
// (Q8_0 wants bytes, see put_bytes; here is where a half lies that becomes two of them.)
template <int F>
__device__ inline int place_of(int k) {
    if (PAIRS_APART<F>) return k / 64 * 64 + k % 8 / 2 * 16 + k % 64 / 16 * 4 + k % 16 / 8 * 2 + k % 2;
    return k;
}

// Q8_0: N neighbours of x, from k on, as 16-bit numbers in their block's scale, the high bytes of 128 and then the low ones.
// A warp has 32 N neighbours, and all of its lanes must call it.
template <int N>
__device__ inline void put_bytes(const Room& room, int k, const float (&v)[N], bool there) {
    float most = 0.0f;
#pragma unroll
    for (int e = 0; e < N; ++e) most = fmaxf(most, fabsf(v[e]));
#pragma unroll
    for (int offset = 1; offset < 32 / N; offset *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, offset));
    const float by = most > 0.0f ? 32512.0f / most : 0.0f;  // of a number up to 127 * 256 the low byte may be below zero
    if (!there) return;
    const int within = N * threadIdx.x % 128;  // k % 128
    unsigned char* to = reinterpret_cast<unsigned char*>(room.x) + (2 * k - within);
#pragma unroll
    for (int e = 0; e < N; e += 4) {
        unsigned high = 0, low = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int number = __float2int_rn(v[e + i] * by);
            low |= (number & 255u) << 8 * i;
            high |= ((number + 128) >> 8 & 255u) << 8 * i;
        }
        *reinterpret_cast<unsigned*>(to + e) = high;
        *reinterpret_cast<unsigned*>(to + 128 + e) = low;
    }
    if (within % 32 == 0) room.x_sums[k / 32] = most * (1.0f / 32512.0f);
}

// Four neighbours of x, from k on, into the order of format F; their sum, which INT4 wants of a warp's 128, a group.
template <int F>
__device__ inline float put_four(const Room& room, int k, float4 v) {
    if constexpr (F == Q8) {
        const float four[4] = {v.x, v.y, v.z, v.w};
        put_bytes(room, k, four, true);
        return 0.0f;
    }
    const __half2 low = __floats2half2_rn(v.x, v.y), high = __floats2half2_rn(v.z, v.w);
    __half* to = room.x + place_of<F>(k);
    if constexpr (PAIRS_APART<F>) {
        reinterpret_cast<unsigned*>(to)[0] = as_word(low);
        reinterpret_cast<unsigned*>(to)[8] = as_word(high);
        const float2 a = __half22float2(low), b = __half22float2(high);
        if (F == INT4) return a.x + a.y + b.x + b.y;
    } else {
        *reinterpret_cast<uint2*>(to) = make_uint2(as_word(low), as_word(high));
    }
    return 0.0f;
}

// Sums of a lane's `sums` over the warp, i of them for the group of i * 4 * THREADS after k, where a group is before `end`.
template <int F, int COUNT>
__device__ inline void sum_groups(const Room& room, const float (&sums)[COUNT], int k, int end) {
    if constexpr (F == INT4) {
        const int lane = threadIdx.x % 32;
        if (COUNT == 1) {
            const float sum = warp_sum(sums[0]);
            if (lane == 0) room.x_sums[k / 128] = sum;
            return;
        }
        float v[8] = {};
#pragma unroll
        for (int i = 0; i < COUNT; ++i) v[i] = sums[i];
#pragma unroll
        for (int offset = 16; offset >= 4; offset /= 2)  // half of the lanes go on with half of the values
#pragma unroll
            for (int i = 0; i < offset / 4; ++i) {
                const float keep = lane & offset ? v[i + offset / 4] : v[i], give = lane & offset ? v[i] : v[i + offset / 4];
                v[i] = keep + __shfl_xor_sync(0xffffffffu, give, offset);
            }
        v[0] += __shfl_xor_sync(0xffffffffu, v[0], 2);
        v[0] += __shfl_xor_sync(0xffffffffu, v[0], 1);
        const int group = k - 4 * lane + lane / 4 * 4 * THREADS;
        if (lane % 4 == 0 && lane / 4 < COUNT && group < end) room.x_sums[group / 128] = v[0];
    }
}
