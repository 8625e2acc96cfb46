// batch_sample 1, split: every sequence's next token out of its logits, several blocks a sequence, and on to the next place.
//
// Purpose  a block a sequence leaves most of the GPU without work at the end of every step; and one kernel less moves the
//          position on.
// Shapes   logits [n][vocab] half, 16-byte aligned, vocab a multiple of 8; tokens [..][n] int32, of which row places[0] + 1 is
//          written; places [2] int32, each 1 more in the end; found [n][gridDim.x] candidates of 8 bytes; arrived [n + 1],
//          zero before and after.
// Bytes    2 n vocab.
// Launch   THREADS threads a block, grid parts x sequences. As a dependent of the product that makes the logits.
// Macros   THREADS = 256: threads a block.
// Below    sample/1_block: the likeliest token, or with an inverse temperature above 0 one drawn by Gumbel noise, which takes
//          each with the probability that softmax gives it; of equals the first.
#include <cuda_fp16.h>

#include "common/arrive.cuh"
#include "common/candidate.cuh"
#include "common/ptx/dependent_launch.cuh"
#include "common/ptx/ordered.cuh"
#include "common/uniform.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    batch_sample_split(const uint4* logits, int* tokens, int* places, Candidate* found, unsigned* arrived, int vocab,
                       float softcap, float inverse_temperature, unsigned seed) {
    __shared__ Candidate warp_best[THREADS / 32];
    const int row = blockIdx.y, n = gridDim.y, parts = gridDim.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    wait_for_predecessor();
    const int pos = __ldcg(places);
    Candidate best = no_candidate();
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < vocab / 8; i += parts * THREADS) {
        const uint4 bits = __ldcg(logits + (size_t)row * (vocab / 8) + i);
        const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const unsigned short half = static_cast<unsigned short>(words[j / 2] >> 16 * (j % 2));
            float value = __half2float(*reinterpret_cast<const __half*>(&half));
            const int index = 8 * i + j;
            if (softcap > 0.0f) value = softcap * tanhf(value / softcap);
            if (inverse_temperature > 0.0f)
                value = value * inverse_temperature - __logf(-__logf(uniform(seed + 0x9e3779b1u * row, pos, index)));
            best = better(best, Candidate{value, index});
        }
    }
    best = best_of_warp(best);
    if (lane == 0) warp_best[warp] = best;
    __syncthreads();
    if (warp == 0) {
        best = best_of_warp(lane < THREADS / 32 ? warp_best[lane] : no_candidate());
        if (lane == 0) found[row * parts + blockIdx.x] = best;
    }
    if (!arrives_last(arrived + row, parts) || warp > 0) return;
    best = no_candidate();
    for (int p = lane; p < parts; p += 32) best = better(best, found[row * parts + p]);
    best = best_of_warp(best);
    if (lane > 0) return;
    tokens[(size_t)(pos + 1) * n + row] = best.index;
    if (add_release(arrived + n, 1) < n - 1) return;
    arrived[n] = 0;  // all sequences have read the place
    places[0] += 1;
    places[1] += 1;
}
