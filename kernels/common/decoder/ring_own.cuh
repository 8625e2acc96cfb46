// Give each warp a ring of STAGES slots that it fills itself by cp.async. Included by ring_cp_async.cuh and
// ring_deferred.cuh, which set how many slots of a phase stay empty until the phase ends: DEFERRED, and DEFERRED_BY_FIRST
// of the first warp's.
#pragma once
#include "common/decoder/stream_cp_async.cuh"
#include "common/decoder/operands_lanes.cuh"
#include "common/decoder/stream_walk.cuh"
#include "common/ptx/cache_hints.cuh"
#include "common/ptx/cp_async.cuh"

// Barrier of all warps that multiply.
__device__ inline void sync_consumers(const Smem&) { __syncthreads(); }

constexpr int MAX_DEFERRED = larger(DEFERRED, DEFERRED_BY_FIRST);

// Refill the slots that were left empty, the last ones before `slot`.
__device__ inline void fetch_deferred(Stream& s, const Decoder& m, const Smem& smem, int slot) {
    if (MAX_DEFERRED == 0) return;
#pragma unroll 1
    for (; s.deferred > 0; --s.deferred) {
        const int empty = slot - s.deferred + (slot < s.deferred ? STAGES : 0);
        fetch(s, m, smem, empty, threadIdx.x % 32);
    }
}

// Start the stream and fill the ring.
__device__ inline Stream start_stream(const Decoder& m, const Smem& smem, int layer, int phase, int matrices) {
    Stream s;
    s.parity = 0;
    s.scales = nullptr;
    s.policy = evict_first_policy();  // a token reads each weight once
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

// Wait for the oldest copy under way: slots left empty have none.
template <int MAX_EMPTY>
__device__ inline void wait_for_oldest(int deferred) {
    if constexpr (MAX_EMPTY == 0) copy_async_wait<STAGES - 1>();
    else if (deferred == MAX_EMPTY) copy_async_wait<STAGES - 1 - MAX_EMPTY>();
    else wait_for_oldest<MAX_EMPTY - 1>(deferred);
}

// What products.cuh asks of a ring. REFILLS: the slot is filled again as soon as it has been read.
template <bool REFILLS>
__device__ inline void wait_for_slot(const Stream& s, const Smem&, int) {
    wait_for_oldest<REFILLS ? 0 : MAX_DEFERRED < STAGES ? MAX_DEFERRED : STAGES - 1>(s.deferred);
    if (SHARES_SCALES) __syncwarp();  // the other lanes' copies are there too
}

template <bool REFILLS>
__device__ inline void end_slot(Stream& s, bool defer) {
    if (!REFILLS && defer) ++s.deferred;
    else copy_async_commit();
}

__device__ inline void next_pass(Stream&) {}
__device__ inline void release_slot(const Smem&, int) {}
__device__ inline void set_busy(const Smem&, bool) {}
