// One decoded token at batch 1, phase by phase: what the rungs of decode_step share.
//
// A layer has five phases, each of which needs all of the one before: QKV (norm, projections, biases, rotation, append to
// the cache), ATTEND, OUT (and add to the residual), GATE_UP (norm, projections, SiLU times), DOWN (and add). HEAD (norm,
// logits, choice of the next token) ends the token. All blocks work on every phase, 16 rows of its matrix (a unit) at a
// time; the warps of a block divide the units' chunks along k among them, in the order of their numbers.
//
// Weights come through a ring of slots in shared memory, WARPS times STAGES of them, which cp.async fills ahead. Each lane
// copies just what it will read itself, so that a warp waits for nobody; and because weights depend on nothing, the ring
// may already hold those of the next phase while this one ends. Products are made by tensor cores: a lane's share of
// 16 rows is the first operand as it lies, x is the second one. Where in k an element lies is the same permutation for
// both, so that 16-byte copies fit: see copy_chunk.
//
// Rows that belong together, a head's dimensions i and i + HEAD_DIM / 2 or gate and up of an output, lie 8 apart in a unit
// (rooflab.ops.decoder orders them), so that one shuffle brings them together.
#pragma once
#include <cuda_fp16.h>

#include "common/half.cuh"
#include "common/int4.cuh"
#include "common/ptx.cuh"
#include "common/reduce.cuh"

#ifndef HELD_BACK
#define HELD_BACK 0  // slots a warp that are filled again not when they are free but when the phase is over
#endif
static_assert(HELD_BACK < STAGES, "a warp holds back less than its ring");
#ifndef BOXES
#define BOXES 0  // 1: the ring is filled by the copies of common/boxes.cuh, whole chunks at a time
#endif

constexpr int THREADS = 32 * WARPS, UNIT = 16, MOST_SPLITS = 16;
constexpr int GROUP = HEADS / KV_HEADS;
constexpr int most(int a, int b) { return a > b ? a : b; }
constexpr int WIDEST_ROW = most(most(HIDDEN, HEADS * HEAD_DIM), MLP);
// Keys that eight lanes score at a time: two where their values fit where a row of x lies anyway.
constexpr int KEYS_A_TURN = (GROUP + 8 * WARPS) * HEAD_DIM <= WIDEST_ROW ? 2 : 1;
constexpr int KEYS = 4 * WARPS * KEYS_A_TURN;  // and that a block scores at a time
constexpr int TOGETHER = GROUP % 2 == 0 ? 2 : 1;  // query heads that a block works on
// In 16-byte pieces: four a lane, and scales.
constexpr int SLOT = BOXES || (FORMAT == 0 && HEAD_FORMAT == 0) ? 128 : 144;
constexpr int SCALES = BOXES && (FORMAT != 0 || HEAD_FORMAT != 0) ? 16 : 0;  // beside a slot, in 16-byte pieces
enum { HALF, Q8, INT4 };
enum { QKV, ATTEND, OUT, GATE_UP, DOWN, HEAD };

// A token, or a block's candidate for it.
struct Best {
    float value;
    int index;
};

struct PartSums {
    float largest, sum;
};

#define DECODER_ARGUMENTS                                                                                               \
    const uint4 *w_qkv, const __half *s_qkv, const uint4 *w_out, const __half *s_out, const uint4 *w_gate_up,           \
        const __half *s_gate_up, const uint4 *w_down, const __half *s_down, const uint4 *w_head, const __half *s_head,  \
        const uint4 *embedding, const __half *s_embedding, const __half *norms, const __half *biases,                   \
        const float2 *rotations, float *residual, __half *queries, __half *inner, float *part_outputs, PartSums *parts, \
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
    __half* inner;            // [mlp]
    float* part_outputs;      // [heads][MOST_SPLITS][HEAD_DIM]
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
#if BOXES
    const struct Maps* maps;
#endif
};

// A block's share of a phase's matrices, of which there is one a layer.
struct Plan {
    const uint4* codes;
    const __half* scales;
    long long codes_a_layer, scales_a_layer;
    int first, end, chunks, pitch;    // units; chunks a unit; 16-byte pieces (INT4: of all groups) a row
    int rows, width, unused[2];       // rows of a matrix; units a chunk
};

// Where a warp begins in a phase's matrices: pieces of 16 bytes from the first layer's on, and from layer to layer; its
// first unit and the end of the block's, its first chunk and the units a chunk (16 bits each).
struct __align__(16) Opening {
    const uint4* codes;
    unsigned index, a_layer;
    int units, chunk, chunks, pitch;
};

// What a block keeps in shared memory: x in the order of its phase's format (in ATTEND queries and values), sums of x over
// groups of 128 (INT4), the units' sums of all warps (in ATTEND scores and outputs), and the ring.
struct Room {
    __half* x;
    float* x_sums;
    float* sums;  // [2][SLOTS][WARPS][UNIT]
    float* few;   // [WARPS + 2]
    Plan* plans;  // [HEAD + 1]
    Opening* openings;  // [HEAD + 1], this warp's, as what follows
    uint4* ring;
    uint4* scales;
    unsigned long long* full;
};

// Elements of the longest x, or of queries and a tile of values, filled up so that what follows is aligned.
constexpr int WIDEST = (most(WIDEST_ROW, (GROUP + KEYS) * HEAD_DIM) + 511) / 512 * 512;

__device__ inline Room room_of(uint4* shared) {
    const int warp = threadIdx.x / 32;
    Room room;
    room.ring = shared + warp * (STAGES * SLOT);
    shared += WARPS * STAGES * SLOT;
    room.scales = shared + warp * (STAGES * SCALES);
    shared += WARPS * STAGES * SCALES;
    room.full = reinterpret_cast<unsigned long long*>(shared) + warp * STAGES;
    if (BOXES) shared += (WARPS * STAGES + 1) / 2;
    room.x = reinterpret_cast<__half*>(shared);
    room.x_sums = reinterpret_cast<float*>(room.x + WIDEST);
    room.sums = room.x_sums + (WIDEST / 128 + 3) / 4 * 4;
    room.few = room.sums + 2 * SLOTS * WARPS * UNIT;
    room.plans = reinterpret_cast<Plan*>(room.few + (WARPS + 2 + 3) / 4 * 4);
    room.openings = reinterpret_cast<Opening*>(room.plans + HEAD + 1) + warp * (HEAD + 1);
    return room;
}

// --- the stream of weights ------------------------------------------------------------------------------------------

template <int F>
constexpr int CHUNK = F == HALF ? 64 : 128;  // of k

template <int F>
constexpr int PIECES = F == INT4 ? INT4_BLOCK : 8;  // of 16 bytes from a chunk to the next

constexpr int INT4_UNITS = INT4_TILE / UNIT;  // side by side in a tile

__device__ inline int first_unit(int units, int block) { return (int)((unsigned)block * units / gridDim.x); }

// Whether some unit may have no chunk for some warp: in the small decoders of tests.
template <int F>
constexpr bool SHORT = (HIDDEN < MLP ? (HIDDEN < HEADS * HEAD_DIM ? HIDDEN : HEADS * HEAD_DIM)
                                     : (MLP < HEADS * HEAD_DIM ? MLP : HEADS * HEAD_DIM)) / CHUNK<F> < WARPS;

