// Write down when a block's first thread passes the marks of a phase: with TIMELINE = 1, else nothing is compiled.
//
// A mark is 16 bytes: the SM's clock; and its kind (low 8 bits) with a number. NS ties the SM's clock to the one that all
// SMs share, taken where that one ticks.
#pragma once
#include "common/decoder/smem.cuh"
#include "common/ptx/clock.cuh"

// With BEGIN stands 8 layer + phase, with MULTIPLIED the clocks that were spent waiting for weights, with NS the shared time.
enum { BEGIN, X_READY, MULTIPLIED, SUMMED, END, NS };

#if TIMELINE
constexpr int MARKS = 2048, TIMED_BLOCKS = 160;  // the marks of three tokens of a model of 28 layers
extern "C" __device__ ulonglong2 timeline[TIMED_BLOCKS * MARKS];
__device__ ulonglong2 timeline[TIMED_BLOCKS * MARKS];

// The count of marks and of clocks waited lie behind the block's scratch; make_plans makes them 0.
__device__ inline void mark_with(const Smem& smem, int kind, unsigned long long number, unsigned long long clock) {
    unsigned* count = reinterpret_cast<unsigned*>(smem.scratch) + WARPS + 1;
    static_assert((WARPS + 2) % 4 != 0, "a word is free behind the block's scratch");
    if (*count < MARKS) timeline[blockIdx.x * MARKS + *count] = make_ulonglong2(clock, kind | number << 8);
    ++*count;
}

__device__ inline void mark(const Smem& smem, int kind, int number = 0) {
    if (threadIdx.x != 0) return;
    unsigned* waited = reinterpret_cast<unsigned*>(smem.scratch) + WARPS + 2;
    mark_with(smem, kind, kind == MULTIPLIED ? *waited : number, clock64());
    if (kind == MULTIPLIED) *waited = 0;
}

__device__ inline void mark_time(const Smem& smem) {
    if (threadIdx.x != 0) return;
    const unsigned long long before = global_ns();
    unsigned long long now = before;
    while (now == before) now = global_ns();
    mark_with(smem, NS, now, clock64());
}

__device__ inline long long clock_before_wait() { return clock64(); }
__device__ inline void count_waited(const Smem& smem, long long before) {
    if (threadIdx.x == 0) reinterpret_cast<unsigned*>(smem.scratch)[WARPS + 2] += (unsigned)(clock64() - before);
}
#else
__device__ inline void mark(const Smem&, int, int = 0) {}
__device__ inline void mark_time(const Smem&) {}
__device__ inline int clock_before_wait() { return 0; }
__device__ inline void count_waited(const Smem&, int) {}
#endif
