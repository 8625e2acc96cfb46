// One decoded token at batch 1, phase by phase: what the rungs of decode_step share.
//
// A layer has five phases, each of which needs all of the one before: QKV (norm, projections, biases, rotation, append to
// the cache), ATTEND, OUT (and add to the residual), GATE_UP (norm, projections, SiLU times), DOWN (and add). HEAD (norm,
// logits, choice of the next token) ends the token. All blocks work on every phase, 16 rows of its matrix (a unit) at a
// time; teams of warps divide the units' chunks along k among them, each a run of neighbours, of which a warp takes every
// TEAM-th. One warp a team has the fewest changes from unit to unit; several ask for neighbouring lines at the same time.
//
// Weights come through a ring of slots in shared memory, WARPS times STAGES of them, which cp.async fills ahead. Each lane
// copies just what it will read itself (or a producer's lane copies it), so that a warp waits for no other; and because
// weights depend on nothing, the ring may already hold those of the next phase while this one ends. Products are made by
// tensor cores: a lane's share of 16 rows is the first operand as it lies, x is the second one. Where in k an element lies
// is the same permutation for both, so that 16-byte copies fit: see copy_chunk.
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
#ifndef FIRST_HELD
#define FIRST_HELD HELD_BACK  // of the first warp, which tells of the block's arrival: its fence waits for its copies, too
#endif
static_assert(HELD_BACK < STAGES && FIRST_HELD <= STAGES, "a warp holds back no more than its ring");
#ifndef BOXES
#define BOXES 0  // 1: the ring is filled by the copies of common/boxes.cuh, whole chunks at a time
#endif
#ifndef PRODUCERS
#define PRODUCERS 0  // warps beside WARPS that do nothing but fill the rings of all; 0: each warp fills its own
#endif
#ifndef DEPTH
#define DEPTH 1  // chunks that a producer has under way at most,
#endif
#ifndef CALM
#define CALM 1  // and while no products are made: loads and stores between them wait behind copies
#endif

constexpr int THREADS = 32 * WARPS, UNIT = 16, MOST_SPLITS = 16;
constexpr int GROUP = HEADS / KV_HEADS;
constexpr int most(int a, int b) { return a > b ? a : b; }
constexpr int WIDEST_ROW = most(most(HIDDEN, HEADS * HEAD_DIM), MLP);
constexpr int SUMS_OVER = FORMAT == 1 || HEAD_FORMAT == 1 ? 32 : 128;  // elements of x that share a scale or a sum
constexpr int KEYS_A_WARP = 4;            // that it attends to at a time: eight lanes a key
constexpr int KEYS = KEYS_A_WARP * WARPS;  // and that a block attends to
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

// A warp's run of a phase's chunks: the piece of 16 bytes where it begins in the first layer's matrix, and pieces from layer
// to layer; the unit, and units a chunk (16 bits each). `here` counts the chunks that it has of the unit, every SHARED-th;
// then it goes on at chunk `over` of the next unit, up to chunk `to` counted from this one's first.
struct __align__(16) Opening {
    unsigned index, a_layer;
    int unit, here, over, to, chunks, unused;
};

// What a block keeps in shared memory: x in the order of its phase's format (in ATTEND the warps' outputs), sums of x over
// groups of 128 (INT4) or scales of its blocks of 32 (Q8_0), the warps' sums of units, and the ring.
struct Room {
    __half* x;
    float* x_sums;
    float* sums;  // [WARPS][SLOTS][UNIT]
    float* few;   // [WARPS + 2]
    int* spans;   // [WARPS]: the first and the last unit, or pair of units, that a warp's sums are of (16 bits each)
    Plan* plans;  // [HEAD + 1]
    Opening* openings;  // [HEAD + 1], this warp's, as what follows
    uint4* ring;
    uint4* scales;
    unsigned long long* full;  // a slot's copies are there
#if PRODUCERS
    unsigned long long *empty, *workers;  // a slot has been read; see sync_workers
    unsigned* busy;                       // products are being made
#endif
};

// Elements of the longest x, or of what warps have attended to, filled up so that what follows is aligned.
constexpr int WIDEST = (most(WIDEST_ROW, 2 * WARPS * TOGETHER * (HEAD_DIM + 2)) + 511) / 512 * 512;

__device__ inline Room room_of(uint4* shared, int warp) {
    Room room;
    room.ring = shared + warp * (STAGES * SLOT);
    shared += WARPS * STAGES * SLOT;
    room.scales = shared + warp * (STAGES * SCALES);
    shared += WARPS * STAGES * SCALES;
    room.full = reinterpret_cast<unsigned long long*>(shared) + warp * STAGES;
    if (BOXES) shared += (WARPS * STAGES + 1) / 2;
#if PRODUCERS
    room.empty = room.full + WARPS * STAGES;
    room.workers = reinterpret_cast<unsigned long long*>(shared) + 2 * WARPS * STAGES;
    room.busy = reinterpret_cast<unsigned*>(room.workers + 1);
    shared += WARPS * STAGES + 1;
#endif
    room.x = reinterpret_cast<__half*>(shared);
    room.x_sums = reinterpret_cast<float*>(room.x + WIDEST);
    room.sums = room.x_sums + (WIDEST / SUMS_OVER + 3) / 4 * 4;
    room.few = room.sums + SLOTS * WARPS * UNIT;
    room.spans = reinterpret_cast<int*>(room.few + (WARPS + 2 + 3) / 4 * 4);
    room.plans = reinterpret_cast<Plan*>(room.spans + (WARPS + 3) / 4 * 4);
    room.openings = reinterpret_cast<Opening*>(room.plans + HEAD + 1) + warp * (HEAD + 1);
    return room;
}

// All warps but producers meet.
__device__ inline void sync_workers(const Room& room) {
#if PRODUCERS
    sync_some(room.workers, 1, THREADS);
#else
    __syncthreads();
#endif
}

// --- the stream of weights ------------------------------------------------------------------------------------------

template <int F>
constexpr int CHUNK = F == HALF ? 64 : 128;  // of k

