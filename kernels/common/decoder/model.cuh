// Decode one token at batch 1: the sizes, arguments and phases that all rungs of decode_step share.
//
// A layer has five phases, each of which needs the complete result of the one before: QKV (RMSNorm, projections, biases,
// RoPE, append to the cache), ATTEND, OUT (and add to the residual), GATE_UP (RMSNorm, projections, SiLU(gate) * up), DOWN
// (and add to the residual). HEAD (RMSNorm, logits, sampling) ends the token. All blocks work on every phase; schedule.cuh
// divides the rows of its matrix among them, 16 rows (a unit: one m16 tile of the tensor cores) at a time.
//
// A rung includes, in this order: a ring (ring_*.cuh: how weights reach shared memory), products.cuh, prologues.cuh,
// attention.cuh, phases.cuh, and grid_barrier.cuh if one launch runs several phases.
//
// Two rows that one thread needs together (dimensions i and i + HEAD_DIM / 2 of a head; gate and up of an output) lie 8
// apart in a unit (rooflab.ops.decoder orders them), so that one shuffle exchanges them.
//
// Macros   FORMAT = 0: format of the layers' weights: 0 FP16, 1 Q8_0 in planes, 2 INT4 in tiles;
//          HEAD_FORMAT = 0: format of the head and the embedding: 0 FP16, 1 Q8_0 in planes;
//          HEAD_DIM = 64: width of a head;
//          HIDDEN = 256: width of the residual;
//          MLP = 512: width of the feed-forward layer;
//          HEADS = 4: query heads;
//          KV_HEADS = 2: key-value heads;
//          WARPS = 4: warps of a block that multiply;
//          STAGES = 3: slots in a warp's ring;
//          SLOTS = 20: units that a warp may keep sums of;
//          TEAM = 1: warps that share a range of chunks, each taking every TEAM-th (INT4: 1).
#pragma once
#include <cuda_fp16.h>

#include "common/half.cuh"
#include "common/int4.cuh"
#include "common/ptx/kept.cuh"
#include "common/reduce.cuh"

constexpr int THREADS = 32 * WARPS, UNIT = 16;
constexpr int GROUP = HEADS / KV_HEADS;
constexpr int larger(int a, int b) { return a > b ? a : b; }
// Whether INT4's codes are multiplied as bytes (rung 10), see product_int4_bytes.cuh.
#if INT4_BYTES
constexpr bool BYTES_OF_INT4 = true;
#else
constexpr bool BYTES_OF_INT4 = false;
#endif
// Elements of x a word of x_sums.
constexpr int X_GROUP = FORMAT == 1 || HEAD_FORMAT == 1 ? 32 : FORMAT == 2 && BYTES_OF_INT4 ? 64 : 128;
// Slabs along k that OUT and DOWN are divided into; 0 where blocks divide rows alone (all rungs but those with SPLIT_K).
#if DOWN_SLABS
constexpr int SLABS_OF_OUT = OUT_SLABS, SLABS_OF_DOWN = DOWN_SLABS;
#else
constexpr int SLABS_OF_OUT = 0, SLABS_OF_DOWN = 0;
#endif
constexpr bool SPLIT_K = SLABS_OF_DOWN > 0;
constexpr int widest_slab(int k, int slabs) { return slabs > 0 ? ((k + 127) / 128 + slabs - 1) / slabs * 128 : k; }
// The longest x.
constexpr int MAX_ROW =
    larger(HIDDEN, larger(widest_slab(HEADS * HEAD_DIM, SLABS_OF_OUT), widest_slab(MLP, SLABS_OF_DOWN)));
// Whether ATTEND multiplies on the tensor cores (rung 8). That takes so many registers that other phases compute what depends
// on the thread's number where they use it (thread_number).
#if TENSOR_ATTENTION
constexpr bool TENSOR_ATTEND = true;
#else
constexpr bool TENSOR_ATTEND = false;
#endif
// Whether what blocks hand on carries flags (rung 9), see flags.cuh.
#if FLAGS_IN_DATA
constexpr bool FLAGGED = true;
#else
constexpr bool FLAGGED = false;
#endif
__device__ inline int thread_number() { return TENSOR_ATTEND ? recomputed(threadIdx.x) : threadIdx.x; }
constexpr int MAX_SPLITS = TENSOR_ATTEND ? 32 : 16;  // of a context
constexpr int KEYS_PER_WARP = TENSOR_ATTEND ? 16 : 4;  // scored at a time: by eight lanes each, or by tensor cores
constexpr int KEYS_PER_BLOCK = KEYS_PER_WARP * WARPS;
// Query heads that a block attends with: two that share their keys or, where FLAGGED and heads are few, one, which ends
// sooner. With fewer than 8 heads a grid may be too small for that.
constexpr bool SPREADS_HEADS = FLAGGED && HEADS >= 8 && HEADS <= 16;
constexpr int HEADS_PER_BLOCK = TENSOR_ATTEND ? GROUP : GROUP % 2 == 0 && !SPREADS_HEADS ? 2 : 1;
enum { FP16, Q8, INT4 };

