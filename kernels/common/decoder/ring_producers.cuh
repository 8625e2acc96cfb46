// A ring for each of WARPS warps, which PRODUCERS other warps fill.
#pragma once
#include "common/decoder/model.cuh"

constexpr bool OTHERS_FILL = true;
constexpr int BARRIERS = WARPS * STAGES + 1;
#include "common/decoder/stream_cp_async.cuh"
#include "common/decoder/operands_lanes.cuh"
#include "common/decoder/stream_walk.cuh"

// All warps but producers meet.
__device__ inline void sync_workers(const Room& room) {
    sync_some(room.workers, 1, THREADS);
}

constexpr int MOST_HELD = 0, HELD = 0, HELD_BY_FIRST = 0;

// What workers and producers begin with. A worker's stream counts its way round the ring and no more.
__device__ inline Stream start_stream(const Decoder& m, const Room& room) {
    make_plans(m, room);
    if (threadIdx.x < THREADS && threadIdx.x % 32 < STAGES) {
        arrivals_init(room.full + threadIdx.x % 32, 32);
        arrivals_init(room.empty + threadIdx.x % 32, 32);
    }
    if (threadIdx.x == 0) {
        arrivals_init(room.workers, THREADS);
        *room.busy = 0;
    }
    __syncthreads();
    Stream s;
    s.turn = 0, s.here = 0, s.owed = 0;
    return s;
}

// What a producer does of a launch: it fills the rings of every PRODUCERS-th warp from `producer` on, a chunk each in turn
// where there is room for one. Where the memory is behind it waits, and nobody with it.
__device__ inline void produce(const Decoder& m, uint4* shared, int producer, int matrices) {
    constexpr int STREAMS = WARPS / PRODUCERS;
    static_assert(WARPS % PRODUCERS == 0, "each producer has as many rings to fill");
    const int lane = threadIdx.x % 32;
    const Room room = room_of(shared, producer);
    Stream s[STREAMS];
    int turn[STREAMS] = {};
    unsigned round[STREAMS];
#pragma unroll
    for (int i = 0; i < STREAMS; ++i) {
        s[i].scales = nullptr;
        s[i].policy = evict_first_policy();
        s[i].openings = room.openings + i * PRODUCERS * (HEAD + 1);
        begin_stream(s[i], m, room, 0, QKV, matrices);
        round[i] = 1;
    }
    bool more = true;
    while (more) {
        more = false;
        unsigned busy = 0;
        if (lane == 0) busy = atomicOr(room.busy, 0);
        const bool calm = __shfl_sync(0xffffffffu, busy, 0) == 0;

#pragma unroll
        for (int i = 0; i < STREAMS; ++i) {
            if (s[i].here == 0) continue;
            more = true;
            const int slot = i * (PRODUCERS * STAGES) + turn[i];
            if (!__all_sync(0xffffffffu, arrivals_over(room.empty + slot, round[i]))) continue;  // lanes stay together
            fetch(s[i], m, room, slot, lane);
            arrivals_add_when_copied(room.full + slot);
            if (++turn[i] == STAGES) turn[i] = 0, round[i] ^= 1;
            if (calm) copy_async_wait<CALM - 1>();
            else copy_async_wait<DEPTH - 1>();
        }
    }
    copy_async_wait<0>();
}

template <bool REFILLS>
__device__ inline void wait_for_slot(const Stream& s, const Room& room, int turn) {
    arrivals_wait(room.full + turn, s.turn);
}

template <bool REFILLS>
__device__ inline void leave_slot(Stream&, bool) {}

__device__ inline void next_pass(Stream& s) { s.turn ^= 1; }
__device__ inline void release_slot(const Room& room, int turn) { arrivals_add(room.empty + turn); }
__device__ inline void set_busy(const Room& room, bool busy) {
    if (threadIdx.x == 0) atomicExch(room.busy, busy);
}