template <int F>
constexpr int PIECES = F == INT4 ? INT4_BLOCK : 8;  // of 16 bytes from a chunk to the next

constexpr int INT4_UNITS = INT4_TILE / UNIT;  // side by side in a tile

__device__ inline int first_unit(int units, int block) { return (int)((unsigned)block * units / gridDim.x); }

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

// Warps that share a run of chunks: FP16 and Q8_0 come in lines of many rows, which neighbours ask for at the same time; a
// chunk of INT4 is one piece.
template <int F>
constexpr int SHARED = F == INT4 ? 1 : TEAM;
static_assert(WARPS % TEAM == 0, "teams are of one size");

// How many of a unit's chunks, from `chunk` on, are a warp's.
template <int F>
__device__ inline int steps_of(int chunk, int to, int chunks) {
    const int end = min(to, chunks);
    return chunk < end ? (end - chunk + SHARED<F> - 1) / SHARED<F> : 0;
}

// A warp's run of a phase's chunks: teams divide the block's among them.
template <int F>
__device__ inline Opening opening_of(const Plan& plan, int warp) {
    constexpr int TEAMS = WARPS / SHARED<F>;
    const int chunks = plan.chunks, count = (plan.end - plan.first) / plan.width * chunks, team = warp / SHARED<F>;
    const int from = team * count / TEAMS, until = (team + 1) * count / TEAMS;
    int unit = plan.first + from / chunks * plan.width, chunk = from % chunks + warp % SHARED<F>;
    int to = until - from + from % chunks;
    if (chunk >= chunks && to > chunks) unit += plan.width, chunk -= chunks, to -= chunks;
    Opening o;
    o.index = F == INT4 ? (unsigned)unit / INT4_UNITS * plan.pitch + chunk * INT4_BLOCK + (unsigned)unit % INT4_UNITS * 64 +
                              INT4_SCALES
                        : (unsigned)unit * UNIT * plan.pitch + chunk * PIECES<F>;
    o.a_layer = (unsigned)plan.codes_a_layer;
    o.unit = unit | plan.width << 16;
    o.here = until > from ? steps_of<F>(chunk, to, chunks) : 0;
    o.over = chunk + o.here * SHARED<F> - chunks;
    o.to = until > from ? to : 0;
    o.chunks = chunks;
    return o;
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
    const int phase = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp < WARPS && phase <= HEAD && phase != ATTEND)
        room.openings[phase] =
            phase == HEAD ? opening_of<HEAD_FORMAT>(room.plans[HEAD], warp) : opening_of<FORMAT>(room.plans[phase], warp);
    __syncwarp();
}

#if !BOXES
// Where a warp's next copy comes from: this lane's share of a unit's chunk. `here` counts its chunks to come of the unit; then
// it goes on at chunk `over` of the next one, up to `to` counted from this one's first. `left` counts the matrices, this one
// included; `back` is the way from INT4's codes back to their scales, in bytes.
struct Stream {
    const uint4* at;
    const __half* scales;
    unsigned long long policy;
    int layer, phase, left, here, over, to, chunks, unit, width, owed;
    unsigned back;
#if PRODUCERS
    unsigned turn;            // a worker's: which time round the ring
    const Opening* openings;  // a producer's: of the warp that it works for
#endif
};

// Start copying a lane's share of 16 rows by CHUNK<F> of k, to this lane's piece of a slot. With g = lane / 4 and
// t = lane % 4, of rows g and g + 8:
// HALF  elements 32 j + 8 t to + 7 (j = 0, 1)       Q8  elements 64 j + 16 t to + 15, and the scales of blocks
// t / 2 * 2 and the next     INT4  what the tile order holds for the lane of a group, and scales of two units.
template <int F>
__device__ inline void copy_chunk(uint4* mine, const Stream& s, int lane) {
    if constexpr (F == INT4) {
        copy_async_16_of_line(mine, s.at, s.policy);
        copy_async_16_of_line(mine + 32, s.at + 32, s.policy);
        if (s.width == 2) {
            copy_async_16_of_line(mine + 64, s.at + 64, s.policy);
            copy_async_16_of_line(mine + 96, s.at + 96, s.policy);
        }
        copy_async_8(reinterpret_cast<uint2*>(mine + 128 - lane) + lane, reinterpret_cast<const char*>(s.at) - s.back);
        return;
    }
    const int pitch = s.chunks * PIECES<F>;
#pragma unroll
    for (int p = 0; p < 4; ++p)
        copy_async_16_of_line(mine + 32 * p, s.at + p % 2 * 8 * pitch + p / 2 * 4, s.policy);
    if (F == Q8) {
        copy_async_4(reinterpret_cast<unsigned*>(mine + 128 - lane) + lane, s.scales);
        copy_async_4(reinterpret_cast<unsigned*>(mine + 136 - lane) + lane, s.scales + 4 * pitch);
    }
}

// INT4: from a lane's codes of the unit at `place` of its tile back to its scales.
__device__ inline unsigned back_to_scales(unsigned place, int lane) {
    return (place * 64 + INT4_SCALES + lane) * 16 - (place / 2 + lane / 4 * 2) * 8;
}

// On to the warp's next chunk.
template <int F>
__device__ inline void move_on(Stream& s) {
    s.at += SHARED<F> * PIECES<F>;
    if (F == Q8) s.scales += SHARED<F> * 4;
}

// From beyond a unit's chunks to as far into the next unit's.
template <int F>
__device__ inline void next_unit(Stream& s, int lane) {
    const int pitch = s.chunks * PIECES<F>;
    if (F == INT4) {
        const unsigned before = (unsigned)s.unit % INT4_UNITS;
        s.unit += s.width;
        const unsigned place = (unsigned)s.unit % INT4_UNITS;
        s.at += (int)(place * 64) - (int)(before * 64) - (place != 0 ? pitch : 0);
        s.back = back_to_scales(place, lane);
    } else {
        s.at += 15 * pitch;
        if (F == Q8) s.scales += 15 * s.chunks * 4;
    }
}

