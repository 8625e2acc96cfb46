// silu_mul 1, vector: SiLU(gate) * up, for a prompt.
//
// Purpose  the product with gate and up leaves both beside each other, eight of the one and eight of the other; the next
//          product reads half as many numbers.
// Shapes   both [n][2 mlp] half in the order of rooflab.ops.decoder.pair_gates; inner [n][mlp] half; 16-byte aligned, mlp a
//          multiple of 8. `count` is n mlp / 8.
// Bytes    6 n mlp.
// Launch   THREADS threads a block, a thread for 8 outputs, blocks to cover them.
// Macros   THREADS = 256: threads a block.
// Below    nothing: torch's operators.
#include <cuda_fp16.h>

union Eight {
    uint4 bits;
    __half halves[8];
};

extern "C" __global__ void __launch_bounds__(THREADS)
    silu_mul_vector(const uint4* __restrict__ both, uint4* __restrict__ inner, unsigned long long count) {
    const unsigned long long i = blockIdx.x * (unsigned long long)THREADS + threadIdx.x;
    if (i >= count) return;
    Eight gate, up;
    gate.bits = both[2 * i];
    up.bits = both[2 * i + 1];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const float g = __half2float(gate.halves[j]);
        up.halves[j] = __float2half(g / (1.0f + __expf(-g)) * __half2float(up.halves[j]));
    }
    inner[i] = up.bits;
}
