// decode_step 2, pdl: start loading a phase's weights before the phase before it has ended.
//
// Purpose  between two launches the memory idles: the last blocks drain, the next ones start, and their first loads take
//          their latency. Weights depend on no earlier phase, so their loads need not wait.
// Shapes   as rung 1.
// Bytes    as rung 1.
// Launch   as rung 1, with programmatic dependent launch; a GPU before sm_90 waits as without.
// Changed  the ring is filled before the kernel waits for its predecessor, and the successor may start at once.
#include "common/decoder/ring_cp_async.cuh"
#include "common/decoder/products.cuh"
#include "common/decoder/prologues.cuh"
#include "common/decoder/attention.cuh"
#include "common/decoder/phases.cuh"
#include "common/ptx/dependent_launch.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    decode_step_pdl(DECODER_ARGUMENTS, int layer, int phase) {
    extern __shared__ uint4 shared[];
    const Decoder m = DECODER;
    const Smem smem = smem_of(shared, threadIdx.x / 32);
    int slot = 0;
    let_successor_start();
    Stream s = start_stream(m, smem, layer, phase, 1);
    wait_for_predecessor();
    const bool last = phase == DOWN && layer == layers - 1;
    const int pos = phase == GATE_UP || phase == DOWN ? 0 : __ldcg(position);
    if (phase == HEAD) run_head(m, smem, s, slot, pos);
    else run_phase(m, smem, split_of(m, pos + 1), s, slot, layer, phase, pos);
    if (last && blockIdx.x == 0 && threadIdx.x == 0) *position += 1;
}
