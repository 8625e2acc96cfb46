// decode_step 1, phases: a launch for each phase of each layer, products with what belongs to them.
//
// Purpose  a token of a small model is a chain of short products. Everything between them is done by the kernels that make
//          them: norms on the way in, biases, rotation, the append to the cache, SiLU and residual sums on the way out.
// Shapes   HIDDEN, MLP, HEADS, KV_HEADS and HEAD_DIM are the model's: what they make of a loop the compiler knows, and every
//          phase is short. common/decoder/model.cuh says what each argument holds. FORMAT 0 FP16, 1 Q8_0 in planes, 2 INT4 in
//          tiles; HEAD_FORMAT 0 or 1. Rows a multiple of 16 (INT4: 64), k of 64 (FP16), 128 (Q8_0 and INT4).
// Bytes    the weights once; keys and values of the context; activations from the L2, again in every block.
// Launch   THREADS = 32 WARPS threads a block, one block an SM, a block at least for each two heads (one, where their number a
//          key-value head is odd); phase ATTEND reads no weights. Phases of a token in order, HEAD last, which a last launch
//          of phase 5 is.
// Below    nothing: lesson 03's products are the rung before, with torch's operators between them.
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
    decode_step_phases(DECODER_ARGUMENTS, int layer, int phase) {
    extern __shared__ uint4 shared[];
    const Decoder m = DECODER;
    const Room room = room_of(shared, threadIdx.x / 32);
    int turn = 0;
    Stream s = start_stream(m, room, layer, phase, 1);
    const bool last = phase == DOWN && layer == layers - 1;
    const int place = phase == GATE_UP || phase == DOWN ? 0 : __ldcg(position);
    if (phase == HEAD) choose(m, room, s, turn, place);
    else run_phase(m, room, part_of(m, place + 1), s, turn, layer, phase, place);
    if (last && blockIdx.x == 0 && threadIdx.x == 0) *position += 1;
}