__device__ inline void open_matrix(Stream& s, const Room& room) {
    const int lane = threadIdx.x % 32;
#if PRODUCERS
    const Opening o = s.openings[s.phase];
#else
    const Opening o = room.openings[s.phase];
#endif
    s.unit = o.unit & 0xffff, s.width = o.unit >> 16, s.here = o.here, s.over = o.over, s.to = o.to;
    s.chunks = o.chunks;
    const int format = s.phase == HEAD ? HEAD_FORMAT : FORMAT;
    unsigned long long index = (unsigned long long)(s.phase == HEAD ? 0 : s.layer) * o.a_layer + o.index;
    if (format == Q8)
        s.scales = room.plans[s.phase].scales + index / 2 + (lane / 4 * (o.chunks * (PIECES<Q8> / 2)) + lane % 4 / 2 * 2);
    if (format == INT4) {
        s.back = back_to_scales((unsigned)s.unit % INT4_UNITS, lane);
        index += lane;
    } else {
        index += lane / 4 * (o.chunks * PIECES<HALF>) + lane % 4;
    }
    s.at = room.plans[s.phase].codes + index;
}

#else
// Where a warp's next copy comes from. `left` counts the matrices to come, this one included.
struct Stream {
    const Maps* maps;
    const uint4* codes;  // INT4: of the layer
    int layer, phase, left, here, over, to, unit, chunk, chunks, row, pitch, width, turn, owed;
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
__device__ inline void move_on(Stream& s) { s.chunk += SHARED<F>; }

template <int F>
__device__ inline void next_unit(Stream& s, int) {
    s.unit += s.width;
    s.chunk -= s.chunks;
}

__device__ inline void open_matrix(Stream& s, const Room& room) {
    const Plan& plan = room.plans[s.phase];
    const int layer = s.phase == HEAD ? 0 : s.layer, shared = s.phase == HEAD ? SHARED<HEAD_FORMAT> : SHARED<FORMAT>;
    const Opening o = room.openings[s.phase];
    s.unit = o.unit & 0xffff, s.here = o.here, s.over = o.over, s.to = o.to, s.chunks = o.chunks;
    s.chunk = o.over - o.here * shared + o.chunks;
    s.pitch = plan.pitch, s.width = plan.width;
    s.row = layer * plan.rows;
    s.codes = plan.codes + layer * plan.codes_a_layer;
}
#endif

// To the next matrix that has work for this warp, if there is one.
__device__ inline void next_matrix(Stream& s, const Room& room, int layers) {
    while (--s.left > 0) {
        if (s.phase == HEAD) {
            s.phase = QKV;
            s.layer = 0;
        } else if (s.phase == DOWN) {
            s.phase = ++s.layer < layers ? QKV : HEAD;
        } else {
            s.phase += s.phase == QKV ? 2 : 1;
        }
        open_matrix(s, room);
        if (s.here > 0) break;
    }
}

// To the next unit that has work for this warp; false if there is none in this matrix.
template <int F>
__device__ inline bool next_units(Stream& s, int lane) {
    for (s.to -= s.chunks; s.to > s.over; s.to -= s.chunks) {
        next_unit<F>(s, lane);
        s.here = steps_of<F>(s.over, s.to, s.chunks);
        s.over += s.here * SHARED<F> - s.chunks;
        if (s.here > 0) return true;
    }
    return false;
}

// Where the chunks of a unit are over: to the next unit or matrix.
__device__ inline void turn_over(Stream& s, const Room& room, int layers, int lane) {
    if (FORMAT != HEAD_FORMAT && s.phase == HEAD ? next_units<HEAD_FORMAT>(s, lane) : next_units<FORMAT>(s, lane)) return;
    next_matrix(s, room, layers);
}

// Start copying what comes next into a slot of the ring, number `turn`; G is its format.
template <int G>
__device__ inline void copy_next(Stream& s, const Room& room, uint4* mine, int turn, int lane) {
#if BOXES
    __syncwarp();  // all lanes have read what was there
    if (lane == 0) copy_chunk<G>(mine, room.scales + turn * SCALES, room.full + turn, s);
#else
    if (FORMAT != HEAD_FORMAT) __syncwarp();  // a lane's share of a slot lies elsewhere in another format
    copy_chunk<G>(mine, s, lane);
#endif
    move_on<G>(s);
}

// Fill slot `turn` of the ring with what comes next, and be ready for the one after it.
__device__ inline void fetch(Stream& s, const Decoder& m, const Room& room, int turn, int lane) {
    uint4* mine = room.ring + turn * SLOT + lane;
    if (s.here > 0) {
        if (FORMAT != HEAD_FORMAT && s.phase == HEAD) copy_next<HEAD_FORMAT>(s, room, mine, turn, lane);
        else copy_next<FORMAT>(s, room, mine, turn, lane);
        if (--s.here == 0) turn_over(s, room, m.layers, lane);
    }
#if !BOXES
    copy_async_commit();
#endif
}

constexpr int MOST_HELD = most(HELD_BACK, FIRST_HELD);

// Fill the slots that were held back, the last ones before `turn`.
__device__ inline void fetch_owed(Stream& s, const Decoder& m, const Room& room, int turn) {
    if (MOST_HELD == 0) return;
#pragma unroll 1
    for (; s.owed > 0; --s.owed) {
        const int empty = turn - s.owed + (turn < s.owed ? STAGES : 0);
        fetch(s, m, room, empty, threadIdx.x % 32);
    }
}

__device__ inline void begin_stream(Stream& s, const Decoder& m, const Room& room, int layer, int phase, int matrices) {
    s.layer = layer, s.phase = phase, s.left = matrices, s.owed = 0;
    open_matrix(s, room);
    if (s.here == 0) next_matrix(s, room, m.layers);
}

#if PRODUCERS
// What workers and producers begin with. A worker's stream counts its way round the ring and no more.
__device__ inline Stream start_stream(const Decoder& m, const Room& room) {
    make_plans(m, room);
    if (threadIdx.x < THREADS && threadIdx.x % 32 < STAGES) {
        arrivals_init(room.full + threadIdx.x % 32, 32);
        arrivals_init(room.empty + threadIdx.x % 32, 32);
    }
    if (threadIdx.x == 0) {
        arrivals_init(room.workers, THREADS);
        *room.busy = 0;
    }
    __syncthreads();
    Stream s;
    s.turn = 0, s.here = 0, s.owed = 0;
    return s;
}
#else
// A warp's ring, filled for the first time.
__device__ inline Stream start_stream(const Decoder& m, const Room& room, int layer, int phase, int matrices) {
    Stream s;
#if BOXES
    start_arrivals(room.full, STAGES);
    s.maps = m.maps, s.turn = 0;
#else
    s.scales = nullptr;
    s.policy = evict_first_policy();  // a weight is read once a token
#endif
    make_plans(m, room);
    if (phase == ATTEND) {  // reads no weights
        s.layer = layer, s.phase = phase, s.left = s.here = s.owed = 0;
        return s;
    }
    begin_stream(s, m, room, layer, phase, matrices);
#pragma unroll 1
    for (int i = 0; i < STAGES; ++i) fetch(s, m, room, i, threadIdx.x % 32);
    return s;
}
#endif

#if PRODUCERS
// What a producer does of a launch: it fills the rings of every PRODUCERS-th warp from `producer` on, a chunk each in turn
// where there is room for one. Where the memory is behind it waits, and nobody with it.
__device__ inline void produce(const Decoder& m, uint4* shared, int producer, int matrices) {
    constexpr int STREAMS = WARPS / PRODUCERS;
    static_assert(WARPS % PRODUCERS == 0, "each producer has as many rings to fill");
    const int lane = threadIdx.x % 32;
    const Room room = room_of(shared, producer);
    Stream s[STREAMS];
    int turn[STREAMS] = {};
    unsigned round[STREAMS];
#pragma unroll
    for (int i = 0; i < STREAMS; ++i) {
        s[i].scales = nullptr;
        s[i].policy = evict_first_policy();
        s[i].openings = room.openings + i * PRODUCERS * (HEAD + 1);
        begin_stream(s[i], m, room, 0, QKV, matrices);
        round[i] = 1;
    }
    bool more = true;
    while (more) {
        more = false;
        unsigned busy = 0;
        if (lane == 0) busy = atomicOr(room.busy, 0);
        const bool calm = __shfl_sync(0xffffffffu, busy, 0) == 0;

#pragma unroll
        for (int i = 0; i < STREAMS; ++i) {
            if (s[i].here == 0) continue;
            more = true;
            const int slot = i * (PRODUCERS * STAGES) + turn[i];
            if (!__all_sync(0xffffffffu, arrivals_over(room.empty + slot, round[i]))) continue;  // lanes stay together
            fetch(s[i], m, room, slot, lane);
            arrivals_add_when_copied(room.full + slot);
            if (++turn[i] == STAGES) turn[i] = 0, round[i] ^= 1;
            if (calm) copy_async_wait<CALM - 1>();
            else copy_async_wait<DEPTH - 1>();
        }
    }
    copy_async_wait<0>();
}
#endif

// --- products -------------------------------------------------------------------------------------------------------

// Add the products of a chunk to acc: rows g and g + 8 in acc[.][0] and acc[.][2] of lanes with t = 0 (Q8: of every lane,
// each with a part of them). All columns of the second operand are x, but for Q8: there columns 2 b and 2 b + 1 are x where
// it belongs to block b of the chunk and zero elsewhere, so that the blocks' sums stay apart and can be scaled.
__device__ inline void multiply_half(float (&acc)[2][4], const uint4* mine, const __half* x) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const uint4 low = mine[64 * j], high = mine[64 * j + 32];
        const uint4 b = *reinterpret_cast<const uint4*>(x + 32 * j);
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

// Of blocks that share a scale, x is a number of 16 bits, 256 times a high byte plus a low one, for which there is a column
// each: products of bytes are exact, and weights need no unpacking.
__device__ inline void add_blocks(float (&acc)[2][4], const int (&sums)[4], unsigned low, unsigned high, float x_scale, int lane) {
    const __half2 lows = as_half2(low), highs = as_half2(high);
    const float by_low = __half2float(lane % 2 ? __high2half(lows) : __low2half(lows)) * x_scale;
    const float by_high = __half2float(lane % 2 ? __high2half(highs) : __low2half(highs)) * x_scale;
    acc[0][0] = fmaf(by_low, __int2float_rn(256 * sums[0] + sums[1]), acc[0][0]);
    acc[0][2] = fmaf(by_high, __int2float_rn(256 * sums[2] + sums[3]), acc[0][2]);
}

__device__ inline void multiply_q8(float (&acc)[2][4], const uint4* mine, const __half* x, const float* x_scales, int lane) {
    const int g = lane / 4, t = lane % 4;
    uint4 b = make_uint4(0, 0, 0, 0);
    if (g / 2 % 2 == t / 2) b = *reinterpret_cast<const uint4*>(x);
    int sums[4] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const uint4 low = mine[64 * j], high = mine[64 * j + 32];
        const bool own = g / 4 == j;
        const unsigned first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
        const unsigned b0[2] = {own ? b.x : 0, own ? b.y : 0}, b1[2] = {own ? b.z : 0, own ? b.w : 0};
        mma_m16n8k32_s8(sums, first, b0);
        mma_m16n8k32_s8(sums, second, b1);
    }
    const unsigned* scales = reinterpret_cast<const unsigned*>(mine - lane + 128) + lane;
    add_blocks(acc, sums, scales[0], scales[32], x_scales[t], lane);
}

