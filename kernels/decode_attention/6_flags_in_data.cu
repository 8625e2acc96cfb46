// decode_attention 6, flags in data: parts of the context say themselves that they are there.
//
// Purpose  in rung 5 a block writes its part, waits until the others can see it, then counts itself in, which is a trip to L2;
//          the last one to arrive then reads all parts, which is another. A part that says that it is there wants neither:
//          the block that merges reads until it is.
// Shapes   as rung 5.
// Bytes    as rung 5, and each part is cleared again.
// Launch   as rung 5. `flagged`: heads splits (HEAD_DIM + 2) words, zero before and after.
// Macros   THREADS = 256: threads a block;
//          GROUP = 4: query heads that a block handles together, at most 8;
//          KEYS = 32: keys that a warp takes at a time, a multiple of 16;
//          MERGE = 1: cost of merging a part of a head, in keys read; 0: none, so that all splits are used;
//          HEAD_DIM = 128: width of a head;
//          BF16 = 0: 1 for bfloat16 instead of FP16.
// Changed  a number of a part is handed on with its bits turned over, so that a zero is none: all bits set would
//          be a NaN that no instruction makes. The last of a head's blocks merges: it waits for blocks of lower
//          numbers, which started no later.
#include "common/attention.cuh"
#include "common/ptx/cache_hints.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/slabs.cuh"

static_assert(GROUP <= 8 && HEAD_DIM <= 256 && KEYS % 16 == 0);
constexpr int WARPS = THREADS / 32;
constexpr int PASS = HEAD_DIM < 128 ? HEAD_DIM : 128;  // columns of outputs that shared memory has at a time

__device__ inline void multiply(float* d, const unsigned* a, const unsigned* b) {
#if BF16
    mma_m16n8k16_bf16(d, a, b);
#else
    mma_m16n8k16_f16(d, a, b);
#endif
}

// A row is dealt out to LANES lanes, eight neighbours at a time to each; of what is left each gets four, then two. A lane
// holds them as words of two: word w starts at this column.
template <int LANES>
__device__ inline int column_of(int w, int lane) {
    constexpr int EIGHTS = HEAD_DIM / (8 * LANES) * 4, FOURS = HEAD_DIM / (4 * LANES) * 2;  // words before fours, twos
    if (w < EIGHTS) return (w / 4 * LANES + lane) * 8 + w % 4 * 2;
    if (w < FOURS) return 2 * LANES * EIGHTS + lane * 4 + w % 2 * 2;
    return 2 * LANES * FOURS + lane * 2;
}

template <int LANES>
__device__ inline void load_row(unsigned* words, const Element* row, int lane) {
    constexpr int EIGHTS = HEAD_DIM / (8 * LANES) * 4, FOURS = HEAD_DIM / (4 * LANES) * 2, ALL = HEAD_DIM / (2 * LANES);
#pragma unroll
    for (int w = 0; w < EIGHTS; w += 4) {
        const uint4 eight = load_streaming(reinterpret_cast<const uint4*>(row + column_of<LANES>(w, lane)));
        words[w] = eight.x, words[w + 1] = eight.y, words[w + 2] = eight.z, words[w + 3] = eight.w;
    }
    if constexpr (FOURS > EIGHTS) {
        const uint2 four = load_streaming(reinterpret_cast<const uint2*>(row + column_of<LANES>(EIGHTS, lane)));
        words[EIGHTS] = four.x, words[EIGHTS + 1] = four.y;
    }
    if constexpr (ALL > FOURS)
        words[FOURS] = load_streaming(reinterpret_cast<const unsigned*>(row + column_of<LANES>(FOURS, lane)));
}

