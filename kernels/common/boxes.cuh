// Chunks of weights that a single lane has copied to shared memory by the tensor memory accelerator (sm_90a): what
// decode_step 4 puts in the place of cp.async.
#pragma once
#include "common/ptx.cuh"

// The matrices of all layers as boxes of 16 rows by 128 bytes, and their Q8_0 scales as boxes of 16 rows by 8; one for
// each phase of common/decoder.cuh.
struct Maps {
    TensorMap codes[6], scales[6];
};

typedef unsigned long long Arrival;  // in shared memory; a slot's copies are there when its turn is over

__device__ inline void start_arrivals(Arrival* arrivals, int count) {
    if (threadIdx.x % 32 < count) mbarrier_init(arrivals + threadIdx.x % 32, 1);
    warpgroup_shared_fence();
}

__device__ inline void wait_for_arrival(Arrival* arrival, unsigned turn) { mbarrier_wait(arrival, turn); }

// A box of codes and, with `scale_box`, the 16 rows' scales from column `scale_column` on: a multiple of 8, for a box that
// does not begin at a multiple of 16 bytes is an illegal instruction.
__device__ inline void start_box(void* slot, void* scales, Arrival* arrival, const Maps* maps, int phase, int row, int column,
                                 bool scale_box, int scale_column) {
    mbarrier_expect(arrival, scale_box ? 2048 + 256 : 2048);
    tma_copy_box(slot, maps->codes + phase, column, row, arrival);
    if (scale_box) tma_copy_box(scales, maps->scales + phase, scale_column, row, arrival);
    mbarrier_arrive(arrival);
}

// Codes and 128 bytes of scales, each in one piece.
__device__ inline void start_pieces(uint4* slot, const uint4* codes, int bytes, uint4* scale_slot, const uint4* scales,
                                    Arrival* arrival) {
    mbarrier_expect(arrival, bytes + 128);
    tma_copy_bytes(slot, codes, bytes, arrival);
    tma_copy_bytes(scale_slot, scales, 128, arrival);
    mbarrier_arrive(arrival);
}
