// Q8_0 weights in tile order (rooflab.ops.q8_0.repack): 64 rows by 64 of k in one piece, as the tensor cores take them.
#pragma once
#include <cuda_fp16.h>

// A tile in units of 16 bytes: the scales of 64 rows and two blocks of 32 first, then the quants.
constexpr int Q8_TILE = 272, Q8_TILE_SCALES = 16;

// A lane's share of a warp's 16 rows of a tile, the `part`-th: scales of rows g and g + 8 by blocks, and quants by blocks.
struct Q8Share {
    unsigned scales[2], quants[2][4];
};

__device__ inline Q8Share q8_share(const uint4* tile, unsigned part, unsigned lane) {
    const uint2 pairs = reinterpret_cast<const uint2*>(tile)[part * 8 + lane / 4];
    const uint4 first = tile[Q8_TILE_SCALES + part * 64 + lane], second = tile[Q8_TILE_SCALES + part * 64 + 32 + lane];
    return {{pairs.x, pairs.y}, {{first.x, first.y, first.z, first.w}, {second.x, second.y, second.z, second.w}}};
}

// The share as halves: a[s] holds a lane's part of 16 rows by the s-th 16 of k, the first operand of mma_m16n8k16_f16 and of
// wgmma. A byte of a tile is q + 128; behind the bits 0x64 it is the FP16 number 1024 + 128 + q, so that one subtraction
// makes q, and one multiplication the weight, rounded once.
__device__ inline void q8_share_to_halves(const Q8Share& share, unsigned (&a)[4][4]) {
    const __half2 offset = __float2half2_rn(1152.0f);
#pragma unroll
    for (int b = 0; b < 2; ++b) {
        const __half2 both = *reinterpret_cast<const __half2*>(&share.scales[b]);
        const __half2 scale[2] = {__low2half2(both), __high2half2(both)};
#pragma unroll
        for (int i = 0; i < 8; ++i) {  // step of 16, half of it, row g or g + 8
            const unsigned bits = __byte_perm(share.quants[b][i / 2], 0x64646464u, i % 2 ? 0x4342 : 0x4140);
            const __half2 w = __hmul2(__hsub2(*reinterpret_cast<const __half2*>(&bits), offset), scale[i % 2]);
            a[2 * b + i / 4][i % 4] = *reinterpret_cast<const unsigned*>(&w);
        }
    }
}