// Codes keep the offset that unpacking leaves (264 and 24, see common/int4.cuh), which times the sum of x goes off again.
// Of UNITS units one after another; sums of unit i in acc[i][0] and acc[i][2].
template <int UNITS>
__device__ inline void multiply_int4(float (&acc)[2][4], const uint4* mine, const unsigned (&scales)[2], const __half* x,
                                     float x_sum) {
    float sums[UNITS][2][4] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        unsigned b[4][2];
        sixteen(b, x + 64 * j, true);
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            const uint4 codes = mine[64 * u + 32 * j];
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
    sixteen(b, x, true);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        unsigned a[4];
        load_matrix_x4(a, slot + lane % 16 * 8 + ((2 * i + lane / 16) ^ lane % 8));
        mma_m16n8k16_f16(acc[i % 2], a, b[i]);
    }
}

__device__ inline void multiply_q8_box(float (&acc)[2][4], const uint4* slot, const uint4* scale_rows, const __half* x,
                                       const float* x_scales, int chunk, int lane) {
    const unsigned* b = reinterpret_cast<const unsigned*>(x);
    int sums[4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // a block of 32
        unsigned w[4];
        load_matrix_x4(w, slot + lane % 16 * 8 + ((2 * j + lane / 16) ^ lane % 8));
        const bool own = lane / 8 == j;
        const unsigned here[2] = {own ? b[0] : 0, own ? b[4] : 0};
        mma_m16n8k32_s8(sums, w, here);
    }
    const unsigned* scales = reinterpret_cast<const unsigned*>(scale_rows) + lane / 4 * 4 + chunk % 2 * 2 + lane % 4 / 2;
    add_blocks(acc, sums, scales[0], scales[32], x_scales[lane % 4], lane);
}
#endif

