// Run the phases of a layer and the head: prologue, products, epilogue.
#pragma once
#include "common/decoder/timeline.cuh"
#include "common/ptx/cache_hints.cuh"
#include "common/uniform.cuh"

// Prefetch into L2 what the next phase reads and no block still writes: keys and values for ATTEND, and, by the last block,
// the weights of the next RMSNorm.
__device__ inline void prefetch_next_phase(const Decoder& m, const KvSplit& split, int layer, int phase, int pos) {
    if (phase == DOWN && layer + 1 < m.layers) prefetch_kv(m, split, layer + 1, pos);
    if ((phase == ATTEND || phase == DOWN) && blockIdx.x == gridDim.x - 1)
        for (int k = 64 * threadIdx.x; k < m.hidden; k += 64 * THREADS)
            prefetch_l2(m.norms + (size_t)(2 * layer + (phase == ATTEND ? 1 : 2)) * m.hidden + k);
}

// The operands of a row's epilogue: its bias, cosine and sine (QKV), or the residual (OUT, DOWN). The bias stays a half until
// it is used, because converting it waits for its load.
struct RowOperands {
    __half bias;
    float2 cos_sin;
    float residual;
};

__device__ inline RowOperands load_epilogue(const Decoder& m, int layer, int phase, int pos, int unit, int r) {
    RowOperands operands = {__half(), make_float2(0.0f, 0.0f), 0.0f};
    if (phase == QKV) {
        const int i = unit % (HEAD_DIM / UNIT) * 8 + r % 8;
        operands.bias = m.biases[(size_t)layer * (m.heads + 2 * m.kv_heads) * HEAD_DIM + unit * UNIT + r];
        operands.cos_sin = m.rotary[(size_t)pos * (HEAD_DIM / 2) + i];
    } else if (!SPLIT_K && phase != GATE_UP) {
        operands.residual = __ldcg(m.residual + unit * UNIT + r);
    }
    return operands;
}

__device__ inline void store_inner(const Decoder& m, int k, __half v) {
#if FLAGS_IN_DATA
    store_flagged(m, handed(m, INNER_AT) + x_index<FORMAT>(k), v);
#else
    m.inner[x_index<FORMAT>(k)] = v;
#endif
}

// Finish and store a row. QKV: bias and RoPE, then a query, key or value. OUT, DOWN: added to the residual. GATE_UP:
// SiLU(gate) times up.
__device__ inline void store_row(const Decoder& m, int layer, int phase, int pos, int unit, int r, float value,
                                 const RowOperands& operands, bool valid) {
    float other = 0.0f;
    if (phase == QKV) value += __half2float(operands.bias);
    if (phase == QKV || phase == GATE_UP) other = __shfl_xor_sync(0xffffffffu, value, 8);
    if (!valid) return;
    if (phase == QKV) {
        constexpr int UNITS = HEAD_DIM / UNIT;
        const int head = unit / UNITS, d = unit % UNITS * 8 + r % 8 + r / 8 * (HEAD_DIM / 2);
        if (head < m.heads + m.kv_heads)
            value = value * operands.cos_sin.x + (r < 8 ? -other : other) * operands.cos_sin.y;
        const size_t row = ((size_t)layer * m.capacity + pos) * m.kv_heads;
        __half* to = m.queries + head * HEAD_DIM;
        if (head >= m.heads) to = m.cache_k + (row + head - m.heads) * HEAD_DIM;
        if (head >= m.heads + m.kv_heads) to = m.cache_v + (row + head - m.heads - m.kv_heads) * HEAD_DIM;
#if FLAGS_IN_DATA
        store_flagged(m, handed(m, QUERIES_AT) + head * HEAD_DIM + d, __float2half(value));  // at NEWEST_AT the others
        if (head < m.heads) return;
#endif
        to[d] = __float2half(value);
    } else if (SPLIT_K || phase == GATE_UP) {
        if (r < 8) store_inner(m, unit * 8 + r, __float2half(__fdividef(value, 1.0f + __expf(-value)) * other));
    } else {
        m.residual[unit * UNIT + r] = value + operands.residual;
    }
}

