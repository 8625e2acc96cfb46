// Multiply a block's units of a phase's matrix by x: each warp its range of chunks, then add up the warps' sums.
#pragma once
#include "common/decoder/flags.cuh"
#include "common/decoder/timeline.cuh"

constexpr int NO_COPY = -1;

// Multiply `count` chunks of a unit of format F, and start the next copy, of format G, into each slot that was read: none
// with NO_COPY, because the stream has ended, producers fill the ring, or the slots stay empty (`defer`).
template <int F, int WIDTH, int G>
__device__ inline void multiply_chunks(float (&acc)[2][4], Operands& o, Stream& s, const Smem& smem, int count, bool defer,
                                       int lane) {
#pragma unroll 1
    for (; count > 0; --count) {
        const auto asked = clock_before_wait();
        wait_for_slot<G != NO_COPY>(s, smem, o.slot);
        count_waited(smem, asked);
        multiply_chunk<F, WIDTH>(acc, o, smem, lane);
        release_slot(smem, o.slot);
        if constexpr (G != NO_COPY) copy_next_chunk<G>(s, smem, o.w, o.slot, lane);
        end_slot<G != NO_COPY>(s, defer);
        o.x += TEAM_STRIDE<F> * CHUNK<F>;
        if (F != FP16) o.x_sum += TEAM_STRIDE<F> * X_SUMS<F>;
        o.chunk += TEAM_STRIDE<F>;
        o.w += SLOT;
        if (++o.slot == STAGES) {
            o.slot = 0;
            o.w -= STAGES * SLOT;
            next_pass(s);
        }
    }
}

// Multiply as many of the unit's chunks as one call of multiply_chunks can: `steps` are left of the unit, `after` in later
// units. Returns how many it multiplied.
template <int F, int WIDTH>
__device__ inline int multiply_some(float (&acc)[2][4], Operands& o, Stream& s, const Decoder& m, const Smem& smem, int steps,
                                    int after, int lane) {
    const int last = threadIdx.x < 32 ? DEFERRED_BY_FIRST : DEFERRED;  // chunks of a phase whose slots stay empty
    const bool defer = MAX_DEFERRED > 0 && steps + after <= last;
    if (PRODUCERS_FILL || defer || s.steps == 0) {
        multiply_chunks<F, WIDTH, NO_COPY>(acc, o, s, smem, steps, defer, lane);
        return steps;
    }
    int count = min(steps, s.steps);
    if (MAX_DEFERRED > 0) count = min(count, steps + after - last);
    if (FORMAT != HEAD_FORMAT && s.phase == HEAD) multiply_chunks<F, WIDTH, HEAD_FORMAT>(acc, o, s, smem, count, false, lane);
    else multiply_chunks<F, WIDTH, FORMAT>(acc, o, s, smem, count, false, lane);
    s.steps -= count;
    if (s.steps == 0) advance(s, smem, m.layers, lane);
    return count;
}

