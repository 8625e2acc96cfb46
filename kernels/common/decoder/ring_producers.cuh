// Give each of WARPS consumer warps a ring that one of PRODUCERS other warps fills by cp.async.
#pragma once
#include "common/decoder/model.cuh"
#include "common/ptx/arrivals.cuh"
#include "common/ptx/cache_hints.cuh"
#include "common/ptx/cp_async.cuh"

constexpr bool PRODUCERS_FILL = true;
constexpr int BARRIERS = WARPS * STAGES + 1;
#include "common/decoder/stream_cp_async.cuh"
#include "common/decoder/operands_lanes.cuh"
#include "common/decoder/stream_walk.cuh"

// Barrier of all warps that multiply.
__device__ inline void sync_consumers(const Smem& smem) { sync_some(smem.consumers, 1, THREADS); }

constexpr int MAX_DEFERRED = 0, DEFERRED = 0, DEFERRED_BY_FIRST = 0;

// Initialise barriers and plans, for consumers and producers. A consumer's stream only counts its passes through the ring.
__device__ inline Stream start_stream(const Decoder& m, const Smem& smem) {
    make_plans(m, smem);
    if (threadIdx.x < THREADS && threadIdx.x % 32 < STAGES) {
        arrivals_init(smem.full + threadIdx.x % 32, 32);
        arrivals_init(smem.empty + threadIdx.x % 32, 32);
    }
    if (threadIdx.x == 0) {
        arrivals_init(smem.consumers, THREADS);
        *smem.busy = 0;
    }
    __syncthreads();
    Stream s;
    s.parity = 0, s.steps = 0, s.deferred = 0;
    return s;
}

// A producer's whole launch: fill the rings of every PRODUCERS-th warp from `producer` on, one chunk each in turn where a
// slot is empty. It keeps at most DEPTH chunks under way, and IDLE_DEPTH of them while no products are made, because loads and
// stores between products queue behind copies.
__device__ inline void produce(const Decoder& m, uint4* shared, int producer, int matrices) {
    constexpr int STREAMS = WARPS / PRODUCERS;
    static_assert(WARPS % PRODUCERS == 0, "PRODUCERS divides WARPS");
    const int lane = threadIdx.x % 32;
    const Smem smem = smem_of(shared, producer);
    Stream s[STREAMS];
    int next_slot[STREAMS] = {};
    unsigned parity[STREAMS];
#pragma unroll
    for (int i = 0; i < STREAMS; ++i) {
        s[i].scales = nullptr;
        s[i].policy = evict_first_policy();
        s[i].ranges = smem.ranges + (producer + i * PRODUCERS) * (HEAD + 1);
        begin_stream(s[i], m, smem, 0, QKV, matrices);
        parity[i] = 1;
    }
    bool more = true;
    while (more) {
        more = false;
        unsigned busy = 0;
        if (lane == 0) busy = atomicOr(smem.busy, 0);
        const bool idle = __shfl_sync(0xffffffffu, busy, 0) == 0;
#pragma unroll
        for (int i = 0; i < STREAMS; ++i) {
            if (s[i].steps == 0) continue;
            more = true;
            const int slot = i * (PRODUCERS * STAGES) + next_slot[i];
            if (!__all_sync(0xffffffffu, arrivals_over(smem.empty + slot, parity[i]))) continue;  // the whole warp skips it
            fetch(s[i], m, smem, slot, lane);
            arrivals_add_when_copied(smem.full + slot);
            if (++next_slot[i] == STAGES) next_slot[i] = 0, parity[i] ^= 1;
            if (idle) copy_async_wait<IDLE_DEPTH - 1>();
            else copy_async_wait<DEPTH - 1>();
        }
    }
    copy_async_wait<0>();
}

// Producers leave no slot empty.
__device__ inline void fetch_deferred(Stream&, const Decoder&, const Smem&, int) {}

// What products.cuh asks of a ring.
template <bool REFILLS>
__device__ inline void wait_for_slot(const Stream& s, const Smem& smem, int slot) {
    arrivals_wait(smem.full + slot, s.parity);
}

template <bool REFILLS>
__device__ inline void end_slot(Stream&, bool) {}

__device__ inline void next_pass(Stream& s) { s.parity ^= 1; }
__device__ inline void release_slot(const Smem& smem, int slot) { arrivals_add(smem.empty + slot); }
__device__ inline void set_busy(const Smem& smem, bool busy) {
    if (threadIdx.x == 0) atomicExch(smem.busy, busy);
}
