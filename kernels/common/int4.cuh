// INT4 codes on the device: eight to a word, each q + 8, turned into halves without a conversion instruction.
#pragma once
#include <cuda_fp16.h>

#include "common/ptx/bitwise.cuh"

// A block of the tile order (rooflab.ops.int4.repack) in 16-byte units: 64 rows by 128 of K, scales first.
constexpr int INT4_BLOCK = 264, INT4_SCALES = 8, INT4_TILE = 64;

// Two halves in a word, and back.
__device__ inline __half2 as_half2(unsigned word) { return *reinterpret_cast<__half2*>(&word); }
__device__ inline unsigned as_word(__half2 pair) { return *reinterpret_cast<unsigned*>(&pair); }

// The eight codes of a word as exact halves, two to a word of h: h[s] holds the codes at bits 4s (low half) and
// 16 + 4s (high half). An FP16 number 0x6400 | c is 1024 + c, and 0x6400 | 16 c is 1024 + 16 c: an OR makes the
// number, one subtraction or multiply-add takes the 1024 and the 8 away.
__device__ inline void int4_to_halves(unsigned word, unsigned* h) {
    const __half2 ones = as_half2(0x64086408u), sixteenth = as_half2(0x2c002c00u), seventy_two = as_half2(0xd480d480u);
#pragma unroll
    for (int s = 0; s < 4; s += 2) {
        h[s] = as_word(__hsub2(as_half2(bitwise<0xea>(word, 0x000f000fu, 0x64006400u)), ones));
        h[s + 1] = as_word(__hfma2(as_half2(bitwise<0xea>(word, 0x00f000f0u, 0x64006400u)), sixteenth, seventy_two));
        word >>= 8;
    }
}

// A word in tile order is turned left by two bits, so that each of its codes comes to lie in the upper half of an FP16
// number's fraction: 0x5c00 | c << 2 is 256 + c, 0x4c00 | c << 6 is 16 + c. What it holds is a lane's share of 16 rows
// by 16 of k, a[0] to a[3] of mma_m16n8k16_f16, and here each number still carries an offset over its weight: 264 in
// row g (a[0], a[2]), 24 in row g + 8 (a[1], a[3]).
constexpr unsigned INT4_OFFSETS[2] = {0x5c205c20u, 0x4e004e00u};

__device__ inline void int4_tile_to_offset_halves(unsigned word, unsigned* a) {
#pragma unroll
    for (int s = 0; s < 4; s += 2) {
        a[s] = bitwise<0xea>(word, 0x003c003cu, 0x5c005c00u);
        a[s + 1] = bitwise<0xea>(word, 0x03c003c0u, 0x4c004c00u);
        word = word >> 8 | word << 24;
    }
}

// The same as exact halves without offset.
__device__ inline void int4_tile_to_halves(unsigned word, unsigned* a) {
    int4_tile_to_offset_halves(word, a);
#pragma unroll
    for (int s = 0; s < 4; ++s) a[s] = as_word(__hsub2(as_half2(a[s]), as_half2(INT4_OFFSETS[s % 2])));
}
