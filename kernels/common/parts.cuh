// Merge the parts of a context by warps that load 16 at a time: memory latency is paid once for 16.
#pragma once
#include "common/attention.cuh"
#include "common/ptx/exp2.cuh"
#include "common/reduce.cuh"

// Columns d ... d + 3 of parts first ... first + 15 of `count`, 0 from WIDTH on.
template <int WIDTH>
__device__ inline void load_parts(float4* o, const float* outputs, int first, int count, int d) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        o[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (first + i < count && d < WIDTH) o[i] = *reinterpret_cast<const float4*>(outputs + (first + i) * WIDTH + d);
    }
}

// Columns first ... first + 127 of a head's output out of all its parts, by a warp; WIDTH is a multiple of 4. In an order
// that `count` alone decides, so that the same parts give the same bits. A part without keys weighs 0.
template <int WIDTH>
__device__ inline void combine_columns(int first, Element* out, const float* outputs, const Part* parts, int count) {
    const int lane = threadIdx.x % 32, d = first + lane * 4;
    float4 o[16], all = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    load_parts<WIDTH>(o, outputs, 0, count, d);
    float row_max = -1e30f, row_sum = 0.0f;
    for (int p = lane; p < count; p += 32) row_max = fmaxf(row_max, parts[p].row_max);
    row_max = warp_max(row_max);
    for (int p = lane; p < count; p += 32) row_sum += parts[p].row_sum * exp2_approx(parts[p].row_max - row_max);
    row_sum = warp_sum(row_sum);
    for (int next = 0;;) {
        const int p = next + lane % 16;
        const float mine = p < count ? exp2_approx(parts[p].row_max - row_max) : 0.0f;
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const float weight = __shfl_sync(0xffffffffu, mine, i);
            all.x = fmaf(weight, o[i].x, all.x), all.y = fmaf(weight, o[i].y, all.y);
            all.z = fmaf(weight, o[i].z, all.z), all.w = fmaf(weight, o[i].w, all.w);
        }
        next += 16;
        if (next >= count) break;
        load_parts<WIDTH>(o, outputs, next, count, d);
    }
    const float by = inverse(row_sum);
    if (d < WIDTH)
        *reinterpret_cast<uint2*>(out + d) =
            make_uint2(rounded_pair(all.x * by, all.y * by), rounded_pair(all.z * by, all.w * by));
}