// Multiply `steps` chunks of a unit; `after` chunks follow. Lanes with t = 0 get the sums of rows g and g + 8 in both[0],
// and those of the second of two units in both[1].
template <int F>
__device__ inline void sum_unit(float2 (&both)[2], Operands& o, Stream& s, const Decoder& m, const Smem& smem, int width,
                                int steps, int after, int lane) {
    o.x = smem.x + o.chunk * CHUNK<F> + x_offset<F>(lane);
    o.x_sum = smem.x_sums + o.chunk * X_SUMS<F>;
    float acc[2][4] = {};
    while (steps > 0) {
        if (F == INT4 && width == 2) steps -= multiply_some<F, F == INT4 ? 2 : 1>(acc, o, s, m, smem, steps, after, lane);
        else steps -= multiply_some<F, 1>(acc, o, s, m, smem, steps, after, lane);
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

// Multiply this warp's chunks of a phase's matrix by x, and call done(unit, both, count) with the sums of each unit, or of two
// neighbours, that it has chunks of, and their number: see sum_unit. Returns the first and the last unit (or pair), counted
// from `first`, 16 bits each; 1 for none.
template <int F, typename Done>
__device__ inline int multiply_range(const Decoder& m, const Smem& smem, Stream& s, int& slot, int phase, int first, int width,
                                     Done done) {
    const int thread = thread_number();
    const int warp = thread / 32, lane = thread % 32, chunks = smem.plans[phase].chunks;
    const TileRange range = smem.ranges[warp * (HEAD + 1) + phase];
    const int begin = range.next_chunk - range.steps * TEAM_STRIDE<F> + chunks;
    int remaining = count_run_steps<F>(begin, range.to);
    Operands o = {smem.ring + slot * SLOT + lane, nullptr, nullptr, slot, 0, 0};
    float2 both[2];
    o.unit = range.unit & 0xffff, o.chunk = begin;
    int pair = (o.unit - first) >> (width - 1);
    const int start = pair;
    for (int to = range.to; to > 0; to -= chunks) {
        const int steps = count_steps<F>(o.chunk, to, chunks);
        remaining -= steps;
        sum_unit<F>(both, o, s, m, smem, width, steps, remaining, lane);
        done(o.unit, both, steps);
        o.unit += width;
        o.chunk -= chunks;
        ++pair;
    }
    slot = o.slot;
    return pair > start ? start | (pair - 1) << 16 : 1;
}

// Multiply this block's part of a matrix in slabs by the slab's x and add the sums to the residual: in fixed point, so that
// neither the order of the blocks nor that of their warps matters.
template <int F>
__device__ inline void add_products(const Decoder& m, const Smem& smem, Stream& s, int& slot, int phase) {
    mark(smem, X_READY);
    set_busy(smem, true);
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#if FLAGS_IN_DATA
    unsigned long long* sums = m.sums + (phase == DOWN ? HIDDEN : 0);
#else
    unsigned long long* sums = reinterpret_cast<unsigned long long*>(m.residual_fixed);
#endif
    multiply_range<F>(m, smem, s, slot, phase, 0, 1, [&](int unit, const float2(&both)[2], int chunks) {
        // All lanes of a row have its sum.
        if (t < 2)
            atomicAdd(sums + unit * UNIT + 8 * t + g,
                      (unsigned long long)to_fixed(t == 0 ? both[0].x : both[0].y) + (FLAGGED ? chunks : 0));
    });
    mark(smem, MULTIPLIED);
    set_busy(smem, false);
    mark(smem, SUMMED);
}

// The warps (bits) that have sums of a unit, or pair, where all lanes of each half of a warp ask for the same: lane w looks at
// warp w, so that it costs two votes and not two comparisons for every warp.
__device__ inline unsigned warps_with(const Smem& smem, int wanted, int lane) {
    const int span = lane < WARPS ? smem.spans[lane] : 1, low = span & 0xffff, high = span >> 16;
    unsigned found[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int unit = __shfl_sync(0xffffffffu, wanted, 16 * half);
        found[half] = __ballot_sync(0xffffffffu, low <= unit && unit <= high);
    }
    return lane < 16 ? found[0] : found[1];
}

// Multiply this block's units of a phase's matrix by x and call epilogue(unit, r, sum, valid, preloaded) for row r of each
// unit. A warp handles two units at a time; `valid` is false where there is no second one. `preloaded` is true for the
// block's row number threadIdx.x, whose epilogue's operands may have been loaded before.
template <int F, typename Epilogue>
__device__ inline void products(const Decoder& m, const Smem& smem, Stream& s, int& slot, int phase, Epilogue epilogue) {
    mark(smem, X_READY);
    set_busy(smem, true);
    const int thread = thread_number(), warp = thread / 32, lane = thread % 32;
    const int first = smem.plans[phase].first, last = smem.plans[phase].end;
    const int width = F == INT4 ? smem.plans[phase].width : 1, shift = width - 1;
    static_assert(SLOTS % 2 == 0, "the sums of a pair of units lie side by side");
    float* own = smem.sums + warp * (SLOTS * UNIT) + lane / 4;  // a unit's sums lie at its number modulo SLOTS
    const int span = multiply_range<F>(m, smem, s, slot, phase, first, width, [&](int unit, const float2(&both)[2], int) {
        if (lane % 4 != 0) return;
        float* sums = own + (unit - first) % SLOTS * UNIT;
        sums[0] = both[0].x;
        sums[8] = both[0].y;
        if (F == INT4 && width == 2) {  // each unit has its own
            sums[UNIT] = both[1].x;
            sums[UNIT + 8] = both[1].y;
        }
    });
    if (lane == 0) smem.spans[warp] = span;
    mark(smem, MULTIPLIED);
    set_busy(smem, false);
    sync_consumers(smem);
    mark(smem, SUMMED);
    for (int i = thread; i < (last - first + 1) / 2 * 2 * UNIT; i += THREADS) {
        const int at = min(i / UNIT, last - first - 1);
        const unsigned shares = warps_with(smem, at >> shift, lane);
        const float* sums = smem.sums + at % SLOTS * UNIT + i % UNIT;
        float value = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w)
            if (shares >> w & 1) value += sums[w * (SLOTS * UNIT)];
        epilogue(first + at, i % UNIT, value, i / UNIT < last - first, i == thread);
    }
}
