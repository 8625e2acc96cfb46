// Products
#pragma once
#include "common/decoder/schedule.cuh"

constexpr int NOTHING = -1;

// The products of `count` chunks of a unit of format F, and into each slot that they leave the next copy, of format G: or
// nothing, because nothing is to come or because the slots are held back.
template <int F, int WIDTH, int G>
__device__ inline void multiply_chunks(float (&acc)[2][4], Operands& o, Stream& s, const Room& room, int count, bool held_back,
                                       int lane) {
#pragma unroll 1
    for (; count > 0; --count) {
        wait_for_slot<G != NOTHING>(s, room, o.turn);
        multiply_chunk<F, WIDTH>(acc, o, room, lane);
        release_slot(room, o.turn);
        if constexpr (G != NOTHING) copy_next<G>(s, room, o.mine, o.turn, lane);
        leave_slot<G != NOTHING>(s, held_back);
        o.x += SHARED<F> * CHUNK<F>;
        if (F == INT4) ++o.x_sum;
        if (F == Q8) o.x_sum += SHARED<F> * 4;
        o.chunk += SHARED<F>;
        o.mine += SLOT;
        if (++o.turn == STAGES) {
            o.turn = 0;
            o.mine -= STAGES * SLOT;
            next_pass(s);
        }
    }
}

// As many of the unit's chunks as can be done alike: `here` of them are left, and `after` after the unit. Returns how many.
template <int F, int WIDTH>
__device__ inline int multiply_some(float (&acc)[2][4], Operands& o, Stream& s, const Decoder& m, const Room& room, int here,
                                    int after, int lane) {
    const int held = threadIdx.x < 32 ? HELD_BY_FIRST : HELD;  // of a phase's last chunks
    const bool held_back = MOST_HELD > 0 && here + after <= held;
    if (OTHERS_FILL || held_back || s.here == 0) {
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
    o.x = room.x + o.chunk * CHUNK<F> + share_of_x<F>(lane);
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

// All of this block's units of a phase's matrix times x. finish(unit, r, sum, there, early) gets the sum of the row r of
// each unit, from a warp for two units at a time; `there` is false where there is no second one, `early` true
// for row threadIdx.x of them all.
template <int F, typename Finish>
__device__ inline void products(const Decoder& m, const Room& room, Stream& s, int& turn, int phase, Finish finish) {
    set_busy(room, true);
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
    set_busy(room, false);
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
