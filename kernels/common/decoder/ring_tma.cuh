// Give each warp a ring that one of its lanes fills by the tensor memory accelerator.
#pragma once
#include "common/decoder/stream_tma.cuh"
#include "common/decoder/operands_rows.cuh"
#include "common/decoder/stream_walk.cuh"

// Barrier of all warps that multiply.
__device__ inline void sync_consumers(const Smem&) { __syncthreads(); }

constexpr bool PRODUCERS_FILL = false;
constexpr int MAX_DEFERRED = 0, DEFERRED = 0, DEFERRED_BY_FIRST = 0;

// Start the stream and fill the ring.
__device__ inline Stream start_stream(const Decoder& m, const Smem& smem, const Maps* maps, int layer, int phase,
                                      int matrices) {
    Stream s;
    init_arrivals(smem.full, STAGES);
    s.maps = maps, s.parity = 0;
    make_plans(m, smem);
    if (phase == ATTEND) {  // reads no weights
        s.layer = layer, s.phase = phase, s.left = s.steps = s.deferred = 0;
        return s;
    }
    begin_stream(s, m, smem, layer, phase, matrices);
#pragma unroll 1
    for (int i = 0; i < STAGES; ++i) fetch(s, m, smem, i, threadIdx.x % 32);
    return s;
}

// What products.cuh asks of a ring.
template <bool REFILLS>
__device__ inline void wait_for_slot(const Stream& s, const Smem& smem, int slot) {
    wait_for_arrival(smem.full + slot, s.parity);
}

template <bool REFILLS>
__device__ inline void end_slot(Stream&, bool) {}

__device__ inline void next_pass(Stream& s) { s.parity ^= 1; }
__device__ inline void release_slot(const Smem&, int) {}
__device__ inline void set_busy(const Smem&, bool) {}
