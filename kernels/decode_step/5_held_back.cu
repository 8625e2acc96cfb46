// decode_step 5, held back: the last slots of a phase's weights are filled again while blocks wait for each other.
//
// Purpose  where the memory is behind, asking for a copy takes as long as the memory takes for one. A ring that is filled
//          again chunk by chunk is therefore full when a phase ends, nothing is asked for in the microseconds until the next
//          products begin, and the memory rests. Slots that are left empty until then give it something to do.
// Shapes   as rung 1; `counter` as in rung 3.
// Bytes    as rung 1.
// Launch   as rung 3; HELD_BACK slots a warp, fewer than STAGES, and FIRST_HELD for the first one.
// Changed  of its last HELD_BACK chunks of a phase a warp leaves the slots empty, and fills them after it has arrived at the
//          barrier. The first warp may hold back more: whoever tells of the block's arrival waits for its own copies first.
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
#ifndef HELD_BACK
#define HELD_BACK 1
#endif
#ifndef FIRST_HELD
#define FIRST_HELD 2
#endif

#include "common/decoder/ring_deferred.cuh"
#include "common/decoder/products.cuh"
#include "common/decoder/prologues.cuh"
#include "common/decoder/attention.cuh"
#include "common/decoder/phases.cuh"
#include "common/decoder/grid_barrier.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    decode_step_held_back(DECODER_ARGUMENTS, unsigned* counter, int steps) {
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
                fetch_owed(s, m, room, turn);
                look_ahead(m, part, layer, phase, place);
                wait_for_all<THREADS - 32>(room, counter, target += gridDim.x);
            }
        choose(m, room, s, turn, place + 1);
        if (step + 1 < steps) {
            arrive(room, counter);
            fetch_owed(s, m, room, turn);
            wait_for_all<THREADS - 32>(room, counter, target += gridDim.x);
        }
    }
    copy_async_wait<0>();
    if (threadIdx.x == 0) {
        if (blockIdx.x == 0) *position = start + steps;
        // The last block to leave puts the counter back to zero for the next launch.
        if (add_release(counter, 1) == target + gridDim.x - 1) *counter = 0;
    }
}