// A chunk of INT4 may be one of two units that lie side by side in a tile of 64 rows and share an x. That costs the
// warps about half as much again as one unit; what counts is the block with most to do.
template <int F>
__device__ inline int width_of(int units) {
    const int blocks = gridDim.x;
    return F == INT4 && 3 * ((units / 2 + blocks - 1) / blocks) < 2 * ((units + blocks - 1) / blocks) ? 2 : 1;
}

template <int F>
__device__ inline Plan plan_of(const uint4* codes, const __half* scales, int rows, int k) {
    const long long weights = (long long)rows * k;
    Plan plan;
    plan.codes = codes, plan.scales = scales;
    plan.codes_a_layer = F == HALF ? weights / 8 : F == Q8 ? weights / 16 : weights / (64 * 128) * INT4_BLOCK;
    plan.scales_a_layer = weights / 32;
    plan.width = width_of<F>(rows / UNIT);
    plan.first = first_unit(rows / UNIT / plan.width, blockIdx.x) * plan.width;
    plan.end = first_unit(rows / UNIT / plan.width, blockIdx.x + 1) * plan.width;
    plan.chunks = k / CHUNK<F>;
    plan.rows = rows;
    plan.pitch = F == HALF ? k / 8 : F == Q8 ? k / 16 : k / 128 * INT4_BLOCK;
    return plan;
}

__device__ inline void make_plans(const Decoder& m, const Room& room) {
    const int attended = m.heads * HEAD_DIM;
    if (threadIdx.x == QKV)
        room.plans[QKV] = plan_of<FORMAT>(m.w_qkv, m.s_qkv, attended + 2 * m.kv_heads * HEAD_DIM, m.hidden);
    if (threadIdx.x == OUT) room.plans[OUT] = plan_of<FORMAT>(m.w_out, m.s_out, m.hidden, attended);
    if (threadIdx.x == GATE_UP) room.plans[GATE_UP] = plan_of<FORMAT>(m.w_gate_up, m.s_gate_up, 2 * m.mlp, m.hidden);
    if (threadIdx.x == DOWN) room.plans[DOWN] = plan_of<FORMAT>(m.w_down, m.s_down, m.hidden, m.mlp);
    if (threadIdx.x == HEAD) room.plans[HEAD] = plan_of<HEAD_FORMAT>(m.w_head, m.s_head, m.vocab, m.hidden);
    __syncthreads();
}

#if !BOXES
// Where a warp's next copy comes from: this lane's share of a unit's chunk, or of INT4 the tile that it lies in. `left`
// counts the matrices to come, this one included.
struct Stream {
    const uint4* at;
    const __half* scales;
    unsigned long long policy;
    int layer, phase, left, unit, end, chunk, chunks, width, owed;
};

// Start copying a lane's share of 16 rows by CHUNK<F> of k, to this lane's piece of a slot. With g = lane / 4 and
// t = lane % 4, of rows g and g + 8:
// HALF  elements 32 j + 8 t to + 7 (j = 0, 1)       Q8  elements 64 j + 16 t to + 15, and lanes t < 2 the scales of
// blocks 2 t and 2 t + 1     INT4  what the tile order holds for the lane of a group, and scales of two units.
template <int F>
__device__ inline void copy_chunk(uint4* mine, const Stream& s, int lane) {
    if constexpr (F == INT4) {
        const unsigned place = (unsigned)s.unit % INT4_UNITS;
        const uint4* codes = s.at + (place * 64 + (INT4_SCALES + lane));
        copy_async_16_of_line(mine, codes, s.policy);
        copy_async_16_of_line(mine + 32, codes + 32, s.policy);
        if (s.width == 2) {
            copy_async_16_of_line(mine + 64, codes + 64, s.policy);
            copy_async_16_of_line(mine + 96, codes + 96, s.policy);
        }
        copy_async_8(reinterpret_cast<uint2*>(mine + 128 - lane) + lane,
                     reinterpret_cast<const uint2*>(s.at) + (place / 2 + lane / 4 * 2));
        return;
    }
    const int pitch = s.chunks * PIECES<F>;
#pragma unroll
    for (int p = 0; p < 4; ++p)
        copy_async_16_of_line(mine + 32 * p, s.at + p % 2 * 8 * pitch + p / 2 * 4, s.policy);
    if (F == Q8 && lane % 4 < 2) {
        copy_async_4(reinterpret_cast<unsigned*>(mine + 128 - lane) + lane, s.scales);
        copy_async_4(reinterpret_cast<unsigned*>(mine + 136 - lane) + lane, s.scales + 4 * pitch);
    }
}

// On by `count` chunks; what is over after the last of a unit belongs to the next one.
template <int F>
__device__ inline void move_on(Stream& s, int count) {
    s.chunk += count;
    s.at += count * PIECES<F>;
    if (F == Q8) s.scales += count * 4;
    if (s.chunk < s.chunks) return;
    do {
        s.chunk -= s.chunks;
        s.unit += s.width;
        if (F != INT4) s.at += 15 * s.chunks * PIECES<F>;
        else if ((unsigned)s.unit % INT4_UNITS != 0) s.at -= s.chunks * PIECES<F>;
        if (F == Q8) s.scales += 15 * s.chunks * 4;
    } while (SHORT<F> && s.chunk >= s.chunks);
}

// The first chunk of this warp in a phase's matrices.
template <int F>
__device__ inline Opening opening_of(const Plan& plan, int warp) {
    Opening o;
    int unit = plan.first, chunk = warp;
    while (chunk >= plan.chunks) {
        chunk -= plan.chunks;
        unit += plan.width;
    }
    o.codes = plan.codes;
    o.index = F == INT4 ? (unsigned)unit / INT4_UNITS * plan.pitch + chunk * INT4_BLOCK
                        : (unsigned)unit * UNIT * plan.pitch + chunk * PIECES<F>;
    o.a_layer = (unsigned)plan.codes_a_layer;
    o.units = unit | plan.end << 16;
    o.chunk = chunk | plan.width << 16;
    o.chunks = plan.chunks;
    o.pitch = plan.pitch;
    return o;
}

__device__ inline void open_matrix(Stream& s, const Room& room) {
    const int lane = threadIdx.x % 32;
    const Opening o = room.openings[s.phase];
    s.unit = o.units & 0xffff, s.end = (unsigned)o.units >> 16, s.chunk = o.chunk & 0xffff, s.width = o.chunk >> 16;
    s.chunks = o.chunks;
    const int format = s.phase == HEAD ? HEAD_FORMAT : FORMAT;
    unsigned long long index = (unsigned long long)(s.phase == HEAD ? 0 : s.layer) * o.a_layer + o.index;
    if (format == Q8) s.scales = room.plans[s.phase].scales + index / 2 + (lane / 4 * (o.pitch / 2) + lane % 4 * 2);
    if (format != INT4) index += lane / 4 * o.pitch + lane % 4;
    s.at = o.codes + index;
}

#else
// Where a warp's next copy comes from. `left` counts the matrices to come, this one included.
struct Stream {
    const Maps* maps;
    const uint4* codes;  // INT4: of the layer
    int layer, phase, left, unit, end, chunk, chunks, row, pitch, width, turn, owed;
};

