// What a block keeps in shared memory, and where. The ring that is included before says what a slot of it needs: SLOT and
// SCALES, and BARRIERS for all rings, in pieces of 16 bytes.
#pragma once
#include "common/decoder/schedule.cuh"

// What a block keeps in shared memory: x in the order of its phase's format (in ATTEND the warps' outputs), sums of x over
// groups of 128 (INT4) or scales of its blocks of 32 (Q8_0), the warps' sums of units, and the ring.
struct Room {
    __half* x;
    float* x_sums;
    float* sums;  // [WARPS][SLOTS][UNIT]
    float* few;   // [WARPS + 2]
    int* spans;   // [WARPS]: the first and the last unit, or pair of units, that a warp's sums are of (16 bits each)
    Plan* plans;  // [HEAD + 1]
    Opening* openings;  // [HEAD + 1], this warp's, as what follows
    uint4* ring;
    uint4* scales;
    unsigned long long* full;  // a slot's copies are there
    unsigned long long *empty, *workers;  // a slot has been read; see sync_workers
    unsigned* busy;                       // products are being made
};

// Elements of the longest x, or of what warps have attended to, filled up so that what follows is aligned.
constexpr int WIDEST = (most(WIDEST_ROW, 2 * WARPS * TOGETHER * (HEAD_DIM + 2)) + 511) / 512 * 512;

__device__ inline Room room_of(uint4* shared, int warp) {
    Room room;
    room.ring = shared + warp * (STAGES * SLOT);
    shared += WARPS * STAGES * SLOT;
    room.scales = shared + warp * (STAGES * SCALES);
    shared += WARPS * STAGES * SCALES;
    room.full = reinterpret_cast<unsigned long long*>(shared) + warp * STAGES;
    room.empty = room.full + WARPS * STAGES;
    room.workers = reinterpret_cast<unsigned long long*>(shared) + 2 * WARPS * STAGES;
    room.busy = reinterpret_cast<unsigned*>(room.workers + 1);
    shared += BARRIERS;
    room.x = reinterpret_cast<__half*>(shared);
    room.x_sums = reinterpret_cast<float*>(room.x + WIDEST);
    room.sums = room.x_sums + (WIDEST / SUMS_OVER + 3) / 4 * 4;
    room.few = room.sums + SLOTS * WARPS * UNIT;
    room.spans = reinterpret_cast<int*>(room.few + (WARPS + 2 + 3) / 4 * 4);
    room.plans = reinterpret_cast<Plan*>(room.spans + (WARPS + 3) / 4 * 4);
    room.openings = reinterpret_cast<Opening*>(room.plans + HEAD + 1) + warp * (HEAD + 1);
    return room;
}

__device__ inline void make_plans(const Decoder& m, const Room& room) {
    const int attended = m.heads * HEAD_DIM;
    if (threadIdx.x == QKV)
        room.plans[QKV] = plan_of<FORMAT>(m.w_qkv, m.s_qkv, attended + 2 * m.kv_heads * HEAD_DIM, m.hidden);
    if (threadIdx.x == OUT) room.plans[OUT] = plan_of<FORMAT>(m.w_out, m.s_out, m.hidden, attended);
    if (threadIdx.x == GATE_UP) room.plans[GATE_UP] = plan_of<FORMAT>(m.w_gate_up, m.s_gate_up, 2 * m.mlp, m.hidden);
    if (threadIdx.x == DOWN) room.plans[DOWN] = plan_of<FORMAT>(m.w_down, m.s_down, m.hidden, m.mlp);
    if (threadIdx.x == HEAD) room.plans[HEAD] = plan_of<HEAD_FORMAT>(m.w_head, m.s_head, m.vocab, m.hidden);
    __syncthreads();
    const int phase = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp < WARPS && phase <= HEAD && phase != ATTEND)
        room.openings[phase] =
            phase == HEAD ? opening_of<HEAD_FORMAT>(room.plans[HEAD], warp) : opening_of<FORMAT>(room.plans[phase], warp);
    __syncwarp();
}
