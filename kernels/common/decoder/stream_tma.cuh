// Copy weights by the tensor memory accelerator (sm_90a): one instruction of one lane copies a chunk.
#pragma once
#include "common/decoder/model.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/warpgroup.cuh"

constexpr int SLOT = 128, SCALES = FORMAT != 0 || HEAD_FORMAT != 0 ? 16 : 0;
constexpr int BARRIERS = (WARPS * STAGES + 1) / 2;
#include "common/decoder/smem.cuh"

// The matrices of all layers as boxes of 16 rows by 128 bytes, and their Q8_0 scales as boxes of 16 rows by 8; one for
// each phase.
struct Maps {
    TensorMap codes[6], scales[6];
};

typedef unsigned long long Arrival;  // an mbarrier in shared memory, which completes when a slot's copies have arrived

__device__ inline void init_arrivals(Arrival* arrivals, int count) {
    if (threadIdx.x % 32 < count) mbarrier_init(arrivals + threadIdx.x % 32, 1);
    warpgroup_shared_fence();
}

__device__ inline void wait_for_arrival(Arrival* arrival, unsigned parity) { mbarrier_wait(arrival, parity); }

// Start copying a box of codes and, with `scale_box`, the 16 rows' scales from column `scale_column` on: a multiple of 8,
// because a box that does not start at a multiple of 16 bytes is an illegal instruction.
__device__ inline void copy_box(void* slot, void* scales, Arrival* arrival, const Maps* maps, int phase, int row, int column,
                                bool scale_box, int scale_column) {
    mbarrier_expect(arrival, scale_box ? 2048 + 256 : 2048);
    tma_copy_box(slot, maps->codes + phase, column, row, arrival);
    if (scale_box) tma_copy_box(scales, maps->scales + phase, scale_column, row, arrival);
    mbarrier_arrive(arrival);
}

// Start copying contiguous codes and 128 bytes of scales.
__device__ inline void copy_pieces(uint4* slot, const uint4* codes, int bytes, uint4* scale_slot, const uint4* scales,
                                   Arrival* arrival) {
    mbarrier_expect(arrival, bytes + 128);
    tma_copy_bytes(slot, codes, bytes, arrival);
    tma_copy_bytes(scale_slot, scales, 128, arrival);
    mbarrier_arrive(arrival);
}

// Where a warp's next copy starts. steps, next_chunk and to are TileRange's; `left` counts the matrices to come, this one
// included.
struct Stream {
    const Maps* maps;
    const uint4* codes;  // INT4: of the layer
    int layer, phase, left, steps, next_chunk, to, unit, chunk, chunks, row, pitch, width, parity, deferred;
};

// Start copying 16 rows by CHUNK<F> of k, by one lane. FP16 and Q8_0 keep their rows, of which the 16-byte pieces are
// swizzled by the row's number; INT4 keeps its tile order and brings the group's scales.
template <int F>
__device__ inline void copy_chunk(uint4* slot, uint4* scales, Arrival* full, const Stream& s) {
    if (F == INT4) {
        const uint4* block = s.codes + s.unit / INT4_UNITS * (long long)s.pitch + s.chunk * INT4_BLOCK;
        copy_pieces(slot, block + INT4_SCALES + s.unit % INT4_UNITS * 64, 1024 * s.width, scales, block, full);
    } else {
        copy_box(slot, scales, full, s.maps, s.phase, s.row + s.unit * UNIT, s.chunk * CHUNK<F>, F == Q8, s.chunk / 2 * 8);
    }
}

template <int F>
__device__ inline void advance_chunk(Stream& s) { s.chunk += TEAM_STRIDE<F>; }

template <int F>
__device__ inline void advance_unit(Stream& s, int) {
    s.unit += s.width;
    s.chunk -= s.chunks;
}

__device__ inline void open_matrix(Stream& s, const Smem& smem) {
    const Plan& plan = smem.plans[s.phase];
    const int layer = s.phase == HEAD ? 0 : s.layer;
    const int stride = s.phase == HEAD ? TEAM_STRIDE<HEAD_FORMAT> : TEAM_STRIDE<FORMAT>;
    const TileRange range = smem.ranges[threadIdx.x / 32 * (HEAD + 1) + s.phase];
    s.unit = range.unit & 0xffff;
    s.steps = range.steps, s.next_chunk = range.next_chunk, s.to = range.to, s.chunks = range.chunks;
    s.chunk = range.next_chunk - range.steps * stride + range.chunks;
    s.pitch = plan.pitch, s.width = plan.width;
    s.row = layer * plan.rows;
    s.codes = plan.codes + layer * plan.codes_layer_stride;
}

// Start copying the next chunk, of format G, into a slot of the ring.
template <int G>
__device__ inline void copy_next_chunk(Stream& s, const Smem& smem, uint4* dst, int slot, int lane) {
    __syncwarp();  // all lanes have read the slot
    if (lane == 0) copy_chunk<G>(dst, smem.scales + slot * SCALES, smem.full + slot, s);
    advance_chunk<G>(s);
}

__device__ inline void commit_copies() {}
