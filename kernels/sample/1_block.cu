// sample 1, block: every sequence's next token out of its logits.
//
// Purpose  a batch decodes without the host: what is chosen stays on the device, where the next step reads it.
// Shapes   logits [n][vocab] half, 16-byte aligned, vocab a multiple of 8; tokens [..][n] int32, of which row position + 1 is
//          written.
// Bytes    2 n vocab.
// Launch   THREADS threads a block, a block a sequence.
// Macros   THREADS = 1024: threads a block.
// Below    nothing: torch's argmax, and its random numbers. The likeliest token, or with an inverse temperature above 0 one
//          drawn by Gumbel noise, which takes each with the probability that softmax gives it; of equals the first.
#include <cuda_fp16.h>

#include "common/uniform.cuh"

struct Candidate {
    float value;
    int index;
};

__device__ inline Candidate better(Candidate a, Candidate b) {
    return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

__device__ inline Candidate best_of_warp(Candidate mine) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const Candidate other = {__shfl_xor_sync(0xffffffffu, mine.value, offset),
                                 __shfl_xor_sync(0xffffffffu, mine.index, offset)};
        mine = better(mine, other);
    }
    return mine;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sample_block(const uint4* __restrict__ logits, int* __restrict__ tokens, const int* __restrict__ position,
                      int vocab, float softcap, float inverse_temperature, unsigned seed) {
    __shared__ Candidate warp_best[THREADS / 32];
    const int row = blockIdx.x, pos = *position;
    Candidate best = {__int_as_float(0xff800000), 0x7fffffff};
    for (int i = threadIdx.x; i < vocab / 8; i += THREADS) {
        const uint4 bits = logits[(size_t)row * (vocab / 8) + i];
        const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const unsigned short half = static_cast<unsigned short>(words[j / 2] >> 16 * (j % 2));
            float value = __half2float(*reinterpret_cast<const __half*>(&half));
            const int index = 8 * i + j;
            if (softcap > 0.0f) value = softcap * tanhf(value / softcap);
            if (inverse_temperature > 0.0f) value = value * inverse_temperature - __logf(-__logf(uniform(seed + 0x9e3779b1u * row, pos, index)));
            best = better(best, Candidate{value, index});
        }
    }
    best = best_of_warp(best);
    if (threadIdx.x % 32 == 0) warp_best[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    if (threadIdx.x < THREADS / 32) best = warp_best[threadIdx.x];
    best = best_of_warp(best);
    if (threadIdx.x == 0) tokens[(size_t)(pos + 1) * gridDim.x + row] = best.index;
}
