// decode_step 4, tma: tensor memory copies (TMA) fill the ring, one instruction of one lane a chunk.
//
// Purpose  cp.async uses the pipeline that also serves loads from shared memory: when memory falls behind, the next copy
//          stalls there, and with it a product whose weights have long arrived, so that a full ring saves no time. TMA copies
//          queue elsewhere.
// Shapes   as rung 1; k of Q8_0 a multiple of 256; `maps` as struct Maps says, INT4 needs none for its layers.
// Bytes    as rung 1, and scales of INT4 from L2 again for each 16 rows of 64.
// Launch   as rung 3, on sm_90 alone.
// Changed  a chunk is one box of a row-major matrix, whose arrival an mbarrier of its slot signals; ldmatrix reads it.
#include "common/decoder/ring_tma.cuh"
#include "common/decoder/products.cuh"
#include "common/decoder/prologues.cuh"
#include "common/decoder/attention.cuh"
#include "common/decoder/phases.cuh"
#include "common/decoder/grid_barrier.cuh"
#include "common/ptx/ordered.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    decode_step_tma(DECODER_ARGUMENTS, unsigned* counter, int steps, const __grid_constant__ Maps maps) {
    extern __shared__ __align__(1024) uint4 shared[];
    const Decoder m = DECODER;
    const Smem smem = smem_of(shared, threadIdx.x / 32);
    const int start = *position;
    int slot = 0;
    unsigned target = 0;
    Stream s = start_stream(m, smem, &maps, 0, QKV, steps * (4 * layers + 1));
    for (int step = 0; step < steps; ++step) {
        const int pos = start + step;
        const KvSplit split = split_of(m, pos + 1);
        prefetch_kv(m, split, 0, pos);
        for (int layer = 0; layer < layers; ++layer)
#pragma unroll 1
            for (int phase = QKV; phase <= DOWN; ++phase) {
                run_phase(m, smem, split, s, slot, layer, phase, pos);
                arrive_at_grid_barrier(smem, counter);
                prefetch_next_phase(m, split, layer, phase, pos);
                wait_at_grid_barrier(smem, counter, target += gridDim.x);
            }
        run_head(m, smem, s, slot, pos + 1);
        if (step + 1 < steps) {
            arrive_at_grid_barrier(smem, counter);
            wait_at_grid_barrier(smem, counter, target += gridDim.x);
        }
    }
    if (threadIdx.x == 0) {
        if (blockIdx.x == 0) *position = start + steps;
        // The last block to leave resets the counter for the next launch.
        if (add_release(counter, 1) == target + gridDim.x - 1) *counter = 0;
    }
}