// What the products of a warp are made of: this lane's share of a slot, of x and the sums of x, and which slot, unit and
// chunk it is.
struct Operands {
    uint4* mine;
    const __half* x;
    const float* x_sum;
    int turn, unit, chunk;
};

template <int F, int WIDTH>
__device__ inline void multiply_chunk(float (&acc)[2][4], const Operands& o, const Room& room, int lane) {
#if BOXES
    if constexpr (F == HALF) multiply_half_box(acc, o.mine - lane, o.x, lane);
    if constexpr (F == Q8) multiply_q8_box(acc, o.mine - lane, room.scales + o.turn * SCALES, o.x, o.x_sum, o.chunk, lane);
    if constexpr (F == INT4) {
        const uint2 both = reinterpret_cast<const uint2*>(room.scales + o.turn * SCALES)[lane / 4 * 2 + o.unit % 4 / 2];
#else
    if constexpr (F == HALF) multiply_half(acc, o.mine, o.x);
    if constexpr (F == Q8) multiply_q8(acc, o.mine, o.x, o.x_sum, lane);
    if constexpr (F == INT4) {
        const uint2 both = reinterpret_cast<const uint2*>(o.mine - lane + 128)[lane];
#endif
        const unsigned scales[2] = {WIDTH == 1 && o.unit % 2 ? both.y : both.x, both.y};
        multiply_int4<WIDTH>(acc, o.mine, scales, o.x, *o.x_sum);
    }
}

// Wait for the oldest copy of the ring: of slots that are held back, the copies were not asked for.
template <int MOST_OWED>
__device__ inline void wait_for_next(int owed) {
    if constexpr (MOST_OWED == 0) copy_async_wait<STAGES - 1>();
    else if (owed == MOST_OWED) copy_async_wait<STAGES - 1 - MOST_OWED>();
    else wait_for_next<MOST_OWED - 1>(owed);
}

constexpr int NOTHING = -1;

// The products of `count` chunks of a unit of format F, and into each slot that they leave the next copy, of format G: or
// nothing, because nothing is to come or because the slots are held back.
template <int F, int WIDTH, int G>
__device__ inline void multiply_chunks(float (&acc)[2][4], Operands& o, Stream& s, const Room& room, int count, bool held_back,
                                       int lane) {
#pragma unroll 1
    for (; count > 0; --count) {
#if PRODUCERS
        arrivals_wait(room.full + o.turn, s.turn);
#elif BOXES
        wait_for_arrival(room.full + o.turn, s.turn);
#else
        wait_for_next<G != NOTHING ? 0 : MOST_HELD < STAGES ? MOST_HELD : STAGES - 1>(s.owed);
#endif
        multiply_chunk<F, WIDTH>(acc, o, room, lane);
#if PRODUCERS
        arrivals_add(room.empty + o.turn);
#endif
        if constexpr (G != NOTHING) copy_next<G>(s, room, o.mine, o.turn, lane);
#if !BOXES && !PRODUCERS
        if (G == NOTHING && held_back) ++s.owed;
        else copy_async_commit();
#endif
        o.x += SHARED<F> * CHUNK<F>;
        if (F == INT4) ++o.x_sum;
        if (F == Q8) o.x_sum += SHARED<F> * 4;
        o.chunk += SHARED<F>;
        o.mine += SLOT;
        if (++o.turn == STAGES) {
            o.turn = 0;
            o.mine -= STAGES * SLOT;
#if BOXES || PRODUCERS
            s.turn ^= 1;
#endif
        }
    }
}

// As many of the unit's chunks as can be done alike: `here` of them are left, and `after` after the unit. Returns how many.
template <int F, int WIDTH>
__device__ inline int multiply_some(float (&acc)[2][4], Operands& o, Stream& s, const Decoder& m, const Room& room, int here,
                                    int after, int lane) {
    const int held = threadIdx.x < 32 ? FIRST_HELD : HELD_BACK;  // of a phase's last chunks
    const bool held_back = MOST_HELD > 0 && here + after <= held;
    if (PRODUCERS || held_back || s.here == 0) {
        multiply_chunks<F, WIDTH, NOTHING>(acc, o, s, room, here, held_back, lane);
        return here;
    }
    int count = min(here, s.here);
    if (MOST_HELD > 0) count = min(count, here + after - held);
    if (FORMAT != HEAD_FORMAT && s.phase == HEAD) multiply_chunks<F, WIDTH, HEAD_FORMAT>(acc, o, s, room, count, false, lane);
    else multiply_chunks<F, WIDTH, FORMAT>(acc, o, s, room, count, false, lane);
    s.here -= count;
    if (s.here == 0) turn_over(s, room, m.layers, lane);
    return count;
}

// A warp's sum of `here` chunks of a unit, rows g and g + 8; `after` chunks follow. Lanes with t = 0 have them, in both[1] of
// the second one of two units.
template <int F>
__device__ inline void sum_unit(float2 (&both)[2], Operands& o, Stream& s, const Decoder& m, const Room& room, int width,
                                int here, int after, int lane) {
    int share = lane % 4 * (F == HALF && !BOXES ? 8 : 16);  // of x, in halves
    if (F == Q8) share = lane / 4 % 2 * 64 + (BOXES ? lane / 8 * 16 + lane % 4 * 2 : lane / 16 * 32 + lane % 4 * 8);
    o.x = room.x + o.chunk * CHUNK<F> + share;
    o.x_sum = room.x_sums + o.chunk * (F == Q8 ? 4 : 1);
    float acc[2][4] = {};
    while (here > 0) {
        if (F == INT4 && width == 2) here -= multiply_some<F, F == INT4 ? 2 : 1>(acc, o, s, m, room, here, after, lane);
        else here -= multiply_some<F, 1>(acc, o, s, m, room, here, after, lane);
    }
    both[0] = make_float2(acc[0][0], acc[0][2]), both[1] = make_float2(acc[1][0], acc[1][2]);
    if (F != INT4) both[0].x += both[1].x, both[0].y += both[1].y;
    if (F == Q8) {
#pragma unroll
        for (int offset = 1; offset < 4; offset *= 2) {
            both[0].x += __shfl_xor_sync(0xffffffffu, both[0].x, offset);
            both[0].y += __shfl_xor_sync(0xffffffffu, both[0].y, offset);
        }
    }
}

// How many of a run's chunks, the first of which is chunk `chunk` of its unit, are a warp's.
template <int F>
__device__ inline int run_steps(int chunk, int to) { return chunk < to ? (to - chunk + SHARED<F> - 1) / SHARED<F> : 0; }

// All of this block's units of a phase's matrix times x. finish(unit, r, sum, there, early) gets the sum of the row r of
// each unit, from a warp for two units at a time; `there` is false where there is no second one, `early` true
// for row threadIdx.x of them all.
template <int F, typename Finish>
__device__ inline void products(const Decoder& m, const Room& room, Stream& s, int& turn, int phase, Finish finish) {
#if PRODUCERS
    if (threadIdx.x == 0) atomicExch(room.busy, 1);
#endif
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first = room.plans[phase].first, last = room.plans[phase].end, chunks = room.plans[phase].chunks;
    const int width = F == INT4 ? room.plans[phase].width : 1, shift = width - 1;
    const Opening run = room.openings[phase];
    const int begin = run.over - run.here * SHARED<F> + chunks;
    int to_come = run_steps<F>(begin, run.to);
    Operands o = {room.ring + turn * SLOT + lane, nullptr, nullptr, turn, 0, 0};
    float2 both[2];
    o.unit = run.unit & 0xffff, o.chunk = begin;
    float* mine = room.sums + warp * (SLOTS * UNIT) + lane / 4;
    int pair = (o.unit - first) >> shift;
    const int start = pair;
    for (int to = run.to; to > 0; to -= chunks) {
        const int here = steps_of<F>(o.chunk, to, chunks);
        to_come -= here;
        sum_unit<F>(both, o, s, m, room, width, here, to_come, lane);
        if (lane % 4 == 0) {
            mine[0] = both[0].x;
            mine[8] = both[0].y;
            if (F == INT4 && width == 2) {  // each unit has its own
                mine[UNIT] = both[1].x;
                mine[UNIT + 8] = both[1].y;
            }
        }
        mine += width * UNIT;
        o.unit += width;
        o.chunk -= chunks;
        ++pair;
    }
    if (lane == 0) room.spans[warp] = pair > start ? start | (pair - 1) << 16 : 1;
    turn = o.turn;
#if PRODUCERS
    if (threadIdx.x == 0) atomicExch(room.busy, 0);
#endif
    sync_workers(room);
    for (int i = threadIdx.x; i < (last - first + 1) / 2 * 2 * UNIT; i += THREADS) {
        const int at = min(i / UNIT, last - first - 1), wanted = at >> shift;
        const float* sums = room.sums + at * UNIT + i % UNIT;
        float value = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const int span = room.spans[w], low = span & 0xffff;
            if (wanted >= low && wanted <= span >> 16) value += sums[(w * SLOTS - low * width) * UNIT];
        }
        finish(first + at, i % UNIT, value, i / UNIT < last - first, i == threadIdx.x);
    }
}

