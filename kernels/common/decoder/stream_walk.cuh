// How a stream of weights goes from chunk to chunk, unit to unit and matrix to matrix. Included by the rings, after
// stream_cp_async.cuh or stream_tma.cuh.
#pragma once

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

// Fill slot `turn` of the ring with what comes next, and be ready for the one after it.
__device__ inline void fetch(Stream& s, const Decoder& m, const Room& room, int turn, int lane) {
    uint4* mine = room.ring + turn * SLOT + lane;
    if (s.here > 0) {
        if (FORMAT != HEAD_FORMAT && s.phase == HEAD) copy_next<HEAD_FORMAT>(s, room, mine, turn, lane);
        else copy_next<FORMAT>(s, room, mine, turn, lane);
        if (--s.here == 0) turn_over(s, room, m.layers, lane);
    }
    end_copies();
}

__device__ inline void begin_stream(Stream& s, const Decoder& m, const Room& room, int layer, int phase, int matrices) {
    s.layer = layer, s.phase = phase, s.left = matrices, s.owed = 0;
    open_matrix(s, room);
    if (s.here == 0) next_matrix(s, room, m.layers);
}
