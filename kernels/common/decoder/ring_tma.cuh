// A ring for each warp, which one of its lanes fills by the tensor memory accelerator.
#pragma once
#include "common/decoder/stream_tma.cuh"
#include "common/decoder/operands_rows.cuh"
#include "common/decoder/stream_walk.cuh"

// All warps but producers meet.
__device__ inline void sync_workers(const Room& room) {
    __syncthreads();
}

constexpr bool OTHERS_FILL = false;
constexpr int MOST_HELD = 0, HELD = 0, HELD_BY_FIRST = 0;

// A warp's ring, filled for the first time.
__device__ inline Stream start_stream(const Decoder& m, const Room& room, const Maps* maps, int layer, int phase, int matrices) {
    Stream s;
    start_arrivals(room.full, STAGES);
    s.maps = maps, s.turn = 0;
    make_plans(m, room);
    if (phase == ATTEND) {  // reads no weights
        s.layer = layer, s.phase = phase, s.left = s.here = s.owed = 0;
        return s;
    }
    begin_stream(s, m, room, layer, phase, matrices);
#pragma unroll 1
    for (int i = 0; i < STAGES; ++i) fetch(s, m, room, i, threadIdx.x % 32);
    return s;
}

template <bool REFILLS>
__device__ inline void wait_for_slot(const Stream& s, const Room& room, int turn) {
    wait_for_arrival(room.full + turn, s.turn);
}

template <bool REFILLS>
__device__ inline void leave_slot(Stream&, bool) {}

__device__ inline void next_pass(Stream& s) { s.turn ^= 1; }
__device__ inline void release_slot(const Room&, int) {}
__device__ inline void set_busy(const Room&, bool) {}