// Start copying 16 rows by CHUNK<F> of k, by one lane: as they lie in memory, the 16-byte pieces of a row turned by the
// row's number; INT4 a tile of a group in its own order, and the group's scales.
template <int F>
__device__ inline void copy_chunk(uint4* slot, uint4* scales, Arrival* full, const Stream& s) {
    if (F == INT4) {
        const uint4* block = s.codes + s.unit / INT4_UNITS * (long long)s.pitch + s.chunk * INT4_BLOCK;
        start_pieces(slot, block + INT4_SCALES + s.unit % INT4_UNITS * 64, 1024 * s.width, scales, block, full);
    } else {
        start_box(slot, scales, full, s.maps, s.phase, s.row + s.unit * UNIT, s.chunk * CHUNK<F>, F == Q8, s.chunk / 2 * 8);
    }
}

template <int F>
__device__ inline void move_on(Stream& s, int count) {
    s.chunk += count;
    if (s.chunk < s.chunks) return;
    do {
        s.chunk -= s.chunks;
        s.unit += s.width;
    } while (SHORT<F> && s.chunk >= s.chunks);
}

__device__ inline void open_matrix(Stream& s, const Room& room) {
    const Plan& plan = room.plans[s.phase];
    const int layer = s.phase == HEAD ? 0 : s.layer;
    s.unit = plan.first, s.end = plan.end, s.chunks = plan.chunks, s.pitch = plan.pitch, s.chunk = 0, s.width = plan.width;
    s.row = layer * plan.rows;
    s.codes = plan.codes + layer * plan.codes_a_layer;
    if (s.phase == HEAD) move_on<HEAD_FORMAT>(s, threadIdx.x / 32);
    else move_on<FORMAT>(s, threadIdx.x / 32);
}
#endif

// To the next matrix that has work for this warp, if there is one.
__device__ inline void next_matrix(Stream& s, const Decoder& m, const Room& room) {
    while (--s.left > 0) {
        if (s.phase == HEAD) {
            s.phase = QKV;
            s.layer = 0;
        } else if (s.phase == DOWN) {
            s.phase = ++s.layer < m.layers ? QKV : HEAD;
        } else {
            s.phase += s.phase == QKV ? 2 : 1;
        }
        open_matrix(s, room);
        if (s.unit < s.end) break;
    }
}

// Fill slot `turn` of the ring with what comes next, and be ready for the one after it.
__device__ inline void fetch(Stream& s, const Decoder& m, const Room& room, int turn, int lane) {
    if (s.left > 0) {
#if BOXES
        __syncwarp();  // all lanes have read what was there
        if (lane == 0) {
            uint4 *slot = room.ring + turn * SLOT, *scales = room.scales + turn * SCALES;
            if (s.phase == HEAD) copy_chunk<HEAD_FORMAT>(slot, scales, room.full + turn, s);
            else copy_chunk<FORMAT>(slot, scales, room.full + turn, s);
        }
        if (s.phase == HEAD) move_on<HEAD_FORMAT>(s, WARPS);
        else move_on<FORMAT>(s, WARPS);
#else
        if (FORMAT != HEAD_FORMAT) __syncwarp();  // a lane's share of a slot lies elsewhere in another format
        uint4* mine = room.ring + turn * SLOT + lane;
        if (FORMAT != HEAD_FORMAT && s.phase == HEAD) {
            copy_chunk<HEAD_FORMAT>(mine, s, lane);
            move_on<HEAD_FORMAT>(s, WARPS);
        } else {
            copy_chunk<FORMAT>(mine, s, lane);
            move_on<FORMAT>(s, WARPS);
        }
#endif
        if (s.unit >= s.end) next_matrix(s, m, room);
    }
#if !BOXES
    copy_async_commit();
#endif
}

// Fill the slots that were held back, the last ones before `turn`.
__device__ inline void fetch_owed(Stream& s, const Decoder& m, const Room& room, int turn) {
    if (HELD_BACK == 0) return;
#pragma unroll 1
    for (; s.owed > 0; --s.owed) fetch(s, m, room, turn - s.owed + (turn < s.owed ? STAGES : 0), threadIdx.x % 32);
}

// A warp's ring, filled for the first time.
__device__ inline Stream start_stream(const Decoder& m, const Room& room, int layer, int phase, int matrices) {
    Stream s;
#if BOXES
    start_arrivals(room.full, STAGES);
    s.maps = m.maps;
#else
    s.scales = nullptr;
    s.policy = evict_first_policy();  // a weight is read once a token
#endif
    make_plans(m, room);
#if !BOXES
    if (threadIdx.x % 32 <= HEAD && threadIdx.x % 32 != ATTEND)
        room.openings[threadIdx.x % 32] =
            threadIdx.x % 32 == HEAD ? opening_of<HEAD_FORMAT>(room.plans[HEAD], threadIdx.x / 32)
                                     : opening_of<FORMAT>(room.plans[threadIdx.x % 32], threadIdx.x / 32);
    __syncwarp();
#endif
    s.layer = layer, s.phase = phase, s.left = matrices, s.owed = 0;
#if BOXES
    s.turn = 0;
#endif
    if (phase == ATTEND) {  // reads no weights
        s.left = s.unit = s.end = 0;
        return s;
    }
    open_matrix(s, room);
    if (s.unit >= s.end) next_matrix(s, m, room);
#pragma unroll 1
    for (int i = 0; i < STAGES; ++i) fetch(s, m, room, i, threadIdx.x % 32);
    return s;
}

// --- products -------------------------------------------------------------------------------------------------------

// Four signed bytes as halves, exactly: an FP16 number 0x6400 | u is 1024 + u.
__device__ inline void bytes_to_halves(unsigned word, unsigned& low, unsigned& high) {
    const __half2 offset = as_half2(0x64806480u);
    word ^= 0x80808080u;
    low = as_word(__hsub2(as_half2(__byte_perm(word, 0x64646464u, 0x4140)), offset));
    high = as_word(__hsub2(as_half2(__byte_perm(word, 0x64646464u, 0x4342)), offset));
}

// Add the products of a chunk to acc: rows g and g + 8 in acc[.][0] and acc[.][2] of lanes with t = 0 (Q8: t < 2, each
// with a part of them). All columns of the second operand are x, but for Q8: there column b is x where it belongs to
// block b of the chunk and zero elsewhere, so that the blocks' sums stay apart and can be scaled.
__device__ inline void multiply_half(float (&acc)[2][4], const uint4* slot, const __half* x, int lane) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const uint4 low = slot[64 * j + lane], high = slot[64 * j + 32 + lane];
        const uint4 b = *reinterpret_cast<const uint4*>(x + 32 * j + 8 * (lane % 4));
        const unsigned first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
        const unsigned b0[2] = {b.x, b.y}, b1[2] = {b.z, b.w};
        mma_m16n8k16_f16(acc[0], first, b0);
        mma_m16n8k16_f16(acc[1], second, b1);
    }
}

