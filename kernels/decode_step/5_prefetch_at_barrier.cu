// decode_step 5, prefetch at barrier: refill the last slots of a phase while blocks wait for each other.
//
// Purpose  when memory falls behind, issuing a copy takes as long as memory takes for one. A ring that is refilled chunk by
//          chunk is therefore full when a phase ends, nothing is issued in the microseconds until the next products start,
//          and memory idles. Slots that stay empty until then give it work.
// Shapes   as rung 1; `counter` as in rung 3.
// Bytes    as rung 1.
// Launch   as rung 3.
// Macros   HELD_BACK = 1: slots that a warp leaves empty at the end of a phase, fewer than STAGES;
//          FIRST_HELD = 2: the same for the first warp.
// Changed  from rung 3: a warp leaves the slots of its last HELD_BACK chunks of a phase empty, and refills them after it has
//          arrived at the grid barrier. The first warp may leave more, because the thread that signals the block's arrival
//          first waits for its own copies.
#include "common/decoder/ring_deferred.cuh"
#include "common/decoder/products.cuh"
#include "common/decoder/prologues.cuh"
#include "common/decoder/attention.cuh"
#include "common/decoder/phases.cuh"
#include "common/decoder/grid_barrier.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/ordered.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    decode_step_prefetch_at_barrier(DECODER_ARGUMENTS, unsigned* counter, int steps) {
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
                fetch_deferred(s, m, smem, slot);
                prefetch_next_phase(m, split, layer, phase, pos);
                wait_at_grid_barrier<THREADS - 32>(smem, counter, target += gridDim.x);
            }
        run_head(m, smem, s, slot, pos + 1);
        if (step + 1 < steps) {
            arrive_at_grid_barrier(smem, counter);
            fetch_deferred(s, m, smem, slot);
            wait_at_grid_barrier<THREADS - 32>(smem, counter, target += gridDim.x);
        }
    }
    copy_async_wait<0>();
    if (threadIdx.x == 0) {
        if (blockIdx.x == 0) *position = start + steps;
        // The last block to leave resets the counter for the next launch.
        if (add_release(counter, 1) == target + gridDim.x - 1) *counter = 0;
    }
}