// Parts worth making of so many keys: a block reads keys / parts of them, and the one that merges reads parts times
// GROUP rows as long as a key; the sum is least at the root of keys / GROUP.
__device__ inline int parts_of(int keys, int most) {
    if (MERGE == 0) return most;
    return min(most, int(sqrtf(float(keys) / (GROUP * MERGE))) + 1);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    decode_attention_flagged(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                           Element* __restrict__ out, const int* __restrict__ length, int capacity, int heads,
                           int kv_heads, int window, float scale, unsigned* flagged) {
    __shared__ __align__(16) unsigned queries[HEAD_DIM / 8][32];  // [word][lane]
    __shared__ __align__(16) float outputs[GROUP][WARPS][PASS];
    __shared__ __align__(8) Part parts[GROUP][WARPS];
    const int last = min(*length, capacity) - 1;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = heads / kv_heads;
    const int blocks = (group + GROUP - 1) / GROUP, kv_head = blockIdx.y / blocks;
    const int head = kv_head * group + blockIdx.y % blocks * GROUP, count = min(GROUP, (kv_head + 1) * group - head);
    const size_t stride = kv_heads * (size_t)HEAD_DIM;
    // Of mma's operands, g is the row of the first and the column of the second, t which of four shares of k.
    const int g = lane / 4, t = lane % 4;
    if (warp == 0) {
        unsigned query[HEAD_DIM / 8] = {};
        if (g < count) load_row<4>(query, q + (head + g) * HEAD_DIM, t);
#pragma unroll
        for (int w = 0; w < HEAD_DIM / 8; ++w) queries[w][lane] = query[w];
    }
    k += kv_head * HEAD_DIM;
    v += kv_head * HEAD_DIM;

    const Seen seen = seen_from(last, last + 1, true, window);
    const int used = parts_of(seen.last - seen.first, gridDim.x);
    if (blockIdx.x >= used) return;
    unsigned keys[KEYS / 8][HEAD_DIM / 8], values[KEYS / 4][HEAD_DIM / 16];
    // Keys from seen.last on are read as the last one: their weights are 0.
    const auto load_keys = [&](int tile) {
#pragma unroll
        for (int i = 0; i < KEYS / 8; ++i) load_row<4>(keys[i], k + min(tile + 8 * i + g, seen.last - 1) * stride, t);
    };
    const auto load_values = [&](int tile) {
#pragma unroll
        for (int i = 0; i < KEYS / 4; ++i)
            load_row<8>(values[i], v + min(tile + i / 2 * 8 + 2 * t + i % 2, seen.last - 1) * stride, g);
    };
    // Tiles are dealt out block by block, then warp by warp: the warps' numbers of tiles differ by one at most.
    const int step = WARPS * used * KEYS;
    int tile = seen.first + (warp * used + blockIdx.x) * KEYS;
    if (tile < seen.last) {
        load_keys(tile);
        load_values(tile);
    }
    float acc_o[HEAD_DIM / 16][4] = {}, row_max = NOTHING, row_sum = 0.0f;
    __syncthreads();  // queries are there
#pragma unroll 1
    for (; tile < seen.last; tile += step) {
        float s[KEYS / 8][4] = {};
#pragma unroll
        for (int w = 0; w < HEAD_DIM / 8; w += 4) {
            unsigned query[4] = {};
            if (w + 4 <= HEAD_DIM / 8) load_matrix_x4(query, queries[w] + lane * 4);
            else load_matrix_x2(query, queries[w] + lane % 16 * 4);
#pragma unroll
            for (int j = 0; j < 4 && w + j < HEAD_DIM / 8; j += 2) {
                const unsigned a[4] = {query[j], 0, query[j + 1], 0};  // rows 8 to 15 are unused
#pragma unroll
                for (int i = 0; i < KEYS / 8; ++i) multiply(s[i], a, keys[i] + w + j);
            }
        }
        if (tile + step < seen.last) load_keys(tile + step);

        float new_max = row_max;
#pragma unroll
        for (int i = 0; i < KEYS / 8; ++i)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                s[i][e] = tile + i * 8 + t * 2 + e < seen.last ? s[i][e] * scale : NOTHING;
                new_max = fmaxf(new_max, s[i][e]);
            }
        new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 1));
        new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 2));
        const float base = new_max == NOTHING ? 0.0f : new_max;
        if (__any_sync(0xffffffffu, new_max != row_max)) {
            const float rescale = exp2_approx(row_max - base);
            const float even = __shfl_sync(0xffffffffu, rescale, t * 8);  // of head 2 t, whose outputs this lane has
            const float odd = __shfl_sync(0xffffffffu, rescale, t * 8 + 4);
            row_sum *= rescale;
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 4; ++i) acc_o[i / 4][i % 4] *= i % 2 ? odd : even;
        }
        row_max = new_max;
        unsigned p[KEYS / 8];