// Sixteen halves of x for a lane: two registers for each of four products.
__device__ inline void sixteen(unsigned (&b)[4][2], const __half* x, bool take) {
    uint4 first = make_uint4(0, 0, 0, 0), second = first;
    if (take) {
        first = reinterpret_cast<const uint4*>(x)[0];
        second = reinterpret_cast<const uint4*>(x)[1];
    }
    b[0][0] = first.x, b[0][1] = first.y, b[1][0] = first.z, b[1][1] = first.w;
    b[2][0] = second.x, b[2][1] = second.y, b[3][0] = second.z, b[3][1] = second.w;
}

__device__ inline void multiply_q8(float (&acc)[2][4], const uint4* slot, const __half* x, int lane) {
    const int g = lane / 4, t = lane % 4;
    float blocks[2][4] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const uint4 low = slot[64 * j + lane], high = slot[64 * j + 32 + lane];
        const unsigned lows[4] = {low.x, low.y, low.z, low.w}, highs[4] = {high.x, high.y, high.z, high.w};
        unsigned b[4][2];
        sixteen(b, x + 64 * j + 16 * t, g == 2 * j + t / 2);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            unsigned a[4];
            bytes_to_halves(lows[i], a[0], a[2]);
            bytes_to_halves(highs[i], a[1], a[3]);
            mma_m16n8k16_f16(blocks[i % 2], a, b[i]);
        }
    }
    const unsigned* scales = reinterpret_cast<const unsigned*>(slot + 128) + lane;
    const float2 low = __half22float2(as_half2(t < 2 ? scales[0] : 0)), high = __half22float2(as_half2(t < 2 ? scales[32] : 0));
    acc[0][0] += low.x * (blocks[0][0] + blocks[1][0]) + low.y * (blocks[0][1] + blocks[1][1]);
    acc[0][2] += high.x * (blocks[0][2] + blocks[1][2]) + high.y * (blocks[0][3] + blocks[1][3]);
}

// Codes keep the offset that unpacking leaves (264 and 24, see common/int4.cuh), which times the sum of x goes off again.
// Of UNITS units one after another; sums of unit i in acc[i][0] and acc[i][2].
template <int UNITS>
__device__ inline void multiply_int4(float (&acc)[2][4], const uint4* slot, const unsigned (&scales)[2], const __half* x,
                                     float x_sum, int lane) {
    float sums[UNITS][2][4] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        unsigned b[4][2];
        sixteen(b, x + 64 * j + 16 * (lane % 4), true);
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            const uint4 codes = slot[64 * u + 32 * j + lane];
            const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                unsigned a[4];
                int4_tile_to_offset_halves(words[i], a);
                mma_m16n8k16_f16(sums[u][i % 2], a, b[i]);
            }
        }
    }
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const float2 scale = __half22float2(as_half2(scales[u]));
        acc[u][0] += scale.x * (sums[u][0][0] + sums[u][1][0] - 264.0f * x_sum);
        acc[u][2] += scale.y * (sums[u][0][2] + sums[u][1][2] - 24.0f * x_sum);
    }
}

#if BOXES
// The same from rows as they lie in memory; x in the order that put_four gives it for boxes.
__device__ inline void multiply_half_box(float (&acc)[2][4], const uint4* slot, const __half* x, int lane) {
    unsigned b[4][2];
    sixteen(b, x + 16 * (lane % 4), true);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        unsigned a[4];
        load_matrix_x4(a, slot + lane % 16 * 8 + ((2 * i + lane / 16) ^ lane % 8));
        mma_m16n8k16_f16(acc[i % 2], a, b[i]);
    }
}

__device__ inline void multiply_q8_box(float (&acc)[2][4], const uint4* slot, const uint4* scale_rows, const __half* x,
                                       int chunk, int lane) {
    const int g = lane / 4, t = lane % 4;
    float blocks[2][4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // a block of 32
        unsigned w[4];
        load_matrix_x4(w, slot + lane % 16 * 8 + ((2 * j + lane / 16) ^ lane % 8));
        uint4 b = make_uint4(0, 0, 0, 0);
        if (g == j) b = *reinterpret_cast<const uint4*>(x + j / 2 * 64 + 16 * t + j % 2 * 8);
        const unsigned b0[2] = {b.x, b.y}, b1[2] = {b.z, b.w};
        unsigned a[4];
        bytes_to_halves(w[0], a[0], a[2]);
        bytes_to_halves(w[1], a[1], a[3]);
        mma_m16n8k16_f16(blocks[0], a, b0);
        bytes_to_halves(w[2], a[0], a[2]);
        bytes_to_halves(w[3], a[1], a[3]);
        mma_m16n8k16_f16(blocks[1], a, b1);
    }
    const unsigned* scales = reinterpret_cast<const unsigned*>(scale_rows) + g * 4 + chunk % 2 * 2 + t % 2;
    const float2 low = __half22float2(as_half2(t < 2 ? scales[0] : 0)), high = __half22float2(as_half2(t < 2 ? scales[32] : 0));
    acc[0][0] += low.x * (blocks[0][0] + blocks[1][0]) + low.y * (blocks[0][1] + blocks[1][1]);
    acc[0][2] += high.x * (blocks[0][2] + blocks[1][2]) + high.y * (blocks[0][3] + blocks[1][3]);
}
#endif

