// A ring for each warp, which the warp fills itself. Included by ring_cp_async.cuh and ring_deferred.cuh, which say how many
// slots wait for the end of a phase until they are filled again: HELD, and HELD_BY_FIRST of the first warp's.
#pragma once
#include "common/decoder/stream_cp_async.cuh"
#include "common/decoder/operands_lanes.cuh"
#include "common/decoder/stream_walk.cuh"

// All warps but producers meet.
__device__ inline void sync_workers(const Room& room) {
    __syncthreads();
}

constexpr int MOST_HELD = most(HELD, HELD_BY_FIRST);

// Fill the slots that were held back, the last ones before `turn`.
__device__ inline void fetch_owed(Stream& s, const Decoder& m, const Room& room, int turn) {
    if (MOST_HELD == 0) return;
#pragma unroll 1
    for (; s.owed > 0; --s.owed) {
        const int empty = turn - s.owed + (turn < s.owed ? STAGES : 0);
        fetch(s, m, room, empty, threadIdx.x % 32);
    }
}

// A warp's ring, filled for the first time.
__device__ inline Stream start_stream(const Decoder& m, const Room& room, int layer, int phase, int matrices) {
    Stream s;
    s.turn = 0;
    s.scales = nullptr;
    s.policy = evict_first_policy();  // a weight is read once a token
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

// Wait for the oldest copy of the ring: of slots that are held back, the copies were not asked for.
template <int MOST_OWED>
__device__ inline void wait_for_next(int owed) {
    if constexpr (MOST_OWED == 0) copy_async_wait<STAGES - 1>();
    else if (owed == MOST_OWED) copy_async_wait<STAGES - 1 - MOST_OWED>();
    else wait_for_next<MOST_OWED - 1>(owed);
}

template <bool REFILLS>
__device__ inline void wait_for_slot(const Stream& s, const Room& room, int turn) {
    wait_for_next<REFILLS ? 0 : MOST_HELD < STAGES ? MOST_HELD : STAGES - 1>(s.owed);
}

template <bool REFILLS>
__device__ inline void leave_slot(Stream& s, bool held_back) {
    if (!REFILLS && held_back) ++s.owed;
    else copy_async_commit();
}

__device__ inline void next_pass(Stream&) {}
__device__ inline void release_slot(const Room&, int) {}
__device__ inline void set_busy(const Room&, bool) {}
