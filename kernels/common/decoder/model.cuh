// A decoder of one token at batch 1: sizes, arguments and phases that all rungs of decode_step share.
//
// A layer has five phases, each of which needs all of the one before: QKV (norm, projections, biases, rotation, append to
// the cache), ATTEND, OUT (and add to the residual), GATE_UP (norm, projections, SiLU times), DOWN (and add). HEAD (norm,
// logits, choice of the next token) ends the token. All blocks work on every phase, 16 rows of its matrix (a unit) at a
// time; schedule.cuh divides them.
//
// A rung includes, in this order: a ring (ring_*.cuh: how weights come to shared memory), products.cuh, attention.cuh,
// prologues.cuh, phases.cuh, and where it needs one, grid_barrier.cuh.
//
// Rows that belong together, a head's dimensions i and i + HEAD_DIM / 2 or gate and up of an output, lie 8 apart in a unit
// (rooflab.ops.decoder orders them), so that one shuffle brings them together.
//
// Macros   FORMAT = 0: of the layers' weights, 0 FP16, 1 Q8_0 in planes, 2 INT4 in tiles
//          HEAD_FORMAT = 0: of the head's and the embedding's, 0 FP16, 1 Q8_0 in planes
//          HEAD_DIM = 64: width of a head
//          HIDDEN = 256: width of the residual
//          MLP = 512: width of the feed-forward layer
//          HEADS = 4: query heads
//          KV_HEADS = 2: key-value heads
//          WARPS = 4: warps a block that make products
//          STAGES = 3: slots in a warp's ring
//          SLOTS = 20: units of which a warp may hold sums, at most
//          TEAM = 1: warps that share a run of chunks, each taking every TEAM-th (INT4: always 1)
#pragma once
#include <cuda_fp16.h>

#include "common/half.cuh"
#include "common/int4.cuh"
#include "common/ptx.cuh"
#include "common/reduce.cuh"

constexpr int THREADS = 32 * WARPS, UNIT = 16, MOST_SPLITS = 16;
constexpr int GROUP = HEADS / KV_HEADS;
constexpr int most(int a, int b) { return a > b ? a : b; }
constexpr int WIDEST_ROW = most(most(HIDDEN, HEADS * HEAD_DIM), MLP);
constexpr int SUMS_OVER = FORMAT == 1 || HEAD_FORMAT == 1 ? 32 : 128;  // elements of x that share a scale or a sum
constexpr int KEYS_A_WARP = 4;            // that it attends to at a time: eight lanes a key
constexpr int KEYS = KEYS_A_WARP * WARPS;  // and that a block attends to
constexpr int TOGETHER = GROUP % 2 == 0 ? 2 : 1;  // query heads that a block works on
enum { HALF, Q8, INT4 };
enum { QKV, ATTEND, OUT, GATE_UP, DOWN, HEAD };

// A token, or a block's candidate for it.
struct Best {
    float value;
    int index;
};

// Of a part's keys, or a warp's: the largest score (times log2 e), and the sum of all weights beside the largest's 1.
struct PartSums {
    float largest, sum;
};

#define DECODER_ARGUMENTS                                                                                               \
    const uint4 *w_qkv, const __half *s_qkv, const uint4 *w_out, const __half *s_out, const uint4 *w_gate_up,           \
        const __half *s_gate_up, const uint4 *w_down, const __half *s_down, const uint4 *w_head, const __half *s_head,  \
        const uint4 *embedding, const __half *s_embedding, const __half *norms, const __half *biases,                   \
        const float2 *rotations, float *residual, __half *queries, __half *inner, __half *part_outputs, PartSums *parts, \
        Best *bests, float *logits, __half *cache_k, __half *cache_v, int *tokens, int *position, int layers,           \
        int vocab, int capacity, float epsilon, float softcap, float heat, unsigned seed
#define DECODER                                                                                                         \
    {                                                                                                                   \
        w_qkv, s_qkv, w_out, s_out, w_gate_up, s_gate_up, w_down, s_down, w_head, s_head, embedding, s_embedding,       \
            norms, biases, rotations, residual, queries, inner, part_outputs, parts, bests, logits, cache_k, cache_v,   \
            tokens, position, layers, vocab, capacity, epsilon, softcap, heat, seed                                     \
    }
struct Decoder {
    static constexpr int hidden = HIDDEN, mlp = MLP, heads = HEADS, kv_heads = KV_HEADS;
    const uint4* w_qkv;  // all weights: [layers] of matrices
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
    const float2* rotations;  // [capacity][HEAD_DIM / 2] cosine and sine
    float* residual;          // [hidden]
    __half* queries;          // [heads][HEAD_DIM]
    __half* inner;            // [mlp] in the order of x for FORMAT
    __half* part_outputs;     // [heads][MOST_SPLITS][HEAD_DIM], of weights that add up to 1
    PartSums* parts;          // [heads][MOST_SPLITS]
    Best* bests;              // [blocks]
    float* logits;            // [vocab]
    __half* cache_k;          // [layers][capacity][kv_heads][HEAD_DIM]
    __half* cache_v;
    int* tokens;    // [capacity]
    int* position;  // of the token that is worked on
    int layers, vocab, capacity;
    float epsilon, softcap, heat;  // heat: one over the temperature, 0 for the likeliest token
    unsigned seed;
};