template <int F>
__device__ inline void multiply_chunk(float (&acc)[2][4], const uint4* slot, const Room& room, int turn, int unit, int units,
                                      int chunk, int lane) {
    const __half* x = room.x + chunk * CHUNK<F>;
#if BOXES
    if constexpr (F == HALF) multiply_half_box(acc, slot, x, lane);
    if constexpr (F == Q8) multiply_q8_box(acc, slot, room.scales + turn * SCALES, x, chunk, lane);
    if constexpr (F == INT4) {
        const uint2 both = reinterpret_cast<const uint2*>(room.scales + turn * SCALES)[lane / 4 * 2 + unit % 4 / 2];
#else
    if constexpr (F == HALF) multiply_half(acc, slot, x, lane);
    if constexpr (F == Q8) multiply_q8(acc, slot, x, lane);
    if constexpr (F == INT4) {
        const uint2 both = reinterpret_cast<const uint2*>(slot + 128)[lane];
#endif
        const unsigned scales[2] = {unit % 2 ? both.y : both.x, both.y};
        if (units == 2) multiply_int4<2>(acc, slot, scales, x, room.x_sums[chunk], lane);
        else multiply_int4<1>(acc, slot, scales, x, room.x_sums[chunk], lane);
    }
}

// Wait for the oldest copy of the ring: of slots that are held back, the copies were not asked for.
template <int MOST_OWED>
__device__ inline void wait_for_next(int owed) {
    if constexpr (MOST_OWED == 0) copy_async_wait<STAGES - 1>();
    else if (owed == MOST_OWED) copy_async_wait<STAGES - 1 - MOST_OWED>();
    else wait_for_next<MOST_OWED - 1>(owed);
}

// All of this block's units of a phase's matrix times x. finish(unit, r, sum, there, early) gets the sum of the unit's row
// r, from a warp for two units at a time; `there` is false where there is no second one, `early` true for row
// threadIdx.x of them all.
template <int F, typename Finish>
__device__ inline void products(const Decoder& m, const Room& room, Stream& s, int& turn, int phase, Finish finish) {
    static_assert(SLOTS % 2 == 0, "between two units that belong together there is no end");
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int start = room.plans[phase].first, last = room.plans[phase].end, chunks = room.plans[phase].chunks;
    const int width = F == INT4 ? room.plans[phase].width : 1;
    int unit = start, chunk = warp, side = 0;
    int to_come = ((last - start) / width * chunks - warp + WARPS - 1) / WARPS;  // chunks of this warp
    while (SHORT<F> && chunk >= chunks) {
        chunk -= chunks;
        unit += width;
    }
    for (int first = start, end; first < last; first = end) {
        end = min(first + SLOTS, last);
        float* sums = room.sums + side * (SLOTS * WARPS * UNIT);
        float* mine = sums + ((unit - first) * WARPS + warp) * UNIT + lane / 4;
        while (unit < end) {
            float acc[2][4] = {};
            do {
#if BOXES
                wait_for_arrival(room.full + turn, s.turn);
#else
                const bool held_back = HELD_BACK > 0 && to_come <= HELD_BACK;
                wait_for_next<HELD_BACK>(s.owed);
#endif
                multiply_chunk<F>(acc, room.ring + turn * SLOT, room, turn, unit, width, chunk, lane);
#if BOXES
                fetch(s, m, room, turn, lane);
#else
                if (held_back) ++s.owed;
                else fetch(s, m, room, turn, lane);
                --to_come;
#endif
#if BOXES
                if (turn + 1 == STAGES) s.turn ^= 1;
#endif
                turn = turn + 1 == STAGES ? 0 : turn + 1;
                chunk += WARPS;
            } while (chunk < chunks);
            float low = acc[0][0], high = acc[0][2];
            if (F != INT4) low += acc[1][0], high += acc[1][2];
            if (F == Q8) {
                low += __shfl_xor_sync(0xffffffffu, low, 1);
                high += __shfl_xor_sync(0xffffffffu, high, 1);
            }
            if (lane % 4 == 0) {
                mine[0] = low;
                mine[8] = high;
                if (F == INT4 && width == 2) {  // each unit has its own
                    mine[WARPS * UNIT] = acc[1][0];
                    mine[WARPS * UNIT + 8] = acc[1][2];
                }
            }
            do {
                chunk -= chunks;
                unit += width;
                mine += width * (WARPS * UNIT);
            } while (SHORT<F> && chunk >= chunks);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < (end - first + 1) / 2 * 2 * UNIT; i += THREADS) {
            const int at = min(first + i / UNIT, end - 1), r = i % UNIT;
            // Of the unit's chunks the first is this warp's; with few of them not every warp has one.
            const int from = (at - start) / width * chunks % WARPS;
            float value = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                const bool there = w - from + (w < from ? WARPS : 0) < chunks;
                value += there ? sums[((at - first) * WARPS + w) * UNIT + r] : 0.0f;
            }
            finish(at, r, value, first + i / UNIT < end, first == start && i == threadIdx.x);
        }
        side ^= 1;
    }
}

// --- what stands before the products of a phase: x --------------------------------------------------------------------

// Four neighbours of x, from k on, into the order of format F; their sum, which INT4 wants of a warp's 128, a group.
template <int F>
__device__ inline float put_four(const Room& room, int k, float4 v) {
    const __half2 low = __floats2half2_rn(v.x, v.y), high = __floats2half2_rn(v.z, v.w);
    if constexpr (F == INT4 || (BOXES && F == HALF)) {  // element 16 i + 8 j + 2 t + e of 64 goes to 16 t + 4 i + 2 j + e
        unsigned* to = reinterpret_cast<unsigned*>(room.x + k / 64 * 64 + k % 8 * 8 + k % 64 / 16 * 4 + k % 16 / 8 * 2);
        to[0] = as_word(low);
        to[8] = as_word(high);
        const float2 a = __half22float2(low), b = __half22float2(high);
        if (F == INT4) return a.x + a.y + b.x + b.y;
    } else if constexpr (BOXES && F == Q8) {  // element 16 i + 4 t + e of 64 goes to 16 t + 4 i + e
        *reinterpret_cast<uint2*>(room.x + k / 64 * 64 + k % 16 * 4 + k % 64 / 16 * 4) =
            make_uint2(as_word(low), as_word(high));
    } else {
        *reinterpret_cast<uint2*>(room.x + k) = make_uint2(as_word(low), as_word(high));
    }
    return 0.0f;
}

// Sums of a lane's `sums` over the warp, i of them for the group of i * 4 * THREADS after k, where a group is before `end`.
template <int F, int COUNT>
__device__ inline void sum_groups(const Room& room, const float (&sums)[COUNT], int k, int end) {
    if constexpr (F == INT4) {
        const int lane = threadIdx.x % 32;
        if (COUNT == 1) {
            const float sum = warp_sum(sums[0]);
            if (lane == 0) room.x_sums[k / 128] = sum;
            return;
        }
        float v[8] = {};
#pragma unroll
        for (int i = 0; i < COUNT; ++i) v[i] = sums[i];
#pragma unroll
        for (int offset = 16; offset >= 4; offset /= 2)  // half of the lanes go on with half of the values
#pragma unroll
            for (int i = 0; i < offset / 4; ++i) {
                const float keep = lane & offset ? v[i + offset / 4] : v[i], give = lane & offset ? v[i] : v[i + offset / 4];
                v[i] = keep + __shfl_xor_sync(0xffffffffu, give, offset);
            }
        v[0] += __shfl_xor_sync(0xffffffffu, v[0], 2);
        v[0] += __shfl_xor_sync(0xffffffffu, v[0], 1);
        const int group = k - 4 * lane + lane / 4 * 4 * THREADS;
        if (lane % 4 == 0 && lane / 4 < COUNT && group < end) room.x_sums[group / 128] = v[0];
    }
}

__device__ inline float4 four_halves(uint2 bits) {
    const float2 low = __half22float2(as_half2(bits.x)), high = __half22float2(as_half2(bits.y));
    return make_float4(low.x, low.y, high.x, high.y);
}

// Four neighbours of a token's embedding.
__device__ inline float4 embedded(const Decoder& m, int token, int k) {
    const size_t at = (size_t)token * m.hidden + k;
    if (HEAD_FORMAT == HALF)
        return four_halves(*reinterpret_cast<const uint2*>(reinterpret_cast<const __half*>(m.embedding) + at));
    const float scale = __half2float(m.s_embedding[at / 32]);
    const int word = *reinterpret_cast<const int*>(reinterpret_cast<const signed char*>(m.embedding) + at);
    return make_float4(scale * (signed char)word, scale * (signed char)(word >> 8), scale * (signed char)(word >> 16),
                       scale * (word >> 24));
}

// The likeliest of all blocks' candidates, the same in every block; all threads must call it.
__device__ inline int chosen_token(const Decoder& m, const Room& room) {
    if (threadIdx.x < 32) {
        Best best = {__int_as_float(0xff800000), 0x7fffffff};
        for (unsigned i = threadIdx.x; i < gridDim.x; i += 32) {
            const int2 bits = __ldcg(reinterpret_cast<const int2*>(m.bests) + i);
            const float value = __int_as_float(bits.x);
            if (value > best.value || (value == best.value && bits.y < best.index)) best = {value, bits.y};
        }
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            const float value = __shfl_xor_sync(0xffffffffu, best.value, offset);
            const int index = __shfl_xor_sync(0xffffffffu, best.index, offset);
            if (value > best.value || (value == best.value && index < best.index)) best = {value, index};
        }
        if (threadIdx.x == 0) room.few[WARPS] = __int_as_float(min(max(best.index, 0), m.vocab - 1));
    }
    __syncthreads();
    return __float_as_int(room.few[WARPS]);
}

