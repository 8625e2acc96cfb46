// The way of a warpgroup's sums to memory (sm_90a).
#pragma once
#include "common/half.cuh"
#include "common/ptx/stmatrix.cuh"
#include "common/ptx/warpgroup.cuh"

// Sums of a warpgroup, 64 HIGH rows from `row` on and `tokens` of WIDE tokens, as wgmma holds them: to y [token][n] by
// way of `stage`, space for 32 tokens of 64 HIGH + 8 halves, in two halves by turns. Barrier `id` is the warpgroup's own.
template <int HIGH, int WIDE>
__device__ inline void store_sums(const float (&sums)[HIGH][WIDE / 2], __half* stage, int id, __half* y, unsigned row,
                                  unsigned n, unsigned tokens) {
    static_assert(WIDE % 8 == 0);
    constexpr int ROWS_HERE = 64 * HIGH, STRIDE = ROWS_HERE + 8, PIECES = ROWS_HERE / 8;
    const unsigned thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
    const bool whole = (reinterpret_cast<unsigned long long>(y) | 2 * n) % 16 == 0;  // 16 bytes at a time
#pragma unroll
    for (int c = 0; c < (WIDE + 8) / 16; ++c) {
        if (c * 16 >= tokens) break;
        __half* const half = stage + c % 2 * 16 * STRIDE;
#pragma unroll
        for (int i = 0; i < HIGH; ++i) {
            const float* s = sums[i] + 8 * c;
            unsigned r[4];
#pragma unroll
            for (int m = 0; m < 4; ++m) {
                const __half2 pair = 16 * c + m / 2 * 8 < WIDE ? __floats2half2_rn(s[2 * m], s[2 * m + 1]) : __half2();
                r[m] = *reinterpret_cast<const unsigned*>(&pair);
            }
            store_matrix_x4_transposed(half + (lane / 16 * 8 + lane % 8) * STRIDE + 64 * i + 16 * warp + lane / 8 % 2 * 8, r);
        }
        warpgroup_wait_turn(id, 128);
#pragma unroll
        for (int p = thread; p < 16 * PIECES; p += 128) {
            const unsigned token = c * 16 + p / PIECES, r = row + p % PIECES * 8;
            const __half* from = half + p / PIECES * STRIDE + p % PIECES * 8;
            if (token >= tokens || r >= n) continue;
            __half* to = y + token * (unsigned long long)n + r;
            if (whole) {
                *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
            } else {
#pragma unroll 1
                for (unsigned e = 0; e < min(n - r, 8u); ++e) to[e] = from[e];
            }
        }
    }
    warpgroup_wait_turn(id, 128);  // the stage has been read
}
