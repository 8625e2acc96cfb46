// Weights by cp.async: each lane copies just what it reads itself, so that a warp waits for no other.
//
// Where in k an element lies is the same permutation for weights and for x, so that 16-byte copies fit: see copy_chunk.
#pragma once
constexpr int SLOT = FORMAT == 0 && HEAD_FORMAT == 0 ? 128 : 144;  // of the ring, in pieces of 16 bytes: four a lane, and scales
constexpr int SCALES = 0;                                          // beside a slot
#include "common/decoder/smem.cuh"

// Where a warp's next copy comes from: this lane's share of a unit's chunk. `here` counts its chunks to come of the unit; then
// it goes on at chunk `over` of the next one, up to `to` counted from this one's first. `left` counts the matrices, this one
// included; `back` is the way from INT4's codes back to their scales, in bytes.
struct Stream {
    const uint4* at;
    const __half* scales;
    unsigned long long policy;
    int layer, phase, left, here, over, to, chunks, unit, width, owed;
    unsigned back;
    unsigned turn;            // which time round the ring
    const Opening* openings;  // a producer's: of the warp that it works for
};

// Start copying a lane's share of 16 rows by CHUNK<F> of k, to this lane's piece of a slot. With g = lane / 4 and
// t = lane % 4, of rows g and g + 8:
// HALF  elements 32 j + 8 t to + 7 (j = 0, 1)       Q8  elements 64 j + 16 t to + 15, and the scales of blocks
// t / 2 * 2 and the next     INT4  what the tile order holds for the lane of a group, and scales of two units.
template <int F>
__device__ inline void copy_chunk(uint4* mine, const Stream& s, int lane) {
    if constexpr (F == INT4) {
        copy_async_16_of_line(mine, s.at, s.policy);
        copy_async_16_of_line(mine + 32, s.at + 32, s.policy);
        if (s.width == 2) {
            copy_async_16_of_line(mine + 64, s.at + 64, s.policy);
            copy_async_16_of_line(mine + 96, s.at + 96, s.policy);
        }
        copy_async_8(reinterpret_cast<uint2*>(mine + 128 - lane) + lane, reinterpret_cast<const char*>(s.at) - s.back);
        return;
    }
    const int pitch = s.chunks * PIECES<F>;
#pragma unroll
    for (int p = 0; p < 4; ++p)
        copy_async_16_of_line(mine + 32 * p, s.at + p % 2 * 8 * pitch + p / 2 * 4, s.policy);
    if (F == Q8) {
        copy_async_4(reinterpret_cast<unsigned*>(mine + 128 - lane) + lane, s.scales);
        copy_async_4(reinterpret_cast<unsigned*>(mine + 136 - lane) + lane, s.scales + 4 * pitch);
    }
}

// INT4: from a lane's codes of the unit at `place` of its tile back to its scales.
__device__ inline unsigned back_to_scales(unsigned place, int lane) {
    return (place * 64 + INT4_SCALES + lane) * 16 - (place / 2 + lane / 4 * 2) * 8;
}

// On to the warp's next chunk.
template <int F>
__device__ inline void move_on(Stream& s) {
    s.at += SHARED<F> * PIECES<F>;
    if (F == Q8) s.scales += SHARED<F> * 4;
}

// From beyond a unit's chunks to as far into the next unit's.
template <int F>
__device__ inline void next_unit(Stream& s, int lane) {
    const int pitch = s.chunks * PIECES<F>;
    if (F == INT4) {
        const unsigned before = (unsigned)s.unit % INT4_UNITS;
        s.unit += s.width;
        const unsigned place = (unsigned)s.unit % INT4_UNITS;
        s.at += (int)(place * 64) - (int)(before * 64) - (place != 0 ? pitch : 0);
        s.back = back_to_scales(place, lane);
    } else {
        s.at += 15 * pitch;
        if (F == Q8) s.scales += 15 * s.chunks * 4;
    }
}

__device__ inline void open_matrix(Stream& s, const Room& room) {
    const int lane = threadIdx.x % 32;
    const Opening o = OTHERS_FILL ? s.openings[s.phase] : room.openings[s.phase];
    s.unit = o.unit & 0xffff, s.width = o.unit >> 16, s.here = o.here, s.over = o.over, s.to = o.to;
    s.chunks = o.chunks;
    const int format = s.phase == HEAD ? HEAD_FORMAT : FORMAT;
    unsigned long long index = (unsigned long long)(s.phase == HEAD ? 0 : s.layer) * o.a_layer + o.index;
    if (format == Q8)
        s.scales = room.plans[s.phase].scales + index / 2 + (lane / 4 * (o.chunks * (PIECES<Q8> / 2)) + lane % 4 / 2 * 2);
    if (format == INT4) {
        s.back = back_to_scales((unsigned)s.unit % INT4_UNITS, lane);
        index += lane;
    } else {
        index += lane / 4 * (o.chunks * PIECES<HALF>) + lane % 4;
    }
    s.at = room.plans[s.phase].codes + index;
}

// Start copying what comes next into a slot of the ring, number `turn`; G is its format.
template <int G>
__device__ inline void copy_next(Stream& s, const Room& room, uint4* mine, int turn, int lane) {
    if (FORMAT != HEAD_FORMAT) __syncwarp();  // a lane's share of a slot lies elsewhere in another format
    copy_chunk<G>(mine, s, lane);
    move_on<G>(s);
}

__device__ inline void end_copies() { copy_async_commit(); }