// x = the residual, or at a token's start its embedding (token >= 0), normalised and weighted.
template <int F>
__device__ inline void normalised(const Decoder& m, const Room& room, int norm, int token) {
    constexpr int TURNS = (HIDDEN + 4 * THREADS - 1) / (4 * THREADS);
    constexpr int HELD = TURNS < 4 ? TURNS : 4;  // pieces of a row that a thread keeps; what is beyond is read twice
    constexpr int BEYOND = TURNS > HELD ? HIDDEN : 0;
    const __half* weights = m.norms + (size_t)norm * m.hidden;
    float4 held[HELD] = {};
    uint2 by_weight[HELD] = {};
    float squares = 0.0f;
    const auto value = [&](int k) {
        return token >= 0 ? embedded(m, token, k) : __ldcg(reinterpret_cast<const float4*>(m.residual + k));
    };
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int k = 4 * (threadIdx.x + i * THREADS);
        if (k < m.hidden) {
            held[i] = value(k);
            by_weight[i] = *reinterpret_cast<const uint2*>(weights + k);
        }
    }
    const bool keeps = token >= 0 && blockIdx.x == 0;  // one for all
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int k = 4 * (threadIdx.x + i * THREADS);
        if (k < m.hidden && keeps) *reinterpret_cast<float4*>(m.residual + k) = held[i];
        squares += held[i].x * held[i].x + held[i].y * held[i].y + held[i].z * held[i].z + held[i].w * held[i].w;
    }
    for (int k = 4 * (threadIdx.x + HELD * THREADS); k < BEYOND; k += 4 * THREADS) {
        const float4 v = value(k);
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        if (keeps) *reinterpret_cast<float4*>(m.residual + k) = v;
    }
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) room.few[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) squares += room.few[w];
    const float by = rsqrtf(squares / m.hidden + m.epsilon);
    const auto put = [&](int k, float4 v, float4 w) {
        return put_four<F>(room, k, make_float4(v.x * by * w.x, v.y * by * w.y, v.z * by * w.z, v.w * by * w.w));
    };
    float sums[HELD] = {};
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int k = 4 * (threadIdx.x + i * THREADS);
        if (k < m.hidden) sums[i] = put(k, held[i], four_halves(by_weight[i]));
    }
    if (4 * (threadIdx.x / 32 * 32) < m.hidden) sum_groups<F>(room, sums, 4 * threadIdx.x, m.hidden);
    for (int k = 4 * (threadIdx.x + HELD * THREADS); k < BEYOND; k += 4 * THREADS) {
        const float one[1] = {put(k, value(k), four_halves(*reinterpret_cast<const uint2*>(weights + k)))};
        sum_groups<F>(room, one, k, m.hidden);
    }
    __syncthreads();
}

// --- attention --------------------------------------------------------------------------------------------------------

// Which part of which key-value head's cache a block attends to, for TOGETHER query heads from `head` on; none with
// kv_head = kv_heads.
struct Part {
    int kv_head, head, part, first, last, splits;
};

__device__ inline int splits_of(const Decoder& m, int length) {
    return max(1, min(min((length + KEYS - 1) / KEYS, MOST_SPLITS), (int)gridDim.x / (m.heads / TOGETHER)));
}

__device__ inline Part part_of(const Decoder& m, int length) {
    Part p;
    p.splits = splits_of(m, length);
    p.head = min((int)blockIdx.x / p.splits * TOGETHER, m.heads);
    p.kv_head = p.head / GROUP;
    p.part = blockIdx.x % p.splits;
    const int each = (length + p.splits - 1) / p.splits;
    p.first = p.part * each;
    p.last = min(p.first + each, length);
    return p;
}

// Keys and values that ATTEND will want into the L2, and the lines where the newest will be written.
__device__ inline void foresee(const Decoder& m, const Part& p, int layer, int place) {
    if (p.kv_head == m.kv_heads) return;
    const size_t stride = (size_t)m.kv_heads * HEAD_DIM;
    const size_t start = (size_t)layer * m.capacity * stride + p.kv_head * HEAD_DIM;
    for (int i = threadIdx.x; i < (p.last - p.first) * (HEAD_DIM / 64); i += THREADS) {
        const size_t at = start + (p.first + i / (HEAD_DIM / 64)) * stride + i % (HEAD_DIM / 64) * 64;
        prefetch_l2(m.cache_k + at);
        prefetch_l2(m.cache_v + at);
    }
}

