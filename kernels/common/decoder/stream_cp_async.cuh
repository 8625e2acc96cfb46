// Copy weights by cp.async: each lane copies exactly the codes that it will read.
//
// Scales are copied once for the warp, in pieces as large as they come. A piece costs its cycle in shared memory however small
// it is: where each lane copied the 4 or 8 bytes that it reads, scales took more of them than codes. So a lane reads what
// others have copied, after a barrier of the warp, or of a producer's copies.
//
// Weights and x are permuted along k in the same way, which leaves a product as it is and lets a lane's operands be 16
// contiguous bytes: see copy_chunk.
#pragma once
constexpr int SLOT = FORMAT == 0 && HEAD_FORMAT == 0 ? 128 : 144;  // four pieces of 16 bytes a lane, and scales
constexpr int SCALES = 0;
constexpr bool SHARES_SCALES = FORMAT != 0 || HEAD_FORMAT != 0;
#include "common/decoder/smem.cuh"
#include "common/ptx/cp_async.cuh"

// Where a warp's next copy starts: `at`, this lane's share of a unit's chunk. steps, next_chunk and to are TileRange's,
// from the present unit on; `left` counts the matrices to come, this one included; `deferred` the slots left empty
// (ring_deferred.cuh); `scale_offset` is the distance in bytes from INT4's codes back to their scales.
struct Stream {
    const uint4* at;
    const __half* scales;
    unsigned long long policy;
    int layer, phase, left, steps, next_chunk, to, chunks, unit, width, deferred;
    unsigned scale_offset;
    int pitch;                // where SPLIT_K: pieces from row to row, which `chunks` of a slab do not tell
    unsigned parity;          // of the consumer's present pass through the ring
    const TileRange* ranges;  // a producer's: of the warp whose ring it fills
};

// Pieces of 16 bytes from row to row; INT4: from tile to tile of rows.
template <int F>
__device__ inline int pitch_of(const Stream& s) {
    return SPLIT_K ? s.pitch : s.chunks * PIECES<F>;
}

// Start copying this lane's share of 16 rows by CHUNK<F> of k to `dst`, its place in a slot. With g = lane / 4 and
// t = lane % 4, of rows g and g + 8:
// FP16  elements 32 j + 8 t to 32 j + 8 t + 7 (j = 0, 1)
// Q8    elements 64 j + 16 t to 64 j + 16 t + 15; lane r the four scales of row r
// INT4  the lane's operands of a group in tile order; lane r scales of rows r and r + 8 in four units
template <int F>
__device__ inline void copy_chunk(uint4* dst, const Stream& s, int lane) {
    if constexpr (F == INT4) {
        copy_async_16_of_line(dst, s.at, s.policy);
        copy_async_16_of_line(dst + 32, s.at + 32, s.policy);
        if (s.width == 2) {
            copy_async_16_of_line(dst + 64, s.at + 64, s.policy);
            copy_async_16_of_line(dst + 96, s.at + 96, s.policy);
        }
        if (lane < INT4_SCALES)
            copy_async_16_of_line(dst + 128, reinterpret_cast<const char*>(s.at) - s.scale_offset, s.policy);
        return;
    }
    const int pitch = pitch_of<F>(s);
#pragma unroll
    for (int p = 0; p < 4; ++p)
        copy_async_16_of_line(dst + 32 * p, s.at + p % 2 * 8 * pitch + p / 2 * 4, s.policy);
    if (F == Q8 && lane < 16) copy_async_8(reinterpret_cast<uint2*>(dst + 128 - lane) + lane, s.scales);
}

// INT4: bytes from a lane's codes of a unit back to its share of the scales.
__device__ inline unsigned scale_offset_of(unsigned unit_in_tile) { return (unit_in_tile * 64 + INT4_SCALES) * 16; }

// Advance to the warp's next chunk of the unit.
template <int F>
__device__ inline void advance_chunk(Stream& s) {
    s.at += TEAM_STRIDE<F> * PIECES<F>;
    if (F == Q8) s.scales += TEAM_STRIDE<F> * 4;
}

// Advance from a unit to the next one, at the same offset from its first chunk past the end of the old one.
template <int F>
__device__ inline void advance_unit(Stream& s, int lane) {
    const int pitch = pitch_of<F>(s), covered = s.chunks * PIECES<F>;
    if (F == INT4) {
        const unsigned before = (unsigned)s.unit % INT4_UNITS;
        s.unit += s.width;
        const unsigned unit_in_tile = (unsigned)s.unit % INT4_UNITS;
        s.at += (int)(unit_in_tile * 64) - (int)(before * 64) - covered + (unit_in_tile == 0 ? pitch : 0);
        s.scale_offset = scale_offset_of(unit_in_tile);
    } else {
        s.at += 16 * pitch - covered;
        if (F == Q8) s.scales += 8 * pitch - s.chunks * 4;
    }
}

// Point the stream at the warp's range of the present layer's and phase's matrix.
__device__ inline void open_matrix(Stream& s, const Smem& smem) {
    const int thread = thread_number(), lane = thread % 32;
    const TileRange range = PRODUCERS_FILL ? s.ranges[s.phase] : smem.ranges[thread / 32 * (HEAD + 1) + s.phase];
    s.unit = range.unit & 0xffff, s.width = range.unit >> 16;
    s.steps = range.steps, s.next_chunk = range.next_chunk, s.to = range.to, s.chunks = range.chunks;
    s.pitch = range.pitch;
    const int format = s.phase == HEAD ? HEAD_FORMAT : FORMAT;
    unsigned long long index = (unsigned long long)(s.phase == HEAD ? 0 : s.layer) * range.layer_stride + range.index;
    if (format == Q8)
        s.scales = smem.plans[s.phase].scales + index / 2 +
                   lane % 16 * ((SPLIT_K ? range.pitch : range.chunks * PIECES<Q8>) / 2);
    if (format == INT4) {
        s.scale_offset = scale_offset_of((unsigned)s.unit % INT4_UNITS);
        index += lane;
    } else {
        index += lane / 4 * (SPLIT_K ? range.pitch : range.chunks * PIECES<FP16>) + lane % 4;
    }
    s.at = smem.plans[s.phase].codes + index;
}

// Start copying the next chunk, of format G, into a slot of the ring.
template <int G>
__device__ inline void copy_next_chunk(Stream& s, const Smem& smem, uint4* dst, int slot, int lane) {
    if (SHARES_SCALES && !PRODUCERS_FILL) __syncwarp();  // the other lanes have read what this one copies over
    copy_chunk<G>(dst, s, lane);
    advance_chunk<G>(s);
}

__device__ inline void commit_copies() { copy_async_commit(); }
