// decode_step 4, boxes: tensor memory copies fill the ring, one instruction of one lane a chunk.
//
// Purpose  cp.async goes through the units that also load from shared memory: where the memory is behind, the next copy
//          waits there, and with it a product whose weights have long arrived, so that a full ring saves no time. These
//          copies wait elsewhere.
// Shapes   as rung 1; k of Q8_0 a multiple of 256; `maps` as struct Maps says, INT4 needs none for its layers.
// Bytes    as rung 1, and scales of INT4 from the L2 again for each 16 rows of 64.
// Launch   as rung 3, on sm_90 alone.
// Changed  a chunk is one box of a row-major matrix, announced at a barrier a slot; ldmatrix takes it apart.
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

#include "common/decoder/ring_tma.cuh"
#include "common/decoder/products.cuh"
#include "common/decoder/prologues.cuh"
#include "common/decoder/attention.cuh"
#include "common/decoder/phases.cuh"
#include "common/decoder/grid_barrier.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    decode_step_boxes(DECODER_ARGUMENTS, unsigned* counter, int steps, const __grid_constant__ Maps maps) {
    extern __shared__ __align__(1024) uint4 shared[];
    const Decoder m = DECODER;
    const Room room = room_of(shared, threadIdx.x / 32);
    const int start = *position;
    int turn = 0;
    unsigned target = 0;
    Stream s = start_stream(m, room, &maps, 0, QKV, steps * (4 * layers + 1));
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