// --- what stands before the products of a phase: x --------------------------------------------------------------------

// Where element k of x lies for format F. INT4 and boxes of FP16: element 16 i + 8 j + 2 t + e of 64 at 16 t + 4 i + 2 j + e.
// (Q8_0 wants bytes, see put_bytes; here is where a half lies that becomes two of them.)
template <int F>
constexpr bool PAIRS_APART = F == INT4 || (BOXES && F == HALF);

template <int F>
__device__ inline int place_of(int k) {
    if (PAIRS_APART<F>) return k / 64 * 64 + k % 8 / 2 * 16 + k % 64 / 16 * 4 + k % 16 / 8 * 2 + k % 2;
    return k;
}

// Q8_0: N neighbours of x, from k on, as 16-bit numbers in their block's scale, the high bytes of 128 and then the low ones.
// A warp has 32 N neighbours, and all of its lanes must call it.
template <int N>
__device__ inline void put_bytes(const Room& room, int k, const float (&v)[N], bool there) {
    float most = 0.0f;
#pragma unroll
    for (int e = 0; e < N; ++e) most = fmaxf(most, fabsf(v[e]));
#pragma unroll
    for (int offset = 1; offset < 32 / N; offset *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, offset));
    const float by = most > 0.0f ? 32512.0f / most : 0.0f;  // of a number up to 127 * 256 the low byte may be below zero
    if (!there) return;
    const int within = N * threadIdx.x % 128;  // k % 128
    unsigned char* to = reinterpret_cast<unsigned char*>(room.x) + (2 * k - within);
