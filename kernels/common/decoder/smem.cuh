// Lay out a block's shared memory. The ring's header, which comes before, gives the sizes in pieces of 16 bytes: SLOT of a
// slot, SCALES beside it, BARRIERS of all rings together.
#pragma once
#include "common/decoder/schedule.cuh"

// x_sums: sums of x over groups of 128 (INT4) or scales of its blocks of 32 (Q8_0). A warp's own: ring, scales,
// full, empty.
struct Smem {
    __half* x;        // [X_ELEMENTS] in the order of the phase's format; in ATTEND the warps' outputs
    float* x_sums;
    float* sums;      // [WARPS][SLOTS][UNIT]: the warps' sums of units
    float* scratch;   // [WARPS + 2]
    int* spans;       // [WARPS]: the first and the last unit, or pair of units, of a warp's sums (16 bits each)
    Plan* plans;      // [HEAD + 1]
    TileRange* ranges;  // [WARPS][HEAD + 1]
    uint4* ring;        // [STAGES][SLOT]
    uint4* scales;      // [STAGES][SCALES]
    unsigned long long *full, *empty;  // [STAGES]: a slot's copies have arrived; a slot has been read
    unsigned long long* consumers;     // see sync_consumers
    unsigned* busy;                    // whether the consumers are multiplying
};

// Halves of the longest x or of the warps' attention outputs and stats, rounded up so that what follows is aligned.
constexpr int ATTENDED = WARPS * HEADS_PER_BLOCK * (TENSOR_ATTEND ? HEAD_DIM + 4 : 2 * HEAD_DIM + 4);
constexpr int X_ELEMENTS = (larger(MAX_ROW, ATTENDED) + 511) / 512 * 512;

__device__ inline Smem smem_of(uint4* shared, int warp) {
    Smem smem;
    smem.ring = shared + warp * (STAGES * SLOT);
    shared += WARPS * STAGES * SLOT;
    smem.scales = shared + warp * (STAGES * SCALES);
    shared += WARPS * STAGES * SCALES;
    smem.full = reinterpret_cast<unsigned long long*>(shared) + warp * STAGES;
    smem.empty = smem.full + WARPS * STAGES;
    smem.consumers = reinterpret_cast<unsigned long long*>(shared) + 2 * WARPS * STAGES;
    smem.busy = reinterpret_cast<unsigned*>(smem.consumers + 1);
    shared += BARRIERS;
    smem.x = reinterpret_cast<__half*>(shared);
    smem.x_sums = reinterpret_cast<float*>(smem.x + X_ELEMENTS);
    smem.sums = smem.x_sums + (X_ELEMENTS / X_GROUP + 3) / 4 * 4;
    smem.scratch = smem.sums + SLOTS * WARPS * UNIT;
    smem.spans = reinterpret_cast<int*>(smem.scratch + (WARPS + 2 + 3) / 4 * 4);
    smem.plans = reinterpret_cast<Plan*>(smem.spans + (WARPS + 3) / 4 * 4);
    smem.ranges = reinterpret_cast<TileRange*>(smem.plans + HEAD + 1);
    return smem;
}

// Compute every phase's plan and ranges once a launch.
__device__ inline void make_plans(const Decoder& m, const Smem& smem) {
    const int attended = m.heads * HEAD_DIM;
    if (threadIdx.x == QKV)
        smem.plans[QKV] = plan_of<FORMAT>(m.w_qkv, m.s_qkv, attended + 2 * m.kv_heads * HEAD_DIM, m.hidden);
    if (threadIdx.x == OUT) smem.plans[OUT] = plan_of<FORMAT>(m.w_out, m.s_out, m.hidden, attended, SLABS_OF_OUT);
    if (threadIdx.x == GATE_UP) smem.plans[GATE_UP] = plan_of<FORMAT>(m.w_gate_up, m.s_gate_up, 2 * m.mlp, m.hidden);
    if (threadIdx.x == DOWN) smem.plans[DOWN] = plan_of<FORMAT>(m.w_down, m.s_down, m.hidden, m.mlp, SLABS_OF_DOWN);
    if (threadIdx.x == HEAD) smem.plans[HEAD] = plan_of<HEAD_FORMAT>(m.w_head, m.s_head, m.vocab, m.hidden);
#if TIMELINE
    if (threadIdx.x == 0) smem.scratch[WARPS + 1] = smem.scratch[WARPS + 2] = 0.0f;  // see timeline.cuh
#endif
    __syncthreads();
    const int phase = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp < WARPS && phase <= HEAD && phase != ATTEND)
        smem.ranges[warp * (HEAD + 1) + phase] =
            phase == HEAD ? range_of<HEAD_FORMAT>(smem.plans[HEAD], warp) : range_of<FORMAT>(smem.plans[phase], warp);
    __syncwarp();
}
