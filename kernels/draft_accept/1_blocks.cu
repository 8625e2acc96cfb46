// draft_accept 1, blocks: how many of a sequence's drafted tokens hold, and the decoder's state after them.
//
// Purpose  what holds is known when all the choices are. Deciding it here, the host asks for two numbers after all and has
//          nothing to put right.
// Shapes   candidates [count] of 8 bytes, whose best is the token that is due at the first place; tokens [n] int32, drafts
//          for that place and the ones after it; best [parts][n] of 8 bytes, the best of each part of the tokens after each of
//          them, see batch_product; logits [n][vocab] half. With
//          m the drafts before the first that is not the token due: held [2] int32, 8-byte aligned and of the GPU's memory or
//          the host's, = m and the token due after them, before all else is written; of m > 0
//          last [vocab] float = logits after the m-th, position [1] int32 = places[0] + m, sequence [..] int32 has the m tokens
//          from places[0] on, and candidates hold the token due alone. vocab a multiple of 8, all 16-byte aligned.
//          arrived [1], zero before and after. n at most 31.
// Bytes    6 vocab.
// Launch   THREADS threads a block, any number of blocks. As a dependent of what chooses.
// Macros   THREADS = 256: threads a block.
// Below    nothing: a batch takes every token that it chooses.
#include <cuda_fp16.h>

#include "common/arrive.cuh"
#include "common/candidate.cuh"
#include "common/ptx/dependent_launch.cuh"
#include "common/ptx/host_word.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    draft_accept_blocks(Candidate* candidates, const int* tokens, const Candidate* best, const uint4* logits, const int* places,
                        int* held, float4* last, int* position, int* sequence, unsigned* arrived, int count, int parts, int n,
                        int vocab, float softcap) {
    __shared__ int drafts, due, chosen[32];
    const int lane = threadIdx.x % 32;
    wait_for_predecessor();
    for (int i = threadIdx.x / 32; i < n; i += THREADS / 32) {
        Candidate mine = no_candidate();
        for (int part = lane; part < parts; part += 32) {
            const float2 bits = __ldcg(reinterpret_cast<const float2*>(best) + part * n + i);
            mine = better(mine, {bits.x, __float_as_int(bits.y)});
        }
        mine = best_of_warp(mine);
        if (lane == 0) chosen[i] = mine.index;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        Candidate mine = no_candidate();
        for (int i = lane; i < count; i += 32) mine = better(mine, candidates[i]);
        const int first = best_of_warp(mine).index, token = lane < n ? tokens[lane] : -1;
        const int after = lane < n ? chosen[lane] : -1, before = __shfl_up_sync(0xffffffffu, after, 1);
        const unsigned wrong = __ballot_sync(0xffffffffu, lane >= n || token != (lane ? before : first));
        const int m = __ffs(wrong) - 1, next = __shfl_sync(0xffffffffu, after, max(m - 1, 0));
        if (lane == 0) drafts = m, due = m ? next : first;
    }
    __syncthreads();
    const int m = drafts, next = due;
    // The host may wait for this: both at once, and before all else.
    if (blockIdx.x == 0 && threadIdx.x == 0)
        store_for_host(reinterpret_cast<unsigned long long*>(held), (unsigned long long)next << 32 | (unsigned)m);
    for (int i = blockIdx.x * THREADS + threadIdx.x; m && i < vocab / 8; i += gridDim.x * THREADS) {
        const uint4 bits = __ldcg(logits + (m - 1) * (size_t)(vocab / 8) + i);
        const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
        float v[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const unsigned short half = static_cast<unsigned short>(words[j / 2] >> 16 * (j % 2));
            v[j] = __half2float(*reinterpret_cast<const __half*>(&half));
            if (softcap > 0.0f) v[j] = softcap * tanhf(v[j] / softcap);
        }
        last[2 * i] = make_float4(v[0], v[1], v[2], v[3]);
        last[2 * i + 1] = make_float4(v[4], v[5], v[6], v[7]);
    }
    if (!arrives_last(arrived, gridDim.x)) return;  // all blocks have read the candidates
    if (m == 0) return;
    if (threadIdx.x == 0) *position = places[0] + m;
    for (int i = threadIdx.x; i < m; i += THREADS) sequence[places[0] + i] = tokens[i];
    for (int i = threadIdx.x; i < count; i += THREADS) candidates[i] = i ? no_candidate() : Candidate{0.0f, next};
}
