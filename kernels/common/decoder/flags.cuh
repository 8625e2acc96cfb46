// Words that tell by themselves whether they have arrived, where FLAGGED: a block waits for the numbers that it needs and not
// for a barrier. NCCL calls such a protocol LL, low latency.
//
// A flagged word is a half with a flag of 16 bits above it, the number of its layer. A row of the residual is the sum of two
// words of 64 bits, to which OUT and DOWN add numbers in fixed point and, in the lowest bits, how many chunks of k each holds:
// a row is complete when the count is that of all its chunks. Two tokens take turns with two sets of sums: while one adds to
// its set, the other set is cleared.
//
// A word is written again a layer later. Its writer has by then read a complete residual, to which every block adds in OUT and
// DOWN (rooflab.ops.decoder refuses a grid with idle blocks), so that all blocks have read the word before. Sums are read while
// they are new alone: once OUT's are complete, a fast block may add to DOWN's while a slow one still waits for OUT's. What the
// last sums came to, a thread keeps.
#pragma once
#if FLAGS_IN_DATA
#include "common/decoder/schedule.cuh"
#include "common/ptx/ordered.cuh"

// The workspace `residual_fixed` in words of 8 bytes: sums of two tokens by OUT and by DOWN [2][2][hidden], stats of splits
// [heads][MAX_SPLITS]; and of 4 bytes: queries [heads][HEAD_DIM], the newest keys and values [2][kv_heads][HEAD_DIM], outputs
// of splits [heads][MAX_SPLITS][HEAD_DIM], SiLU(gate) * up [mlp]. What blocks keep for themselves comes last: as floats
// what the sums by DOWN and by OUT were when they were complete [blocks][2][hidden].
constexpr int STATS_AT = 4 * HIDDEN, QUERIES_AT = 2 * (STATS_AT + HEADS * MAX_SPLITS);
constexpr int NEWEST_AT = QUERIES_AT + HEADS * HEAD_DIM, OUTPUTS_AT = NEWEST_AT + 2 * KV_HEADS * HEAD_DIM;
constexpr int INNER_AT = OUTPUTS_AT + HEADS * MAX_SPLITS * HEAD_DIM, HANDED_WORDS = INNER_AT + MLP;
static_assert(HANDED_WORDS % 4 == 0, "floats are kept four at a time");

__device__ inline unsigned* handed(const Decoder& m, int at) { return reinterpret_cast<unsigned*>(m.residual_fixed) + at; }
__device__ inline unsigned long long* handed_stats(const Decoder& m) {
    return reinterpret_cast<unsigned long long*>(m.residual_fixed) + STATS_AT;
}

__device__ inline float4* kept_sums(const Decoder& m, bool of_out) {
    return reinterpret_cast<float4*>(handed(m, HANDED_WORDS)) + (2 * blockIdx.x + of_out) * (HIDDEN / 4);
}

__device__ inline void store_flagged(const Decoder& m, unsigned* to, __half v) {
    store_relaxed(to, m.flag | __half_as_ushort(v));
}

// Whether four flagged words have the flag.
__device__ inline bool arrived(const uint4& v, unsigned flag) {
    return (((v.x ^ flag) | (v.y ^ flag) | (v.z ^ flag) | (v.w ^ flag)) & 0xffff0000u) == 0;
}

// The halves of four flagged words.
__device__ inline uint2 halves_of(const uint4& v) {
    return make_uint2((v.x & 0xffffu) | v.y << 16, (v.z & 0xffffu) | v.w << 16);
}

// Wait for four flagged words.
__device__ inline uint2 wait_for_four(const unsigned* from, unsigned flag) {
    uint4 v;
    do v = load_relaxed(reinterpret_cast<const uint4*>(from));
    while (!arrived(v, flag));
    return halves_of(v);
}

// Wait for eight.
__device__ inline uint4 wait_for_eight(const unsigned* from, unsigned flag) {
    uint4 v, w;
    do v = load_relaxed(reinterpret_cast<const uint4*>(from)), w = load_relaxed(reinterpret_cast<const uint4*>(from) + 1);
    while (!arrived(v, flag) || !arrived(w, flag));
    const uint2 low = halves_of(v), high = halves_of(w);
    return make_uint4(low.x, low.y, high.x, high.y);
}

// A split's stats as one flagged word: the logarithm (of base 2) of its sum of exponentials, and the layer's flag.
__device__ inline void store_split(const Decoder& m, int at, float row_max, float row_sum) {
    const float log_sum = row_sum > 0.0f ? row_max + __log2f(row_sum) : -1e30f;
    store_relaxed(handed_stats(m) + at, (unsigned long long)m.flag << 32 | __float_as_uint(log_sum));
}

// What OUT's sums count when this layer and all before have added to them, and DOWN's after all layers before. The embedding
// counts for one in OUT's.
__device__ inline unsigned counted_out(const Decoder& m) {
    return 1 + (m.layers_done + 1) * (HEADS * HEAD_DIM / CHUNK<FORMAT>);
}
__device__ inline unsigned counted_down(const Decoder& m) { return m.layers_done * (MLP / CHUNK<FORMAT>); }

// The next layer's flag: never 0, which cleared words have.
__device__ inline void next_flag(Decoder& m) {
    m.flag += 0x10000;
    if (m.flag == 0) m.flag = 0x10000;
}

// Begin a token: its sums are clear, and those of the token before are cleared for the one after it.
__device__ inline void begin_token(Decoder& m, int step) {
    m.sums = reinterpret_cast<unsigned long long*>(m.residual_fixed) + (step % 2 ? 2 * HIDDEN : 0);
    m.layers_done = 0;
    long long* old = m.residual_fixed + (step % 2 ? 0 : 2 * HIDDEN);
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < 2 * HIDDEN; i += gridDim.x * THREADS) old[i] = 0;
}
#endif
