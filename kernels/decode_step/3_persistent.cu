// decode_step 3, persistent: one launch for a token, or for many, with a grid barrier between phases.
//
// Purpose  a launch starts with an empty ring and ends with a tail. Here the ring keeps running: while blocks wait for each
//          other, the weights of the next phases are already being copied.
// Shapes   as rung 1; `counter` [1] is zero before and after; all blocks are resident at once.
// Bytes    as rung 1.
// Launch   cooperative, THREADS = 32 WARPS threads a block, one block an SM; `steps` tokens.
// Changed  the loop over layers and phases moves into the kernel, and the stream of weights no longer ends with a phase.
#include "common/decoder/ring_cp_async.cuh"
#include "common/decoder/products.cuh"
#include "common/decoder/prologues.cuh"
#include "common/decoder/attention.cuh"
#include "common/decoder/phases.cuh"
#include "common/decoder/grid_barrier.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/ordered.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    decode_step_persistent(DECODER_ARGUMENTS, unsigned* counter, int steps) {
    extern __shared__ uint4 shared[];
    const Decoder m = DECODER;
    const Smem smem = smem_of(shared, threadIdx.x / 32);
    const int start = *position;
    int slot = 0;
    unsigned target = 0;
    Stream s = start_stream(m, smem, 0, QKV, steps * (4 * layers + 1));
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
    copy_async_wait<0>();
    if (threadIdx.x == 0) {
        if (blockIdx.x == 0) *position = start + steps;
        // The last block to leave resets the counter for the next launch.
        if (add_release(counter, 1) == target + gridDim.x - 1) *counter = 0;
    }
}
