// decode_step 1, kernel per phase: one launch for each phase of each layer; products with fused prologues and epilogues.
//
// Purpose  a token of a small model is a chain of short products. The kernels that make them do everything between them
//          too: RMSNorm on the way in; biases, RoPE, the append to the cache, SiLU and residual sums on the way out.
// Shapes   HIDDEN, MLP, HEADS, KV_HEADS and HEAD_DIM are the model's, as macros: constant trip counts keep the short phases
//          short. common/decoder/model.cuh lists all macros and arguments. Rows are multiples of 16 (INT4: 64), k of 64 (FP16)
//          or 128 (Q8_0, INT4).
// Bytes    the weights once; keys and values of the context; activations from L2, in every block again.
// Launch   THREADS = 32 WARPS threads a block, one block an SM, at least one block for every two heads (for every head where
//          a key-value head has an odd number of query heads). Phases of a token in order; ATTEND reads no weights; HEAD is
//          one more launch at the end, as phase 5.
// Below    nothing: lesson 03's products are the rung before, with torch's operators between them.
#include "common/decoder/ring_cp_async.cuh"
#include "common/decoder/products.cuh"
#include "common/decoder/prologues.cuh"
#include "common/decoder/attention.cuh"
#include "common/decoder/phases.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    decode_step_kernel_per_phase(DECODER_ARGUMENTS, int layer, int phase) {
    extern __shared__ uint4 shared[];
    const Decoder m = DECODER;
    const Smem smem = smem_of(shared, threadIdx.x / 32);
    int slot = 0;
    Stream s = start_stream(m, smem, layer, phase, 1);
    const bool last = phase == DOWN && layer == layers - 1;
    const int pos = phase == GATE_UP || phase == DOWN ? 0 : __ldcg(position);
    if (phase == HEAD) run_head(m, smem, s, slot, pos);
    else run_phase(m, smem, split_of(m, pos + 1), s, slot, layer, phase, pos);
    if (last && blockIdx.x == 0 && threadIdx.x == 0) *position += 1;
}
