// Divide a phase's matrix: units of 16 rows among blocks, the units' chunks along k among teams of warps.
//
// A team takes a contiguous range of its block's chunks, and each of its warps every TEAM-th of them. With one warp a team
// a warp changes its unit least often; with several, neighbouring lines of memory are asked for at the same time.
#pragma once
#include "common/decoder/model.cuh"

template <int F>
constexpr int CHUNK = F == FP16 ? 64 : 128;  // elements of k

template <int F>
constexpr int PIECES = F == INT4 ? INT4_BLOCK : 8;  // of 16 bytes from one chunk to the next

constexpr int INT4_UNITS = INT4_TILE / UNIT;  // side by side in a tile of the format

__device__ inline int first_unit(int units, int block) { return (int)((unsigned)block * units / gridDim.x); }

// How many units a chunk of INT4 covers: two neighbours of a tile of 64 rows share their x and take about 1.5 times as long
// as one. Choose what shortens the block with the most units.
template <int F>
__device__ inline int width_of(int units) {
    const int blocks = gridDim.x;
    return F == INT4 && 3 * ((units / 2 + blocks - 1) / blocks) < 2 * ((units + blocks - 1) / blocks) ? 2 : 1;
}

// A block's slab: chunks along k that a group of blocks multiplies, each block some rows of it.
struct Slab {
    int first_chunk, chunks, first_block, blocks;
};

__device__ inline Slab slab_of(int slabs, int chunks) {
    const int grid = gridDim.x, slab = (unsigned)blockIdx.x * slabs / grid;
    Slab found;
    found.first_block = (slab * grid + slabs - 1) / slabs;
    found.blocks = ((slab + 1) * grid + slabs - 1) / slabs - found.first_block;
    found.first_chunk = slab * chunks / slabs;
    found.chunks = (slab + 1) * chunks / slabs - found.first_chunk;
    return found;
}

// A block's share of a phase's matrices, one a layer. Of a matrix in slabs: `first` to `end` count the slab's chunks, unit by
// unit, `chunks` are the slab's, from `first_chunk` on.
struct Plan {
    const uint4* codes;
    const __half* scales;
    long long codes_layer_stride, scales_layer_stride;
    int first, end, chunks, pitch;  // first and end unit; chunks a unit; 16-byte pieces a row (INT4: of all groups)
    int rows, width, first_chunk, slabs;  // rows of a matrix; units a chunk; slabs along k, 0 for whole rows
};

template <int F>
__device__ inline Plan plan_of(const uint4* codes, const __half* scales, int rows, int k, int slabs = 0) {
    const long long weights = (long long)rows * k;
    Plan plan;
    plan.codes = codes, plan.scales = scales;
    plan.codes_layer_stride = F == FP16 ? weights / 8 : F == Q8 ? weights / 16 : weights / (64 * 128) * INT4_BLOCK;
    plan.scales_layer_stride = weights / 32;
    plan.width = width_of<F>(rows / UNIT);
    plan.first = first_unit(rows / UNIT / plan.width, blockIdx.x) * plan.width;
    plan.end = first_unit(rows / UNIT / plan.width, blockIdx.x + 1) * plan.width;
    plan.chunks = k / CHUNK<F>;
    plan.rows = rows;
    plan.pitch = F == FP16 ? k / 8 : F == Q8 ? k / 16 : k / 128 * INT4_BLOCK;
    plan.first_chunk = 0, plan.slabs = slabs;
    if (SPLIT_K && slabs > 0) {
        const Slab slab = slab_of(slabs, plan.chunks);
        const int units = rows / UNIT, place = blockIdx.x - slab.first_block;
        plan.width = 1;
        plan.first = place * (units * slab.chunks) / slab.blocks;
        plan.end = (place + 1) * (units * slab.chunks) / slab.blocks;
        plan.first_chunk = slab.first_chunk, plan.chunks = slab.chunks;
    }
    return plan;
}

// Chunks from one of a warp's to its next. A chunk of FP16 or Q8_0 touches 16 lines, whose other halves a neighbour asks
// for at the same time; a chunk of INT4 is contiguous.
template <int F>
constexpr int TEAM_STRIDE = F == INT4 ? 1 : TEAM;
static_assert(WARPS % TEAM == 0, "TEAM divides WARPS");

// How many chunks of a unit a warp has, from `chunk` on, up to chunk `to` of the range.
template <int F>
__device__ inline int count_steps(int chunk, int to, int chunks) {
    const int end = min(to, chunks);
    return chunk < end ? (end - chunk + TEAM_STRIDE<F> - 1) / TEAM_STRIDE<F> : 0;
}

// How many chunks of a range a warp has, of which the first is chunk `chunk` of its unit.
template <int F>
__device__ inline int count_run_steps(int chunk, int to) {
    return chunk < to ? (to - chunk + TEAM_STRIDE<F> - 1) / TEAM_STRIDE<F> : 0;
}

// A warp's range of a phase's chunks. `index` is its first piece of 16 bytes in the first layer's matrix, `layer_stride`
// the pieces from layer to layer; `unit` holds the first unit (low 16 bits) and the units a chunk covers. The warp has
// `steps` chunks of the first unit and continues with chunk `next_chunk` of the next one, up to chunk `to` (counted from
// the first unit's first chunk); `pitch` is Plan's.
struct __align__(16) TileRange {
    unsigned index, layer_stride;
    int unit, steps, next_chunk, to, chunks, pitch;
};

template <int F>
__device__ inline TileRange range_of(const Plan& plan, int warp) {
    constexpr int TEAMS = WARPS / TEAM_STRIDE<F>;
    const int chunks = plan.chunks, count = (plan.end - plan.first) / plan.width * chunks, team = warp / TEAM_STRIDE<F>;
    const bool split = SPLIT_K && plan.slabs > 0;
    const int all = split ? plan.end - plan.first : count, offset = split ? plan.first : 0;
    const int from = offset + team * all / TEAMS, until = offset + (team + 1) * all / TEAMS;
    int unit = (split ? 0 : plan.first) + from / chunks * plan.width, chunk = from % chunks + warp % TEAM_STRIDE<F>;
    int to = until - from + from % chunks;
    if (chunk >= chunks && to > chunks) unit += plan.width, chunk -= chunks, to -= chunks;
    TileRange range;
    const int along = SPLIT_K ? plan.first_chunk + chunk : chunk;
    range.index = F == INT4 ? (unsigned)unit / INT4_UNITS * plan.pitch + along * INT4_BLOCK + (unsigned)unit % INT4_UNITS * 64 +
                              INT4_SCALES
                        : (unsigned)unit * UNIT * plan.pitch + along * PIECES<F>;
    range.layer_stride = (unsigned)plan.codes_layer_stride;
    range.unit = unit | plan.width << 16;
    range.steps = until > from ? count_steps<F>(chunk, to, chunks) : 0;
    range.next_chunk = chunk + range.steps * TEAM_STRIDE<F> - chunks;
    range.to = until > from ? to : 0;
    range.chunks = chunks, range.pitch = plan.pitch;
    return range;
}