// Query heads that share a key-value head against a part of the cache; the parts meet in OUT.
__device__ inline void attend(const Decoder& m, const Room& room, const Part& p, int layer) {
    constexpr int PARTS = WARPS / TOGETHER, PAIRS = HEAD_DIM / 64;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (p.kv_head == m.kv_heads) return;
    const size_t stride = (size_t)m.kv_heads * HEAD_DIM;
    const size_t start = (size_t)layer * m.capacity * stride + p.kv_head * HEAD_DIM;
    const __half *keys = m.cache_k + start, *values = m.cache_v + start;
    float* scores = room.sums;                         // [TOGETHER][KEYS]
    float* state = scores + TOGETHER * KEYS;           // [3][TOGETHER]: largest score, sum of weights, what to rescale by
    float* outputs = state + (3 * TOGETHER + 3) / 4 * 4;  // [PARTS][TOGETHER][HEAD_DIM]
    __half* queries = room.x;                          // [TOGETHER][HEAD_DIM]
    __half* tile = queries + TOGETHER * HEAD_DIM;      // [KEYS][HEAD_DIM] of values
    const float scale = rsqrtf((float)HEAD_DIM) * 1.44269504f;

    const int first = 4 * warp + lane / 8;  // of this lane's keys among KEYS; another one THREADS / 8 further
    uint4 k[KEYS_A_TURN][PAIRS], v[KEYS_A_TURN][PAIRS];  // 8 elements every 64
    const auto load = [&](int base) {
#pragma unroll
        for (int j = 0; j < KEYS_A_TURN; ++j)
#pragma unroll
            for (int i = 0; i < PAIRS; ++i) {
                const int key = base + first + j * (THREADS / 8);
                k[j][i] = v[j][i] = make_uint4(0, 0, 0, 0);
                const size_t at = key * stride + 64 * i + lane % 8 * 8;
                if (key < p.last) k[j][i] = __ldcg(reinterpret_cast<const uint4*>(keys + at));
                if (key < p.last) v[j][i] = __ldcg(reinterpret_cast<const uint4*>(values + at));
            }
    };
    load(p.first);
    for (int i = threadIdx.x; i < TOGETHER * HEAD_DIM / 8; i += THREADS)
        reinterpret_cast<uint4*>(queries)[i] =
            __ldcg(reinterpret_cast<const uint4*>(m.queries + (size_t)p.head * HEAD_DIM) + i);
    if (threadIdx.x < TOGETHER) {
        state[threadIdx.x] = -1e30f;
        state[TOGETHER + threadIdx.x] = 0.0f;
    }
    __syncthreads();
    const int head = warp % TOGETHER, share = warp / TOGETHER;
    float2 sum[PAIRS] = {};
    for (int base = p.first; base < p.last; base += KEYS) {
#pragma unroll
        for (int j = 0; j < KEYS_A_TURN; ++j) {
            const int mine = first + j * (THREADS / 8);
            float dots[TOGETHER] = {};
#pragma unroll
            for (int i = 0; i < PAIRS; ++i) {
                const int d = 64 * i + lane % 8 * 8;
                *reinterpret_cast<uint4*>(tile + mine * HEAD_DIM + d) = v[j][i];
#pragma unroll
                for (int h = 0; h < TOGETHER; ++h)
                    dots[h] = multiply_add_8(k[j][i], *reinterpret_cast<const uint4*>(queries + h * HEAD_DIM + d), dots[h]);
            }
#pragma unroll
            for (int h = 0; h < TOGETHER; ++h) {
#pragma unroll
                for (int offset = 4; offset > 0; offset /= 2) dots[h] += __shfl_xor_sync(0xffffffffu, dots[h], offset);
                if (lane % 8 == 0) scores[h * KEYS + mine] = base + mine < p.last ? dots[h] * scale : -1e30f;
            }
        }
        load(base + KEYS);  // for the next turn
        __syncthreads();
        if (warp < TOGETHER) {
            float largest = state[warp];
            const float before = largest;
            for (int i = lane; i < KEYS; i += 32) largest = fmaxf(largest, scores[warp * KEYS + i]);
#pragma unroll
            for (int offset = 16; offset > 0; offset /= 2)
                largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
            float weights = 0.0f;
            for (int i = lane; i < KEYS; i += 32) {
                const float weight = base + i < p.last ? exp2_approx(scores[warp * KEYS + i] - largest) : 0.0f;
                scores[warp * KEYS + i] = weight;
                weights += weight;
            }
            weights = warp_sum(weights);
            __syncwarp();
            if (lane == 0) {
                const float rescale = exp2_approx(before - largest);
                state[warp] = largest;
                state[TOGETHER + warp] = state[TOGETHER + warp] * rescale + weights;
                state[2 * TOGETHER + warp] = rescale;
            }
        }
        __syncthreads();
        if (share < PARTS) {
            const float rescale = state[2 * TOGETHER + head];
            const int count = min(KEYS, p.last - base);
#pragma unroll
            for (int i = 0; i < PAIRS; ++i) sum[i].x *= rescale, sum[i].y *= rescale;
#pragma unroll 4
            for (int i = share; i < count; i += PARTS) {
                const float weight = scores[head * KEYS + i];
#pragma unroll
                for (int j = 0; j < PAIRS; ++j) {
                    const float2 value =
                        __half22float2(*reinterpret_cast<const __half2*>(tile + i * HEAD_DIM + 64 * j + 2 * lane));
                    sum[j].x = fmaf(weight, value.x, sum[j].x), sum[j].y = fmaf(weight, value.y, sum[j].y);
                }
            }
        }
        __syncthreads();
    }
    if (share < PARTS)
#pragma unroll
        for (int i = 0; i < PAIRS; ++i)
            *reinterpret_cast<float2*>(outputs + (share * TOGETHER + head) * HEAD_DIM + 64 * i + 2 * lane) = sum[i];
    __syncthreads();
    for (int i = threadIdx.x; i < TOGETHER * HEAD_DIM; i += THREADS) {
        float all = 0.0f;
#pragma unroll
        for (int s = 0; s < PARTS; ++s) all += outputs[s * TOGETHER * HEAD_DIM + i];
        m.part_outputs[((size_t)(p.head + i / HEAD_DIM) * MOST_SPLITS + p.part) * HEAD_DIM + i % HEAD_DIM] = all;
    }
    if (threadIdx.x < TOGETHER)
        m.parts[(p.head + threadIdx.x) * MOST_SPLITS + p.part] = {state[threadIdx.x], state[TOGETHER + threadIdx.x]};
}

// x = the parts' outputs as one, head by head.
template <int F>
__device__ inline void attended(const Decoder& m, const Room& room, int splits) {
    constexpr int WIDTH = HEADS * HEAD_DIM, TURNS = (WIDTH + 4 * THREADS - 1) / (4 * THREADS), ROUNDS = (TURNS + 2) / 3;
    constexpr int AT_ONCE = (TURNS + ROUNDS - 1) / ROUNDS, PARTS = AT_ONCE == 1 ? 6 : 3;  // that are asked for together
    for (int first = 4 * threadIdx.x; first < WIDTH; first += AT_ONCE * 4 * THREADS) {
        float4 sum[AT_ONCE] = {};
        float largest[AT_ONCE], weights[AT_ONCE] = {};
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) largest[i] = -1e30f;
        for (int p = 0; p < splits; p += PARTS) {
            float2 part[AT_ONCE][PARTS];
            float4 o[AT_ONCE][PARTS];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
                for (int j = 0; j < PARTS; ++j) {
                    const int k = first + i * 4 * THREADS, at = k / HEAD_DIM * MOST_SPLITS + p + j;
                    const bool there = p + j < splits && k < WIDTH;
                    part[i][j] = make_float2(-1e30f, 0.0f), o[i][j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                    if (there) part[i][j] = __ldcg(reinterpret_cast<const float2*>(m.parts) + at);
                    if (there) o[i][j] = __ldcg(reinterpret_cast<const float4*>(m.part_outputs + at * HEAD_DIM + k % HEAD_DIM));
                }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                float most = largest[i];
#pragma unroll
                for (int j = 0; j < PARTS; ++j) most = fmaxf(most, part[i][j].x);
                const float old = exp2_approx(largest[i] - most);
                weights[i] *= old, sum[i].x *= old, sum[i].y *= old, sum[i].z *= old, sum[i].w *= old;
                largest[i] = most;
#pragma unroll
                for (int j = 0; j < PARTS; ++j) {
                    const float weight = exp2_approx(part[i][j].x - most);
                    weights[i] = fmaf(weight, part[i][j].y, weights[i]);
                    sum[i].x = fmaf(weight, o[i][j].x, sum[i].x), sum[i].y = fmaf(weight, o[i][j].y, sum[i].y);
                    sum[i].z = fmaf(weight, o[i][j].z, sum[i].z), sum[i].w = fmaf(weight, o[i][j].w, sum[i].w);
                }
            }
        }
        float sums[AT_ONCE] = {};
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int k = first + i * 4 * THREADS;
            const float by = 1.0f / weights[i];
            if (k < WIDTH)
                sums[i] = put_four<F>(room, k, make_float4(sum[i].x * by, sum[i].y * by, sum[i].z * by, sum[i].w * by));
        }
        sum_groups<F>(room, sums, first, WIDTH);
    }
    __syncthreads();
}

// --- the phases -------------------------------------------------------------------------------------------------------

