// gelu_mul 1, vector: GELU(gate) * up, by GELU's tanh formula.
//
// Purpose  the gate of a feed-forward layer and that of a per-layer embedding: what is let through lies beside the gates
//          in the one case, in another array in the other.
// Shapes   gates [n][gate_pitch] half, of which the first 8 eighths count; ups [n][up_pitch] half, from column 8 first on;
//          roots [n] float, what the gates are multiplied by first, not read without `scaled`; out [n][8 eighths] half.
//          Pitches in eights; all 16-byte aligned; `count` is n eighths.
// Bytes    48 count.
// Launch   THREADS threads a block, a thread for 8 outputs, blocks to cover them.
// Macros   THREADS = 256: threads a block.
// Below    silu_mul of the plain decoder, which is SiLU's.
#include "common/rows.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    gelu_mul_vector(const uint4* __restrict__ gates, const uint4* __restrict__ ups, const float* __restrict__ roots,
                     uint4* __restrict__ out, unsigned long long count, int first, int eighths, int gate_pitch,
                     int up_pitch, int scaled) {
    const unsigned long long i = blockIdx.x * (unsigned long long)THREADS + threadIdx.x;
    if (i >= count) return;
    const unsigned long long row = i / eighths, column = i % eighths;
    const Eight gate = eight_from(gates[row * gate_pitch + column]);
    Eight up = eight_from(ups[row * up_pitch + first + column]);
    const float root = scaled ? roots[row] : 1.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const float g = gate.at[j] * root;
        up.at[j] *= 0.5f * g * (1.0f + tanhf(0.79788456f * (g + 0.044715f * g * g * g)));
    }
    out[i] = eight_halves(up);
}
