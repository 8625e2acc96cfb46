// decode_step 6, producers: warps of their own copy the weights, and the others only multiply.
//
// Purpose  a warp that asks for its next chunk waits where the memory is behind, although what it needs now lies in its
//          ring. So a full ring is emptied no faster than it is filled, and the memory rests between phases. Here the
//          waiting is left to others: products empty the ring as fast as they can, and copies go on through barriers.
// Shapes   as rung 3.
// Bytes    as rung 1.
// Launch   as rung 3, with 32 (WARPS + PRODUCERS) threads a block; PRODUCERS divides WARPS. sm_80 and up.
// Changed  from rung 3: a slot is announced and given back at barriers of its own, __syncthreads is for workers alone, and
//          a producer holds its horses (CALM) while there are no products: what happens then waits behind its copies.
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
#ifndef PRODUCERS
#define PRODUCERS 4
#endif
#ifndef DEPTH
#define DEPTH 12
#endif
#ifndef CALM
#define CALM 4
#endif
#ifndef TEAM
#define TEAM 1
#endif

#include "common/decoder/ring_producers.cuh"
#include "common/decoder/products.cuh"
#include "common/decoder/prologues.cuh"
#include "common/decoder/attention.cuh"
#include "common/decoder/phases.cuh"
#include "common/decoder/grid_barrier.cuh"

extern "C" __global__ void __launch_bounds__(32 * (WARPS + PRODUCERS), 1)
    decode_step_producers(DECODER_ARGUMENTS, unsigned* counter, int steps) {
    extern __shared__ uint4 shared[];
    const Decoder m = DECODER;
    const int warp = threadIdx.x / 32;
    const Room room = room_of(shared, warp % WARPS);
    const int start = *position;
    int turn = 0;
    unsigned target = 0;
    Stream s = start_stream(m, room);
    if (warp >= WARPS) {
        produce(m, shared, warp - WARPS, steps * (4 * layers + 1));
        return;
    }
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
    if (threadIdx.x == 0) {
        if (blockIdx.x == 0) *position = start + steps;
        // The last block to leave puts the counter back to zero for the next launch.
        if (add_release(counter, 1) == target + gridDim.x - 1) *counter = 0;
    }
}