// Run a phase of a layer for the token at position `pos`. `slot` is the ring's next slot to read.
__device__ inline void run_phase(const Decoder& m, const Smem& smem, const KvSplit& split, Stream& s, int& slot, int layer,
                                 int phase, int pos) {
    mark(smem, BEGIN, 8 * layer + phase);
    if (phase == ATTEND) {
        attend(m, smem, split, layer, pos);
        mark(smem, END);
        return;
    }
    if (SPLIT_K && (phase == OUT || phase == DOWN)) {
        if (phase == OUT) load_attention<FORMAT>(m, smem, split.splits);
        else load_mlp_inner<FORMAT>(m, smem);
        add_products<FORMAT>(m, smem, s, slot, phase);
        mark(smem, END);
        return;
    }
    const int first = smem.plans[phase].first, rows = (smem.plans[phase].end - first) * UNIT;
    RowOperands first_operands = {__half(), make_float2(0.0f, 0.0f), 0.0f};
    if (threadIdx.x < rows)
        first_operands = load_epilogue(m, layer, phase, pos, first + threadIdx.x / UNIT, threadIdx.x % UNIT);
    // The first warp may have split here, and ptxas 13.0 has merged this test with those of the phase below: without this its
    // halves went through a prologue's shuffles and barriers one after the other.
    __syncwarp();
    if (!SPLIT_K && phase == OUT) {
        load_attention<FORMAT>(m, smem, split.splits);
    } else if (!SPLIT_K && phase == DOWN) {
        load_mlp_inner<FORMAT>(m, smem);
    } else {
        int token = -1;
        if (phase == QKV && layer == 0) {
            token = best_candidate(m, smem);
            if (blockIdx.x == 0 && threadIdx.x == 0) m.tokens[pos] = token;
        }
        load_rmsnorm<FORMAT>(m, smem, 2 * layer + (phase == GATE_UP), token);
    }
    products<FORMAT>(m, smem, s, slot, phase, [&](int unit, int r, float value, bool valid, bool preloaded) {
        const RowOperands operands = preloaded ? first_operands : load_epilogue(m, layer, phase, pos, unit, r);
        store_row(m, layer, phase, pos, unit, r, value, operands, valid);
    });
    mark(smem, END);
}

// Compute the logits and this block's candidate for the token at position `pos`: the largest logit, or with an inverse
// temperature above 0 the largest logit times it plus Gumbel noise, which samples tokens with their softmax probabilities.
__device__ inline void run_head(const Decoder& m, const Smem& smem, Stream& s, int& slot, int pos) {
    mark(smem, BEGIN, 8 * m.layers + HEAD);
    load_rmsnorm<HEAD_FORMAT>(m, smem, 2 * m.layers, -1);
    Candidate best = {__int_as_float(0xff800000), 0x7fffffff};
    products<HEAD_FORMAT>(m, smem, s, slot, HEAD, [&](int unit, int r, float value, bool valid, bool) {
        if (!valid) return;
        const int index = unit * UNIT + r;
        if (m.softcap > 0.0f) value = m.softcap * tanhf(value / m.softcap);
        m.logits[index] = value;
        if (m.inverse_temperature > 0.0f)
            value = value * m.inverse_temperature - __logf(-__logf(uniform(m.seed, pos, index)));
        if (value > best.value || (value == best.value && index < best.index)) best = {value, index};
    });
    sync_consumers(smem);  // the sums have been read; all threads' candidates reuse their memory
    Candidate* all = reinterpret_cast<Candidate*>(smem.sums);
    all[threadIdx.x] = best;
    sync_consumers(smem);
    if (threadIdx.x >= 32) return;
    for (int i = thread_number(); i < THREADS; i += 32)
        if (all[i].value > best.value || (all[i].value == best.value && all[i].index < best.index)) best = all[i];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const float value = __shfl_xor_sync(0xffffffffu, best.value, offset);
        const int index = __shfl_xor_sync(0xffffffffu, best.index, offset);
        if (value > best.value || (value == best.value && index < best.index)) best = {value, index};
    }
    if (threadIdx.x == 0) m.candidates[blockIdx.x] = best;
    mark(smem, END);
    mark_time(smem);
}
