// Weights by the tensor memory accelerator (sm_90a): one lane copies a whole chunk, by one instruction.
#pragma once
#include "common/decoder/model.cuh"

constexpr int SLOT = 128, SCALES = FORMAT != 0 || HEAD_FORMAT != 0 ? 16 : 0;  // of the ring and beside a slot, in pieces of 16 bytes
constexpr int BARRIERS = (WARPS * STAGES + 1) / 2;
#include "common/decoder/smem.cuh"

// The matrices of all layers as boxes of 16 rows by 128 bytes, and their Q8_0 scales as boxes of 16 rows by 8; one for
// each phase.
struct Maps {
    TensorMap codes[6], scales[6];
};

typedef unsigned long long Arrival;  // in shared memory; a slot's copies are there when its turn is over

__device__ inline void start_arrivals(Arrival* arrivals, int count) {
    if (threadIdx.x % 32 < count) mbarrier_init(arrivals + threadIdx.x % 32, 1);
    warpgroup_shared_fence();
}

__device__ inline void wait_for_arrival(Arrival* arrival, unsigned turn) { mbarrier_wait(arrival, turn); }

// A box of codes and, with `scale_box`, the 16 rows' scales from column `scale_column` on: a multiple of 8, for a box that
// does not begin at a multiple of 16 bytes is an illegal instruction.
__device__ inline void start_box(void* slot, void* scales, Arrival* arrival, const Maps* maps, int phase, int row, int column,
                                 bool scale_box, int scale_column) {
    mbarrier_expect(arrival, scale_box ? 2048 + 256 : 2048);
    tma_copy_box(slot, maps->codes + phase, column, row, arrival);
    if (scale_box) tma_copy_box(scales, maps->scales + phase, scale_column, row, arrival);
    mbarrier_arrive(arrival);
}

// Codes and 128 bytes of scales, each in one piece.
__device__ inline void start_pieces(uint4* slot, const uint4* codes, int bytes, uint4* scale_slot, const uint4* scales,
                                    Arrival* arrival) {
    mbarrier_expect(arrival, bytes + 128);
    tma_copy_bytes(slot, codes, bytes, arrival);
    tma_copy_bytes(scale_slot, scales, 128, arrival);
    mbarrier_arrive(arrival);
}

// Where a warp's next copy comes from. `left` counts the matrices to come, this one included.
struct Stream {
    const Maps* maps;
    const uint4* codes;  // INT4: of the layer
    int layer, phase, left, here, over, to, unit, chunk, chunks, row, pitch, width, turn, owed;
};

// Start copying 16 rows by CHUNK<F> of k, by one lane: as they lie in memory, the 16-byte pieces of a row turned by the
// row's number; INT4 a tile of a group in its own order, and the group's scales.
template <int F>
__device__ inline void copy_chunk(uint4* slot, uint4* scales, Arrival* full, const Stream& s) {
    if (F == INT4) {
        const uint4* block = s.codes + s.unit / INT4_UNITS * (long long)s.pitch + s.chunk * INT4_BLOCK;
        start_pieces(slot, block + INT4_SCALES + s.unit % INT4_UNITS * 64, 1024 * s.width, scales, block, full);
    } else {
        start_box(slot, scales, full, s.maps, s.phase, s.row + s.unit * UNIT, s.chunk * CHUNK<F>, F == Q8, s.chunk / 2 * 8);
    }
}

template <int F>
__device__ inline void move_on(Stream& s) { s.chunk += SHARED<F>; }

template <int F>
__device__ inline void next_unit(Stream& s, int) {
    s.unit += s.width;
    s.chunk -= s.chunks;
}

__device__ inline void open_matrix(Stream& s, const Room& room) {
    const Plan& plan = room.plans[s.phase];
    const int layer = s.phase == HEAD ? 0 : s.layer, shared = s.phase == HEAD ? SHARED<HEAD_FORMAT> : SHARED<FORMAT>;
    const Opening o = room.openings[s.phase];
    s.unit = o.unit & 0xffff, s.here = o.here, s.over = o.over, s.to = o.to, s.chunks = o.chunks;
    s.chunk = o.over - o.here * shared + o.chunks;
    s.pitch = plan.pitch, s.width = plan.width;
    s.row = layer * plan.rows;
    s.codes = plan.codes + layer * plan.codes_a_layer;
}

// Start copying what comes next into a slot of the ring, number `turn`; G is its format.
template <int G>
__device__ inline void copy_next(Stream& s, const Room& room, uint4* mine, int turn, int lane) {
    __syncwarp();  // all lanes have read what was there
    if (lane == 0) copy_chunk<G>(mine, room.scales + turn * SCALES, room.full + turn, s);
    move_on<G>(s);
}

__device__ inline void end_copies() {}
