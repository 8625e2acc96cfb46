// decode_step 3, persistent: one launch for a token, or for many, with a barrier across the grid between phases.
//
// Purpose  a launch begins with an empty ring and ends with a tail. Here the ring runs on: while blocks wait for each
//          other, the weights of the next phase are on their way, whatever the phases before them will have made.
// Shapes   as rung 1; `counter` [1] is zero before and after, all blocks are resident at once.
// Bytes    as rung 1.
// Launch   cooperative, THREADS = 32 WARPS threads a block, one block an SM; `steps` tokens.
// Changed  the loop over layers and phases moves into the kernel, and the stream of weights no longer ends with a phase.
#ifndef FORMAT
#define FORMAT 0
#endif
#ifndef HEAD_FORMAT
#define HEAD_FORMAT 0
#endif
#ifndef HEAD_DIM
#define HEAD_DIM 64
#endif
#ifndef HIDDEN
#define HIDDEN 256
#endif
#ifndef MLP
#define MLP 512
#endif
#ifndef HEADS
#define HEADS 4
#endif
#ifndef KV_HEADS
#define KV_HEADS 2
#endif
#ifndef WARPS
#define WARPS 4
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef SLOTS
#define SLOTS 20
#endif
#ifndef TEAM
#define TEAM 1
#endif

#include "common/decoder/ring_cp_async.cuh"
#include "common/decoder/products.cuh"
#include "common/decoder/prologues.cuh"
#include "common/decoder/attention.cuh"
#include "common/decoder/phases.cuh"
#include "common/decoder/grid_barrier.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    decode_step_persistent(DECODER_ARGUMENTS, unsigned* counter, int steps) {
    extern __shared__ uint4 shared[];
    const Decoder m = DECODER;
    const Room room = room_of(shared, threadIdx.x / 32);
    const int start = *position;
    int turn = 0;
    unsigned target = 0;
    Stream s = start_stream(m, room, 0, QKV, steps * (4 * layers + 1));
    for (int step = 0; step < steps; ++step) {
        const int place = start + step;
        const Part part = part_of(m, place + 1);
        foresee(m, part, 0, place);
        for (int layer = 0; layer < layers; ++layer)
#pragma unroll 1
            for (int phase = QKV; phase <= DOWN; ++phase) {
                run_phase(m, room, part, s, turn, layer, phase, place);
                arrive(room, counter);
                look_ahead(m, part, layer, phase, place);
                wait_for_all(room, counter, target += gridDim.x);
            }
        choose(m, room, s, turn, place + 1);
        if (step + 1 < steps) {
            arrive(room, counter);
            wait_for_all(room, counter, target += gridDim.x);
        }
    }
    copy_async_wait<0>();
    if (threadIdx.x == 0) {
        if (blockIdx.x == 0) *position = start + steps;
        // The last block to leave puts the counter back to zero for the next launch.
        if (add_release(counter, 1) == target + gridDim.x - 1) *counter = 0;
    }
}
