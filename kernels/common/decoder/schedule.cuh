// Which rows of a phase's matrix a block multiplies, and which of their chunks along k a warp does.
//
// Teams of warps divide the chunks of a block's units among them, each a run of neighbours, of which a warp takes every
// TEAM-th. One warp a team has the fewest changes from unit to unit; several ask for neighbouring lines at the same time.
#pragma once
#include "common/decoder/model.cuh"

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
// A block's share of a phase's matrices, of which there is one a layer.
struct Plan {
    const uint4* codes;
    const __half* scales;
    long long codes_a_layer, scales_a_layer;
    int first, end, chunks, pitch;    // units; chunks a unit; 16-byte pieces (INT4: of all groups) a row
    int rows, width, unused[2];       // rows of a matrix; units a chunk
};

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

// How many of a run's chunks, the first of which is chunk `chunk` of its unit, are a warp's.
template <int F>
__device__ inline int run_steps(int chunk, int to) { return chunk < to ? (to - chunk + SHARED<F> - 1) / SHARED<F> : 0; }


// A warp's run of a phase's chunks: the piece of 16 bytes where it begins in the first layer's matrix, and pieces from layer
// to layer; the unit, and units a chunk (16 bits each). `here` counts the chunks that it has of the unit, every SHARED-th;
// then it goes on at chunk `over` of the next unit, up to chunk `to` counted from this one's first.
struct __align__(16) Opening {
    unsigned index, a_layer;
    int unit, here, over, to, chunks, unused;
};

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