#pragma unroll
        for (int i = 0; i < KEYS / 8; ++i) {
            const float even = exp2_approx(s[i][0] - base), odd = exp2_approx(s[i][1] - base);
            row_sum += even + odd;
            p[i] = rounded_pair(even, odd);
        }
        // Outputs transposed, as in rung 4. Rows g and g + 8 are the two columns of a word: of two keys' words the low
        // halves make a pair of neighbours in k for one row, the high halves for the other.
#pragma unroll
        for (int i = 0; i < KEYS / 4; i += 4)
#pragma unroll
            for (int w = 0; w < HEAD_DIM / 16; ++w) {
                const unsigned a[4] = {__byte_perm(values[i][w], values[i + 1][w], 0x5410),
                                       __byte_perm(values[i][w], values[i + 1][w], 0x7632),
                                       __byte_perm(values[i + 2][w], values[i + 3][w], 0x5410),
                                       __byte_perm(values[i + 2][w], values[i + 3][w], 0x7632)};
                multiply(acc_o[w], a, p + i / 2);
            }
        if (tile + step < seen.last) load_values(tile + step);
    }
    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 1);
    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 2);
    if (t == 0 && g < GROUP) parts[g][warp] = {row_max, row_sum};

    // The block's warps as one part, 128 columns at a time.
    const size_t first_part = head * (size_t)gridDim.x;  // of the block's first head
    unsigned long long* const all_parts =
        reinterpret_cast<unsigned long long*>(flagged + heads * (size_t)gridDim.x * HEAD_DIM);
#pragma unroll
    for (int first = 0; first < HEAD_DIM; first += PASS) {
#pragma unroll
        for (int w = first / 16; w < (first + PASS) / 16 && w < HEAD_DIM / 16; ++w)
#pragma unroll
            for (int odd = 0; odd < 2; ++odd)
                if (2 * t + odd < GROUP)
                    *reinterpret_cast<float2*>(&outputs[2 * t + odd][warp][column_of<8>(w, g) - first]) =
                        make_float2(acc_o[w][odd], acc_o[w][odd + 2]);
        __syncthreads();
        constexpr int COLUMNS = SLAB<PASS>, SLABS = (PASS + COLUMNS - 1) / COLUMNS;
        for (int i = warp; i < count * SLABS; i += WARPS) {
            const int h = i / SLABS, d = first + i % SLABS * COLUMNS + lane * 4;
            const size_t part = first_part + h * (size_t)gridDim.x + blockIdx.x;
            const Slab merged = merge_slab<PASS>(i % SLABS * COLUMNS, outputs[h][0], parts[h], WARPS);
            if (lane < COLUMNS / 4 && d < HEAD_DIM)
                store_flagged(reinterpret_cast<uint4*>(flagged + part * HEAD_DIM + d), merged.output);
            if (lane == 0 && d == 0) store_flagged(all_parts + part, merged.part);
        }
        if (first + PASS < HEAD_DIM) __syncthreads();  // these columns have been read
    }
    if (blockIdx.x + 1 < used) return;
    constexpr int COLUMNS = SLAB<HEAD_DIM>, SLABS = (HEAD_DIM + COLUMNS - 1) / COLUMNS;
    for (int i = warp; i < count * SLABS; i += WARPS) {
        const int h = i / SLABS, d = i % SLABS * COLUMNS + lane * 4;
        const size_t first_of_head = first_part + h * (size_t)gridDim.x;
        const Slab merged =
            merge_flagged_slab<HEAD_DIM>(i % SLABS * COLUMNS, flagged + first_of_head * HEAD_DIM, all_parts + first_of_head, used);
        const float by = inverse(merged.part.row_sum);
        if (lane < COLUMNS / 4 && d < HEAD_DIM)
            *reinterpret_cast<uint2*>(out + (head + h) * HEAD_DIM + d) =
                make_uint2(rounded_pair(merged.output.x * by, merged.output.y * by),
                           rounded_pair(merged.output.z * by, merged.output.w * by));
    }
    __syncthreads();  // all parts have been read
    for (int h = 0; h < count; ++h) {  // as the next launch expects them
        const size_t from = first_part + h * (size_t)gridDim.x;
        for (int i = threadIdx.x; i < used * (HEAD_DIM / 4); i += THREADS)
            reinterpret_cast<uint4*>(flagged + from * HEAD_DIM)[i] = make_uint4(0, 0, 0, 0);
        for (int i = threadIdx.x; i < used; i += THREADS) all_parts[from + i] = 0;
    }
}
