// decode_step 2, dependent: a phase's weights are on their way before the phase before it has ended.
//
// Purpose  between two launches the memory idles: the last blocks leave, the next ones come, and their first loads take
//          their time. Weights hang on nothing that came before, so they need not wait.
// Shapes   as rung 1.
// Bytes    as rung 1.
// Launch   as rung 1, with programmatic dependent launch; a chip before sm_90 waits as ever.
// Changed  the ring is filled before the predecessor is waited for, and the successor may start at once.
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

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    decode_step_dependent(DECODER_ARGUMENTS, int layer, int phase) {
    extern __shared__ uint4 shared[];
    const Decoder m = DECODER;
    const Room room = room_of(shared, threadIdx.x / 32);
    int turn = 0;
    let_successor_start();
    Stream s = start_stream(m, room, layer, phase, 1);
    wait_for_predecessor();
    const bool last = phase == DOWN && layer == layers - 1;
    const int place = phase == GATE_UP || phase == DOWN ? 0 : __ldcg(position);
    if (phase == HEAD) choose(m, room, s, turn, place);
    else run_phase(m, room, part_of(m, place + 1), s, turn, layer, phase, place);
    if (last && blockIdx.x == 0 && threadIdx.x == 0) *position += 1;
}