// A number in (0, 1) for every token at every place: the bits of the three well mixed.
__device__ inline float uniform(unsigned seed, unsigned place, unsigned index) {
    unsigned v = seed ^ place * 0x9e3779b9u;
    v = (v ^ v >> 16) * 0x85ebca6bu + index;
    v = (v ^ v >> 13) * 0xc2b2ae35u;
    v = (v ^ v >> 16) * 0x7feb352du;
    v ^= v >> 15;
    return ((v >> 9) + 0.5f) * (1.0f / (1u << 23));
}

// What the phase after this one will want of the memory and does not change meanwhile, into the L2: keys and values for
// ATTEND, and by one block for all the weights of norms.
__device__ inline void look_ahead(const Decoder& m, const Part& part, int layer, int phase, int place) {
    if (phase == DOWN && layer + 1 < m.layers) foresee(m, part, layer + 1, place);
    if ((phase == ATTEND || phase == DOWN) && blockIdx.x == gridDim.x - 1)
        for (int k = 64 * threadIdx.x; k < m.hidden; k += 64 * THREADS)
            prefetch_l2(m.norms + (size_t)(2 * layer + (phase == ATTEND ? 1 : 2)) * m.hidden + k);
}

// What a row's sum needs when it is there: bias, cosine and sine (QKV), or the residual (OUT, DOWN).
__device__ inline float3 wanted_by(const Decoder& m, int layer, int phase, int place, int unit, int r) {
    if (phase == QKV) {
        const int i = unit % (HEAD_DIM / UNIT) * 8 + r % 8;
        const float2 turn = m.rotations[(size_t)place * (HEAD_DIM / 2) + i];
        const size_t row = (size_t)layer * (m.heads + 2 * m.kv_heads) * HEAD_DIM + unit * UNIT + r;
        return make_float3(__half2float(m.biases[row]), turn.x, turn.y);
    }
    return make_float3(phase == GATE_UP ? 0.0f : __ldcg(m.residual + unit * UNIT + r), 0.0f, 0.0f);
}

// What becomes of a row's sum. QKV: bias and rotation, then a query, key or value. OUT, DOWN: added to the residual.
// GATE_UP: SiLU of the gate times up.
__device__ inline void finish_row(const Decoder& m, int layer, int phase, int place, int unit, int r, float value,
                                  float3 wanted, bool there) {
    float other = 0.0f;
    if (phase != GATE_UP) value += wanted.x;
    if (phase == QKV || phase == GATE_UP) other = __shfl_xor_sync(0xffffffffu, value, 8);
    if (!there) return;
    if (phase == QKV) {
        constexpr int UNITS = HEAD_DIM / UNIT;
        const int head = unit / UNITS, d = unit % UNITS * 8 + r % 8 + r / 8 * (HEAD_DIM / 2);
        if (head < m.heads + m.kv_heads) value = value * wanted.y + (r < 8 ? -other : other) * wanted.z;
        const size_t row = ((size_t)layer * m.capacity + place) * m.kv_heads;
        __half* to = m.queries + head * HEAD_DIM;
        if (head >= m.heads) to = m.cache_k + (row + head - m.heads) * HEAD_DIM;
        if (head >= m.heads + m.kv_heads) to = m.cache_v + (row + head - m.heads - m.kv_heads) * HEAD_DIM;
        to[d] = __float2half(value);
    } else if (phase == GATE_UP) {
        if (r < 8) m.inner[unit * 8 + r] = __float2half(value / (1.0f + __expf(-value)) * other);
    } else {
        m.residual[unit * UNIT + r] = value;
    }
}

// A phase of a layer; the token stands at `place`.
__device__ inline void run_phase(const Decoder& m, const Room& room, const Part& part, Stream& s, int& turn, int layer,
                                 int phase, int place) {
    if (phase == ATTEND) {
        attend(m, room, part, layer);
        return;
    }
    const int first = room.plans[phase].first, rows = (room.plans[phase].end - first) * UNIT;
    float3 early = make_float3(0.0f, 0.0f, 0.0f);
    if (threadIdx.x < rows) early = wanted_by(m, layer, phase, place, first + threadIdx.x / UNIT, threadIdx.x % UNIT);
    if (phase == OUT) {
        attended<FORMAT>(m, room, part.splits);
    } else if (phase == DOWN) {
        constexpr int TURNS = (MLP + 4 * THREADS - 1) / (4 * THREADS), ROUNDS = (TURNS + 5) / 6;
        constexpr int AT_ONCE = (TURNS + ROUNDS - 1) / ROUNDS;
        for (int first = 4 * threadIdx.x; first < m.mlp; first += AT_ONCE * 4 * THREADS) {
            uint2 held[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int k = first + i * 4 * THREADS;
                if (k < m.mlp) held[i] = __ldcg(reinterpret_cast<const uint2*>(m.inner + k));
            }
            float sums[AT_ONCE] = {};
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int k = first + i * 4 * THREADS;
                if (k < m.mlp) sums[i] = put_four<FORMAT>(room, k, four_halves(held[i]));
            }
            sum_groups<FORMAT>(room, sums, first, m.mlp);
        }
        __syncthreads();
    } else {
        int token = -1;
        if (phase == QKV && layer == 0) {
            token = chosen_token(m, room);
            if (blockIdx.x == 0 && threadIdx.x == 0) m.tokens[place] = token;
        }
        normalised<FORMAT>(m, room, 2 * layer + (phase == GATE_UP), token);
    }
    products<FORMAT>(m, room, s, turn, phase, [&](int unit, int r, float value, bool there, bool at_hand) {
        const float3 wanted = at_hand ? early : wanted_by(m, layer, phase, place, unit, r);
        finish_row(m, layer, phase, place, unit, r, value, wanted, there);
    });
}

// Logits, and this block's candidate for the token at `place`: the largest logit, or with heat the largest of logit times
// heat plus Gumbel noise, which draws token i with the probability that softmax gives it.
__device__ inline void choose(const Decoder& m, const Room& room, Stream& s, int& turn, int place) {
    normalised<HEAD_FORMAT>(m, room, 2 * m.layers, -1);
    Best best = {__int_as_float(0xff800000), 0x7fffffff};
    products<HEAD_FORMAT>(m, room, s, turn, HEAD, [&](int unit, int r, float value, bool there, bool) {
        if (!there) return;
        const int index = unit * UNIT + r;
        if (m.softcap > 0.0f) value = m.softcap * tanhf(value / m.softcap);
        m.logits[index] = value;
        if (m.heat > 0.0f) value = value * m.heat - __logf(-__logf(uniform(m.seed, place, index)));
        if (value > best.value || (value == best.value && index < best.index)) best = {value, index};
    });
    __syncthreads();  // sums are not needed any more: candidates of all threads take their place
    Best* all = reinterpret_cast<Best*>(room.sums);
    all[threadIdx.x] = best;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    for (int i = threadIdx.x; i < THREADS; i += 32)
        if (all[i].value > best.value || (all[i].value == best.value && all[i].index < best.index)) best = all[i];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const float value = __shfl_xor_sync(0xffffffffu, best.value, offset);
        const int index = __shfl_xor_sync(0xffffffffu, best.index, offset);
        if (value > best.value || (value == best.value && index < best.index)) best = {value, index};
    }
    if (threadIdx.x == 0) m.bests[blockIdx.x] = best;
}
