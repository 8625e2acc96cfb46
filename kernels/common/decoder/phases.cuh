// Phases
#pragma once
#include "common/uniform.cuh"

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
