// Q8_0 and Q8_1 on the device: blocks of 32 int8 along K with one FP16 scale, 34 and 36 bytes (lib/rooflab/formats.py).
#pragma once
#include <cuda_fp16.h>

constexpr int Q8_BLOCK = 32;
constexpr int Q8_0_BYTES = 34;  // scale, quants: the quants start at a multiple of 2 bytes only
constexpr int Q8_1_BYTES = 36;  // scale, scale times the sum of the quants, quants: these start at a multiple of 4

// The scale at the head of a block, by two loads of a byte, and by one load of both.
__device__ inline float scale_by_bytes(const unsigned char* block) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(block[0] | block[1] << 8)));
}

__device__ inline float scale_of(const unsigned char* block) {
    return __half2float(*reinterpret_cast<const __half*>(block));
}

// Four quants of a Q8_0 block as a word: two loads, because a word at an odd multiple of 2 bytes cannot be loaded.
__device__ inline int word_of(const unsigned char* quants) {
    const unsigned short* halves = reinterpret_cast<const unsigned short*>(quants);
    return static_cast<int>(halves[0] | static_cast<unsigned>(halves[1]) << 16);
}

// The 16 products of two runs of 16 quants, added up.
__device__ inline int dot16(uint4 a, uint4 b) {
    int sum = __dp4a(static_cast<int>(a.x), static_cast<int>(b.x), 0);
    sum = __dp4a(static_cast<int>(a.y), static_cast<int>(b.y), sum);
    sum = __dp4a(static_cast<int>(a.z), static_cast<int>(b.z), sum);
    return __dp4a(static_cast<int>(a.w), static_cast<int>(b.w), sum);
}

// Quantise: the scale of a block whose largest magnitude is `largest`, and one element, rounded half away from zero.
// The scale divides before it is rounded to FP16; below 2^-128 its inverse is infinite, and the block counts as zero.
__device__ inline float inverse_scale(float scale) {
    const float inverse = 1.0f / scale;
    return inverse <= 3.402823466e38f ? inverse : 0.0f;
}

__device__ inline int quant_of(float x, float inverse) { return static_cast<int>(roundf(x * inverse)); }

// An int32 sum that starts at MAGIC_BITS reads, as a float, 1.5 x 2^23 more than it is, exactly up to 2^22 either way; the
// products of 32 pairs of bytes stay below 2^20. So fmaf(sum as float, scale, -MAGIC x scale) is the sum times the scale,
// rounded once: MAGIC times an FP16 scale is exact.
constexpr int MAGIC_BITS = 0x4b400000;
constexpr float MAGIC = 12582912.0f;

// The place of 16 bytes of a tile in shared memory with rows of 128 bytes: swizzled by the row, so that ldmatrix has no bank
// conflicts.
__device__ inline unsigned char* place(unsigned char* tile, int row, int chunk) {
    return tile + row * 128 + (chunk ^ row % 8) * 16;
}
