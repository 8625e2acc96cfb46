// Walk a stream of weights through the chunks of units, the units of a matrix, and the matrices of a token. A ring's header
// includes it after stream_cp_async.cuh or stream_tma.cuh.
#pragma once

// Advance to the next matrix that has work for this warp, if there is one.
__device__ inline void advance_matrix(Stream& s, const Smem& smem, int layers) {
    while (--s.left > 0) {
        if (s.phase == HEAD) {
            s.phase = QKV;
            s.layer = 0;
        } else if (s.phase == DOWN) {
            s.phase = ++s.layer < layers ? QKV : HEAD;
        } else {
            s.phase += s.phase == QKV ? 2 : 1;
        }
        open_matrix(s, smem);
        if (s.steps > 0) break;
    }
}

// Advance to the next unit that has work for this warp; false if this matrix has none.
template <int F>
__device__ inline bool next_unit_with_work(Stream& s, int lane) {
    for (s.to -= s.chunks; s.to > s.next_chunk; s.to -= s.chunks) {
        advance_unit<F>(s, lane);
        s.steps = count_steps<F>(s.next_chunk, s.to, s.chunks);
        s.next_chunk += s.steps * TEAM_STRIDE<F> - s.chunks;
        if (s.steps > 0) return true;
    }
    return false;
}

// Advance past the end of a unit: to the next unit or matrix.
__device__ inline void advance(Stream& s, const Smem& smem, int layers, int lane) {
    if (FORMAT != HEAD_FORMAT && s.phase == HEAD ? next_unit_with_work<HEAD_FORMAT>(s, lane)
                                                 : next_unit_with_work<FORMAT>(s, lane))
        return;
    advance_matrix(s, smem, layers);
}

// Start copying the next chunk into `slot` of the ring and advance the stream.
__device__ inline void fetch(Stream& s, const Decoder& m, const Smem& smem, int slot, int lane) {
    uint4* dst = smem.ring + slot * SLOT + lane;
    if (s.steps > 0) {
        if (FORMAT != HEAD_FORMAT && s.phase == HEAD) copy_next_chunk<HEAD_FORMAT>(s, smem, dst, slot, lane);
        else copy_next_chunk<FORMAT>(s, smem, dst, slot, lane);
        if (--s.steps == 0) advance(s, smem, m.layers, lane);
    }
    commit_copies();
}

// Start a stream of `matrices` matrices at a layer and phase.
__device__ inline void begin_stream(Stream& s, const Decoder& m, const Smem& smem, int layer, int phase, int matrices) {
    s.layer = layer, s.phase = phase, s.left = matrices, s.deferred = 0;
    open_matrix(s, smem);
    if (s.steps == 0) advance_matrix(s, smem, m.layers);
}
