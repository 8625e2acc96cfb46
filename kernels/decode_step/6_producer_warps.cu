// decode_step 6, producer warps: separate warps copy the weights; the others only multiply.
//
// Purpose  a warp that issues its next chunk's copy stalls when memory falls behind, although the chunk it needs now is in
//          its ring. So a full ring drains no faster than it fills, and memory idles between phases. Here producer warps
//          stall instead: products drain the ring at full speed, and copies continue through barriers.
// Shapes   as rung 3.
// Bytes    as rung 1.
// Launch   as rung 3, with 32 (WARPS + PRODUCERS) threads a block. sm_80 and up.
// Macros   PRODUCERS = 4: warps that copy; divides WARPS;
//          DEPTH = 12: chunks a producer keeps under way, at most;
//          IDLE_DEPTH = 4: the same while no products are made: loads and stores between products queue behind copies.
// Changed  from rung 3: barriers of each slot signal that it is full or empty, consumers synchronise without the producers,
//          and a producer limits its copies in flight (IDLE_DEPTH) while the consumers are between products.
#include "common/decoder/ring_producers.cuh"
#include "common/decoder/products.cuh"
#include "common/decoder/prologues.cuh"
#include "common/decoder/attention.cuh"
#include "common/decoder/phases.cuh"
#include "common/decoder/grid_barrier.cuh"
#include "common/ptx/ordered.cuh"

extern "C" __global__ void __launch_bounds__(32 * (WARPS + PRODUCERS), 1)
    decode_step_producer_warps(DECODER_ARGUMENTS, unsigned* counter, int steps) {
    extern __shared__ uint4 shared[];
    const Decoder m = DECODER;
    const int warp = threadIdx.x / 32;
    const Smem smem = smem_of(shared, warp % WARPS);
    const int start = *position;
    int slot = 0;
    unsigned target = 0;
    Stream s = start_stream(m, smem);
    if (warp >= WARPS) {
        produce(m, shared, warp - WARPS, steps * (4 * layers + 1));
        return;
    }
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