#pragma unroll
    for (int e = 0; e < N; e += 4) {
        unsigned high = 0, low = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int number = __float2int_rn(v[e + i] * by);
            low |= (number & 255u) << 8 * i;
            high |= ((number + 128) >> 8 & 255u) << 8 * i;
        }
        *reinterpret_cast<unsigned*>(to + e) = high;
        *reinterpret_cast<unsigned*>(to + 128 + e) = low;
    }
    if (within % 32 == 0) room.x_sums[k / 32] = most * (1.0f / 32512.0f);
}

// Four neighbours of x, from k on, into the order of format F; their sum, which INT4 wants of a warp's 128, a group.
template <int F>
__device__ inline float put_four(const Room& room, int k, float4 v) {
    if constexpr (F == Q8) {
        const float four[4] = {v.x, v.y, v.z, v.w};
        put_bytes(room, k, four, true);
        return 0.0f;
    }
    const __half2 low = __floats2half2_rn(v.x, v.y), high = __floats2half2_rn(v.z, v.w);
    __half* to = room.x + place_of<F>(k);
    if constexpr (PAIRS_APART<F>) {
        reinterpret_cast<unsigned*>(to)[0] = as_word(low);
        reinterpret_cast<unsigned*>(to)[8] = as_word(high);
        const float2 a = __half22float2(low), b = __half22float2(high);
        if (F == INT4) return a.x + a.y + b.x + b.y;
    } else {
        *reinterpret_cast<uint2*>(to) = make_uint2(as_word(low), as_word(high));
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

// x = the rows of gate and up, which lie in its order: eight neighbours a thread, all asked for together. INT4 wants the sums of
// groups of 128, 16 lanes each.
template <int F>
__device__ inline void gated(const Decoder& m, const Room& room) {
    constexpr int PIECES = MLP / 8, TURNS = (PIECES + THREADS - 1) / THREADS, ROUNDS = (TURNS + 7) / 8;
    constexpr int AT_ONCE = (TURNS + ROUNDS - 1) / ROUNDS;
    const int lane = threadIdx.x % 32;
    for (int first = threadIdx.x; first < AT_ONCE * ROUNDS * THREADS; first += AT_ONCE * THREADS) {
        uint4 held[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            held[i] = make_uint4(0, 0, 0, 0);
            if (first + i * THREADS < PIECES)
                held[i] = __ldcg(reinterpret_cast<const uint4*>(m.inner) + first + i * THREADS);
        }
        float v[8] = {};
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int piece = first + i * THREADS;
            if (F != Q8 && piece < PIECES) reinterpret_cast<uint4*>(room.x)[piece] = held[i];
            if (F != HALF) {
                const float2 a = __half22float2(as_half2(held[i].x)), b = __half22float2(as_half2(held[i].y));
                const float2 c = __half22float2(as_half2(held[i].z)), d = __half22float2(as_half2(held[i].w));
                v[i] = ((a.x + a.y) + (b.x + b.y)) + ((c.x + c.y) + (d.x + d.y));
                const float eight[8] = {a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y};
                if (F == Q8) put_bytes(room, 8 * piece, eight, piece < PIECES);
            }
        }
        if (F == INT4) {
#pragma unroll
            for (int offset = 8; offset >= 2; offset /= 2)  // half of the lanes go on with half of the values
#pragma unroll
                for (int i = 0; i < offset / 2; ++i) {
                    const float keep = lane & offset ? v[i + offset / 2] : v[i], give = lane & offset ? v[i] : v[i + offset / 2];
                    v[i] = keep + __shfl_xor_sync(0xffffffffu, give, offset);
                }
            v[0] += __shfl_xor_sync(0xffffffffu, v[0], 1);
            const int turn = lane % 16 / 2, group = first / 16 + turn * (THREADS / 16);
            if (lane % 2 == 0 && turn < AT_ONCE && group < MLP / 128) room.x_sums[group] = v[0];
        }
    }
    sync_workers(room);
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
    sync_workers(room);
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
    sync_workers(room);
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
    sync_workers(room);
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

// N times two halves, past the L1.
template <int N>
__device__ inline void load_pairs(unsigned (&pairs)[N], const __half* p) {
    if constexpr (N == 1) {
        pairs[0] = __ldcg(reinterpret_cast<const unsigned*>(p));
    } else if constexpr (N == 2) {
        const uint2 two = __ldcg(reinterpret_cast<const uint2*>(p));
        pairs[0] = two.x, pairs[1] = two.y;
    } else {
#pragma unroll
        for (int i = 0; i < N / 4; ++i) {
            const uint4 four = __ldcg(reinterpret_cast<const uint4*>(p) + i);
            pairs[4 * i] = four.x, pairs[4 * i + 1] = four.y, pairs[4 * i + 2] = four.z, pairs[4 * i + 3] = four.w;
        }
    }
}

// Query heads that share a key-value head against a part of the cache; the parts meet in OUT. A warp attends to keys of its
// own as if there were no others, and the warps meet once, in the end. Of a key eight lanes score a piece each; of a value
// each lane takes HEAD_DIM / 32 neighbours.
__device__ inline void attend(const Decoder& m, const Room& room, const Part& p, int layer) {
    constexpr int PIECES = HEAD_DIM / 64, PAIRS = HEAD_DIM / 64;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (p.kv_head == m.kv_heads) return;
    constexpr unsigned stride = KV_HEADS * HEAD_DIM;
    const size_t start = (size_t)layer * m.capacity * stride + p.kv_head * HEAD_DIM;
    const __half *keys = m.cache_k + start + lane % 8 * 8, *values = m.cache_v + start + lane * (HEAD_DIM / 32);
    const float scale = rsqrtf((float)HEAD_DIM) * 1.44269504f;
    float* outputs = reinterpret_cast<float*>(room.x);                                            // [WARPS][TOGETHER][HEAD_DIM]
    PartSums* sums = reinterpret_cast<PartSums*>(outputs + WARPS * TOGETHER * HEAD_DIM);  // [WARPS][TOGETHER]

    uint4 k[PIECES];
    unsigned v[KEYS_A_WARP][PAIRS];
    const auto load = [&](int first) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const int key = first + lane / 8;
            k[i] = make_uint4(0, 0, 0, 0);
            if (key < p.last) k[i] = __ldcg(reinterpret_cast<const uint4*>(keys + (unsigned)key * stride + 64 * i));
        }
#pragma unroll
        for (int n = 0; n < KEYS_A_WARP; ++n) {
#pragma unroll
            for (int e = 0; e < PAIRS; ++e) v[n][e] = 0;
            if (first + n < p.last) load_pairs(v[n], values + (unsigned)(first + n) * stride);
        }
    };
    int first = p.first + warp * KEYS_A_WARP;
    load(first);
    float largest[TOGETHER], weights[TOGETHER] = {};
    float2 sum[TOGETHER][PAIRS] = {};
#pragma unroll
    for (int h = 0; h < TOGETHER; ++h) largest[h] = -1e30f;
#pragma unroll 1
    for (; first < p.last; first += KEYS) {
        float weight[TOGETHER];
        const __half* queries = m.queries + p.head * HEAD_DIM + lane % 8 * 8;
        uint4 q[TOGETHER][PIECES];  // asked for again every time: registers are few
#pragma unroll
        for (int h = 0; h < TOGETHER; ++h)
#pragma unroll
            for (int i = 0; i < PIECES; ++i) q[h][i] = __ldcg(reinterpret_cast<const uint4*>(queries + h * HEAD_DIM + 64 * i));
#pragma unroll
        for (int h = 0; h < TOGETHER; ++h) {
            float dot = 0.0f;
#pragma unroll
            for (int i = 0; i < PIECES; ++i) dot = multiply_add_8(k[i], q[h][i], dot);
#pragma unroll
            for (int offset = 4; offset > 0; offset /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, offset);
            dot = first + lane / 8 < p.last ? dot * scale : -1e30f;
            float most = fmaxf(largest[h], dot);
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 8));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 16));
            const float rescale = exp2_approx(largest[h] - most);
            weight[h] = exp2_approx(dot - most);  // 0 beyond the last key: a first one is always there
            largest[h] = most;
            weights[h] = weights[h] * rescale + weight[h];
