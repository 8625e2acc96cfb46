// Merge the parts of a context in slabs of columns, so that all warps of a block have some, and find the block that does it
// in one trip to the counter.
#pragma once
#include "common/attention.cuh"
#include "common/flagged.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ordered.cuh"

// Four columns of some parts as one part.
struct Slab {
    float4 output;
    Part part;
};

// Columns a slab: a warp's lanes have four each. The wider, the fewer slabs and the fewer parts a lane can ask for at once.
template <int WIDTH>
constexpr int SLAB = WIDTH > 64 ? 64 : 32;

// Columns first ... first + SLAB - 1 of `count` parts as one, by a warp: lane l has columns first + l % (SLAB / 4) * 4 and
// three more, and lanes with the same columns share the parts, of which each asks for eight at once by
// ask(row_max and row_sum, outputs, number of its first part, between two of its parts, column). WIDTH is a multiple of 4. In an
// order that `count` alone decides. A part without keys weighs 0.
template <int WIDTH, class Ask>
__device__ inline Slab merge_slab_of(int first, int count, const Ask& ask) {
    constexpr int LANES = SLAB<WIDTH> / 4, SHARERS = 32 / LANES;
    const int lane = threadIdx.x % 32, d = first + lane % LANES * 4;
    float4 all = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float row_max = -1e30f, row_sum = 0.0f;
    for (int next = 0; next < count; next += 8 * SHARERS) {
        float2 part[8];  // row_max and row_sum
        float4 o[8];
        ask(part, o, next + lane / LANES, SHARERS, d);
        float new_max = row_max;
#pragma unroll
        for (int i = 0; i < 8; ++i) new_max = fmaxf(new_max, part[i].x);
#pragma unroll
        for (int offset = LANES; offset < 32; offset *= 2)
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, offset));
        const float rescale = exp2_approx(row_max - new_max);
        row_max = new_max, row_sum *= rescale;
        all.x *= rescale, all.y *= rescale, all.z *= rescale, all.w *= rescale;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float weight = exp2_approx(part[i].x - row_max);
            row_sum = fmaf(weight, part[i].y, row_sum);
            all.x = fmaf(weight, o[i].x, all.x), all.y = fmaf(weight, o[i].y, all.y);
            all.z = fmaf(weight, o[i].z, all.z), all.w = fmaf(weight, o[i].w, all.w);
        }
    }
#pragma unroll
    for (int offset = LANES; offset < 32; offset *= 2) {
        row_sum += __shfl_xor_sync(0xffffffffu, row_sum, offset);
        all.x += __shfl_xor_sync(0xffffffffu, all.x, offset), all.y += __shfl_xor_sync(0xffffffffu, all.y, offset);
        all.z += __shfl_xor_sync(0xffffffffu, all.z, offset), all.w += __shfl_xor_sync(0xffffffffu, all.w, offset);
    }
    return {all, {row_max, row_sum}};
}

// The same of parts that are there: `parts` of 8 bytes, outputs [count][WIDTH].
template <int WIDTH>
__device__ inline Slab merge_slab(int first, const float* outputs, const Part* parts, int count) {
    return merge_slab_of<WIDTH>(first, count, [=](float2(&part)[8], float4(&o)[8], int from, int apart, int d) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int p = from + apart * i;
            part[i] = make_float2(NOTHING, 0.0f), o[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (p < count) part[i] = *reinterpret_cast<const float2*>(parts + p);
            if (p < count && d < WIDTH) o[i] = *reinterpret_cast<const float4*>(outputs + p * WIDTH + d);
        }
    });
}

// A part's maximum and sum as one flagged number.
__device__ inline void store_flagged(unsigned long long* to, Part part) {
    store_relaxed(to, ~((unsigned long long)__float_as_uint(part.row_sum) << 32 | __float_as_uint(part.row_max)));
}

// The same of parts that other blocks store as flagged numbers: reads them until all are there.
template <int WIDTH>
__device__ inline Slab merge_flagged_slab(int first, const unsigned* outputs, const unsigned long long* parts, int count) {
    return merge_slab_of<WIDTH>(first, count, [=](float2(&part)[8], float4(&o)[8], int from, int apart, int d) {
        unsigned long long p_bits[8];
        uint4 o_bits[8];
        bool wait;
        do {
            wait = false;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int p = from + apart * i;
                p_bits[i] = ~((unsigned long long)__float_as_uint(NOTHING)), o_bits[i] = make_uint4(~0u, ~0u, ~0u, ~0u);
                if (p < count) p_bits[i] = load_relaxed(parts + p);
                if (p < count && d < WIDTH) o_bits[i] = load_relaxed(reinterpret_cast<const uint4*>(outputs + p * WIDTH + d));
            }
#pragma unroll
            for (int i = 0; i < 8; ++i)
                wait |= p_bits[i] == 0 || missing(o_bits[i]);
        } while (__any_sync(0xffffffffu, wait));
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            part[i] = make_float2(__uint_as_float(~(unsigned)p_bits[i]), __uint_as_float(~(unsigned)(p_bits[i] >> 32)));
            o[i] = unflagged(o_bits[i]);
        }
    });
}

// True in every thread of the block that is the last of `parts` to arrive at `counter`, as arrives_last; the addition itself
// acquires what the others released, so that no second look at the counter is waited for. Every thread must call it.
__device__ inline bool arrives_last_at_once(unsigned* counter, unsigned parts) {
    __shared__ bool last;
    __syncthreads();  // all of this block's writes precede its arrival
    if (threadIdx.x == 0) {
        last = add_acquire_release(counter, 1) == parts - 1;
        if (last) *counter = 0;
    }
    __syncthreads();
    return last;
}