// Whether products of a format are of bytes, and x is two of them in a scale: of a block of 32 (Q8_0) or a group of 128 (INT4).
template <int F>
constexpr bool AS_BYTES = F == Q8 || (F == INT4 && BYTES_OF_INT4);

// Words of x_sums a chunk: a scale each of Q8_0's four blocks, a scale and a sum of INT4 as bytes, or a sum.
template <int F>
constexpr int X_SUMS = F == Q8 ? 4 : AS_BYTES<F> ? 2 : 1;
enum { QKV, ATTEND, OUT, GATE_UP, DOWN, HEAD };

// A block's candidate for the next token: its logit (or logit plus noise) and its number.
struct Candidate {
    float value;
    int index;
};

// Softmax state over the keys of a split or of a warp: the largest score (times log2 e), and the sum of exp2(score -
// row_max).
struct SplitStats {
    float row_max, row_sum;
};

#define DECODER_ARGUMENTS                                                                                                  \
    const uint4 *w_qkv, const __half *s_qkv, const uint4 *w_out, const __half *s_out, const uint4 *w_gate_up,              \
        const __half *s_gate_up, const uint4 *w_down, const __half *s_down, const uint4 *w_head, const __half *s_head,     \
        const uint4 *embedding, const __half *s_embedding, const __half *norms, const __half *biases,                      \
        const float2 *rotary, float *residual, __half *queries, __half *inner, __half *split_outputs,                      \
        SplitStats *split_stats, Candidate *candidates, float *logits, __half *cache_k, __half *cache_v, int *tokens,      \
        int *position, int layers, int vocab, int capacity, float epsilon, float softcap, float inverse_temperature,       \
        unsigned seed
#define DECODER                                                                                                            \
    {                                                                                                                      \
        w_qkv, s_qkv, w_out, s_out, w_gate_up, s_gate_up, w_down, s_down, w_head, s_head, embedding, s_embedding,          \
            norms, biases, rotary, residual, queries, inner, split_outputs, split_stats, candidates, logits, cache_k,      \
            cache_v, tokens, position, layers, vocab, capacity, epsilon, softcap, inverse_temperature, seed                \
    }
struct Decoder {
    static constexpr int hidden = HIDDEN, mlp = MLP, heads = HEADS, kv_heads = KV_HEADS;
    const uint4* w_qkv;  // weights: [layers] of matrices
    const __half* s_qkv;
    const uint4* w_out;
    const __half* s_out;
    const uint4* w_gate_up;
    const __half* s_gate_up;
    const uint4* w_down;
    const __half* s_down;
    const uint4* w_head;
    const __half* s_head;
    const uint4* embedding;
    const __half* s_embedding;
    const __half* norms;      // [2 layers + 1][hidden]
    const __half* biases;     // [layers][rows of QKV]
    const float2* rotary;     // [capacity][HEAD_DIM / 2] cosine and sine
    float* residual;          // [hidden]
    __half* queries;          // [heads][HEAD_DIM]
    __half* inner;            // [mlp] in the order of x for FORMAT
    __half* split_outputs;    // [heads][MAX_SPLITS][HEAD_DIM], each divided by its row_sum
    SplitStats* split_stats;  // [heads][MAX_SPLITS]
    Candidate* candidates;    // [blocks]
    float* logits;            // [vocab]
    __half* cache_k;          // [layers][capacity][kv_heads][HEAD_DIM]
    __half* cache_v;
    int* tokens;              // [capacity]
    int* position;            // of the token that is decoded
    int layers, vocab, capacity;
    float epsilon, softcap, inverse_temperature;  // inverse_temperature 0: greedy
    unsigned seed;
    long long* residual_fixed;  // [hidden] in units of 2^-32: takes the place of `residual` where SPLIT_K; see flags.cuh
#if FLAGS_IN_DATA
    unsigned long long* sums;  // [2][hidden]: of this token, by OUT and by DOWN
    unsigned layers_done, flag;  // layers of this token before the present one; what its flagged words carry
#endif
};

// Numbers in fixed point, whose sum is the same in any order. The residual's range is 2^31 either way; where FLAGGED the ten
// lowest bits are a count, and the range is 2^23 in units of 2^-30.
constexpr int COUNT_BITS = 10;
__device__ inline long long to_fixed(float v) {
    return FLAGGED ? (long long)(v * 1073741824.0f) * (1 << COUNT_BITS) : (long long)(v * 4294967296.0f);
}
__device__ inline float from_fixed(long long v) {
    return (float)v * (1.0f / (FLAGGED ? 1073741824.0f * (1 << COUNT_BITS) : 4294967296.0f));
}