#pragma unroll
            for (int e = 0; e < PAIRS; ++e) sum[h][e].x *= rescale, sum[h][e].y *= rescale;
        }
#pragma unroll
        for (int n = 0; n < KEYS_A_WARP; ++n)
#pragma unroll
            for (int h = 0; h < TOGETHER; ++h) {
                const float by = __shfl_sync(0xffffffffu, weight[h], n * 8);
#pragma unroll
                for (int e = 0; e < PAIRS; ++e) {
                    const float2 value = __half22float2(as_half2(v[n][e]));
                    sum[h][e].x = fmaf(by, value.x, sum[h][e].x), sum[h][e].y = fmaf(by, value.y, sum[h][e].y);
                }
            }
        load(first + KEYS);
    }
#pragma unroll
    for (int h = 0; h < TOGETHER; ++h) {
        weights[h] += __shfl_xor_sync(0xffffffffu, weights[h], 8);
        weights[h] += __shfl_xor_sync(0xffffffffu, weights[h], 16);
        if (lane == 0) sums[warp * TOGETHER + h] = {largest[h], weights[h]};
        float2* out = reinterpret_cast<float2*>(outputs + (warp * TOGETHER + h) * HEAD_DIM) + lane * PAIRS;
#pragma unroll
        for (int e = 0; e < PAIRS; ++e) out[e] = sum[h][e];
    }
    sync_workers(room);
    for (int i = threadIdx.x; i < TOGETHER * HEAD_DIM; i += THREADS) {
        const int h = i / HEAD_DIM;
        float most = -1e30f, all = 0.0f, output = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) most = fmaxf(most, sums[w * TOGETHER + h].largest);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const PartSums own = sums[w * TOGETHER + h];
            const float by = exp2_approx(own.largest - most);
            all = fmaf(by, own.sum, all);
            output = fmaf(by, outputs[w * TOGETHER * HEAD_DIM + i], output);
        }
        const int at = (p.head + h) * MOST_SPLITS + p.part;
        m.part_outputs[(size_t)at * HEAD_DIM + i % HEAD_DIM] = __float2half(all > 0.0f ? output / all : 0.0f);
        if (i % HEAD_DIM == 0) m.parts[at] = {most, all};
    }
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
            uint2 o[AT_ONCE][PARTS];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
                for (int j = 0; j < PARTS; ++j) {
                    const int k = first + i * 4 * THREADS, at = k / HEAD_DIM * MOST_SPLITS + p + j;
                    const bool there = p + j < splits && k < WIDTH;
                    part[i][j] = make_float2(-1e30f, 0.0f), o[i][j] = make_uint2(0, 0);
                    if (there) part[i][j] = __ldcg(reinterpret_cast<const float2*>(m.parts) + at);
                    if (there) o[i][j] = __ldcg(reinterpret_cast<const uint2*>(m.part_outputs + at * HEAD_DIM + k % HEAD_DIM));
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
                    const float weight = exp2_approx(part[i][j].x - most) * part[i][j].y;
                    const float4 v = four_halves(o[i][j]);
                    weights[i] += weight;
                    sum[i].x = fmaf(weight, v.x, sum[i].x), sum[i].y = fmaf(weight, v.y, sum[i].y);
                    sum[i].z = fmaf(weight, v.z, sum[i].z), sum[i].w = fmaf(weight, v.w, sum[i].w);
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
    sync_workers(room);
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
        if (r < 8) m.inner[place_of<FORMAT>(unit * 8 + r)] = __float2half(value / (1.0f + __expf(-value)) * other);
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
        gated<FORMAT>(m, room);
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
    sync_workers(room);  // sums are not needed any more: candidates of all threads take their place
    Best* all = reinterpret_cast<Best*>(room.sums);
    all[threadIdx.x] = best;
    sync_workers(room);
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
