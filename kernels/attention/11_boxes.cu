// attention 11, boxes: one thread copies boxes of tiles, blocks stay.
//
// Purpose  rung 9's 128 copying threads wait for every tile they start; the tensor memory accelerator takes one thread and
//          fills the ring ahead, across the queries too, as a block goes on to its next tile of them.
// Shapes   as rung 1, HEAD_DIM a width that wgmma has columns for: 64, 80, 96, 112, 128, 256.
// Bytes    4 HEAD_DIM read for each 64 GROUPS rows and each key that one of them sees.
// Launch   128 (GROUPS + 1) threads a block: a warpgroup whose first thread copies, and GROUPS that have 64 rows each. Rows
//          are PACK query heads that share keys, 64 GROUPS / PACK queries of each. As many blocks as SMs, which go
//          through the tiles of `together` units of PACK heads, then of the next, so that these keys and values stay in
//          L2; longest tiles first or last, shortest last of all. (64 GROUPS + 2 STAGES KEYS) rows of shared memory of
//          128 bytes for every 64 of HEAD_DIM, 1024-aligned.
// Macros   HEAD_DIM = 128: width of a head;
//          KEYS = 128: keys a tile;
//          STAGES = 2: tiles of keys and of values in the ring;
//          GROUPS = 2: warpgroups that multiply, 64 rows each;
//          PACK = 1: query heads of one key-value head whose rows a warpgroup packs together;
//          BF16 = 0: 1 for bfloat16 instead of FP16;
//          TURNS = 0: 1 lets one warpgroup at a time start products.
// Changed  from rung 9: copies by boxes, standing blocks, packed heads. Outputs are brought down to a new largest score only
//          where it is 2^8 times what they stand at: weights up to that lose nothing. TURNS 1 lets one warpgroup start
//          products at a time, after whom the next does.
#include "common/attention.cuh"
#include "common/ptx.cuh"

#if BF16
#define WGMMA(name) wgmma_##name##_bf16
#else
#define WGMMA(name) wgmma_##name##_f16
#endif

constexpr int ROWS = 64 * GROUPS, EACH = ROWS / PACK, THREADS = 128 * (GROUPS + 1);
constexpr int BLOCK = 64, BLOCKS = (HEAD_DIM + 63) / 64;  // columns whose rows of 128 bytes stand together
constexpr int TILE = KEYS * BLOCK * BLOCKS;

// A place of a ring and the parity of its barrier.
struct Place {
    int at = 0;
    unsigned parity = 0;
    __device__ void next() {
        if (++at == STAGES) at = 0, parity ^= 1;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_boxes(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                    const __grid_constant__ TensorMap v, Element* __restrict__ out, int n, int context, int start, int heads,
                    int kv_heads, int causal, int window, float scale, int together) {
    extern __shared__ __align__(1024) Element shared[];
    __shared__ volatile float settled[THREADS / 32];
    __shared__ unsigned long long keys_there[STAGES], keys_free[STAGES], values_there[STAGES], values_free[STAGES];
    __shared__ unsigned long long queries_there, queries_free;
    Element *queries = shared, *keys = queries + ROWS * BLOCK * BLOCKS, *values = keys + STAGES * TILE;
    const int lane = threadIdx.x % 32, rows = (n + EACH - 1) / EACH, sections = heads / PACK / together;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            mbarrier_init(keys_there + i, 1), mbarrier_init(keys_free + i, 4 * GROUPS);
            mbarrier_init(values_there + i, 1), mbarrier_init(values_free + i, 4 * GROUPS);
        }
        mbarrier_init(&queries_there, 1), mbarrier_init(&queries_free, 4 * GROUPS);
        warpgroup_shared_fence();
    }
    __syncthreads();

    // This block's piece of work number `round`, rounds going there and back.
    struct Work {
        int head, first, from, tiles;
    };
    const auto work_of = [&](int round) {
        const int i = round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        const int section = i / (together * rows), within = i % (together * rows), row = within / together;
        const int first = ((sections - 1 - section) % 2 ? row : rows - 1 - row) * EACH;
        const int from = seen_from(start + first, context, causal, window).first;
        const int to = seen_from(start + min(first + EACH, n) - 1, context, causal, window).last;
        return Work{(section * together + within % together) * PACK, first, from,
                    i >= sections * together * rows ? -1 : to > from ? (to - from + KEYS - 1) / KEYS : 0};
    };

    if (threadIdx.x < 128) {
        setmaxnreg_fewer<GROUPS == 2 ? 40 : 32>();
        if (threadIdx.x) return;
        Place place;
        unsigned parity = 1;
        for (int round = 0;; ++round) {
            const Work work = work_of(round);
            if (work.tiles < 0) return;
            if (work.tiles == 0) continue;
            mbarrier_wait(&queries_free, parity);
            parity ^= 1;
            mbarrier_expect(&queries_there, ROWS * BLOCK * BLOCKS * 2);
            for (int b = 0; b < BLOCKS; ++b)
                for (int p = 0; p < PACK; ++p)
                    tma_copy_box(queries + (b * ROWS + p * EACH) * BLOCK, &q, (work.head + p) * HEAD_DIM + b * BLOCK,
                                 work.first, &queries_there);
            mbarrier_arrive(&queries_there);
            const int column = work.head / (heads / kv_heads) * HEAD_DIM;
            for (int t = 0; t < work.tiles; ++t, place.next()) {
                mbarrier_wait(keys_free + place.at, place.parity ^ 1);
                mbarrier_expect(keys_there + place.at, TILE * 2);
                for (int b = 0; b < BLOCKS; ++b)
                    tma_copy_box(keys + place.at * TILE + b * KEYS * BLOCK, &k, column + b * BLOCK, work.from + t * KEYS,
                                 keys_there + place.at);
                mbarrier_arrive(keys_there + place.at);
                mbarrier_wait(values_free + place.at, place.parity ^ 1);
                mbarrier_expect(values_there + place.at, TILE * 2);
                for (int b = 0; b < BLOCKS; ++b)
                    tma_copy_box(values + place.at * TILE + b * KEYS * BLOCK, &v, column + b * BLOCK, work.from + t * KEYS,
                                 values_there + place.at);
                mbarrier_arrive(values_there + place.at);
            }
        }
    }

    setmaxnreg_more<GROUPS == 2 ? 232 : 160>();
    const int group = threadIdx.x / 128 - 1, row = threadIdx.x / 32 % 4 * 16 + lane / 4 + 64 * group;  // and + 8
    float o[HEAD_DIM / 2], s[KEYS / 2], most[2], sum[2], rescale[2];
    unsigned weights[KEYS / 4];
    Place for_keys, for_values;
    unsigned parity = 0;

    const auto take_turn = [&] {
        if (TURNS) warpgroup_wait_turn(1 + group, 256);
    };
    const auto pass_turn = [&] {
        if (TURNS) warpgroup_pass_turn(1 + (group + 1) % GROUPS, 256);
    };
    // Start the scores of the next tile, once its keys are there.
    const auto multiply_keys = [&] {
        mbarrier_wait(keys_there + for_keys.at, for_keys.parity);
        warpgroup_arrive();
        const unsigned long long rows = wgmma_columns(queries + 64 * group * BLOCK);
        const unsigned long long columns = wgmma_columns(keys + for_keys.at * TILE);
#pragma unroll
        for (int d = 0; d < HEAD_DIM; d += 16)  // in units of 16 bytes, of which a row of a block has 8
            WGMMA(shared)<KEYS>(s, rows + d / BLOCK * ROWS * 8 + d % BLOCK / 8, columns + d / BLOCK * KEYS * 8 + d % BLOCK / 8, d > 0);
        warpgroup_commit();
    };
    // Start adding the weighted values of the next tile.
    const auto multiply_values = [&] {
        mbarrier_wait(values_there + for_values.at, for_values.parity);
        warpgroup_arrive();
        const unsigned long long columns = wgmma_rows(values + for_values.at * TILE, KEYS * BLOCK * 2);
#pragma unroll
        for (int key = 0; key < KEYS; key += 16) WGMMA(rows)<HEAD_DIM>(o, weights + key / 4, columns + key * 8);
        warpgroup_commit();
    };
    const auto let_go = [&](unsigned long long* free, Place& place) {
        if (lane == 0) mbarrier_arrive(free + place.at);
        place.next();
    };
    const auto round_weights = [&] {
#pragma unroll
        for (int i = 0; i < KEYS / 4; ++i) weights[i] = rounded_pair(s[2 * i], s[2 * i + 1]);
    };

    if (TURNS && group == GROUPS - 1) pass_turn();
    for (int round = 0;; ++round) {
        const Work work = work_of(round);
        if (work.tiles < 0) return;
        // All rows of this warp see the keys [all_from, all_to).
        const int lowest = EACH % 16 ? work.first : work.first + (row - lane / 4) % EACH;
        const int highest = EACH % 16 ? work.first + EACH - 1 : lowest + 15;
        const int all_from = seen_from(start + highest, context, causal, window).first;
        const int all_to = seen_from(start + lowest, context, causal, window).last;
        // Scores to weights, still in FP32 and in place. Element c of a row is that of key lane % 4 * 2 + c of the tile.
        const auto weigh = [&](int t) {
            const int tile = work.from + t * KEYS;
            // The tiles at either end are looked through for their own side alone.
            if (tile < all_from)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int position = start + work.first + (row + 8 * half) % EACH;
                    const int before = seen_from(position, context, causal, window).first - tile - lane % 4 * 2;
#pragma unroll
                    for (int i = 0; i < KEYS / 4; ++i)
                        if (i / 2 * 8 + i % 2 < before) s[i / 2 * 4 + 2 * half + i % 2] = NOTHING;
                }
            if (tile + KEYS > all_to)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int position = start + work.first + (row + 8 * half) % EACH;
                    const int end = seen_from(position, context, causal, window).last - tile - lane % 4 * 2;
#pragma unroll
                    for (int i = 0; i < KEYS / 4; ++i)
                        if (i / 2 * 8 + i % 2 >= end) s[i / 2 * 4 + 2 * half + i % 2] = NOTHING;
                }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float* const mine = s + 2 * half;
                float raised = most[half], other = mine[1];  // in two, for neither to wait
#pragma unroll
                for (int i = 0; i < KEYS / 2; i += 4)
                    raised = fmaxf(raised, mine[i]), other = fmaxf(other, mine[i + 1]);
                raised = fmaxf(raised, other);
                raised = fmaxf(raised, __shfl_xor_sync(0xffffffffu, raised, 1));
                raised = fmaxf(raised, __shfl_xor_sync(0xffffffffu, raised, 2));
                rescale[half] = 1.0f;
                if ((raised - most[half]) * scale > 8.0f) {
                    rescale[half] = exp2_approx((most[half] - raised) * scale);
                    most[half] = raised;
                    sum[half] *= rescale[half];
                }
                const float base = most[half] == NOTHING ? 0.0f : most[half] * scale;  // who saw nothing weighs 0, not NaN
                other = 0.0f;
#pragma unroll
                for (int i = 0; i < KEYS / 2; i += 4) {
                    mine[i] = exp2_approx(fmaf(mine[i], scale, -base));
                    mine[i + 1] = exp2_approx(fmaf(mine[i + 1], scale, -base));
                    sum[half] += mine[i];
                    other += mine[i + 1];
                }
                sum[half] += other;
            }
        };

        most[0] = most[1] = NOTHING, sum[0] = sum[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; ++i) o[i] = 0.0f;
        if (work.tiles) {
            mbarrier_wait(&queries_there, parity);
            parity ^= 1;
            take_turn();
            multiply_keys();
            pass_turn();
            warpgroup_wait<0>();
            let_go(keys_free, for_keys);
            if (work.tiles == 1 && lane == 0) mbarrier_arrive(&queries_free);
            weigh(0);
            round_weights();
            for (int t = 1; t < work.tiles; ++t) {
                take_turn();
                multiply_keys();
                multiply_values();
                pass_turn();
                warpgroup_wait<1>();
                let_go(keys_free, for_keys);
                if (t == work.tiles - 1 && lane == 0) mbarrier_arrive(&queries_free);
                weigh(t);
                // A store that nobody reads: it needs all weights and stays in front of the wait. Without it the compiler
                // works the weights out after the wait, and nothing runs beside the products.
                if (lane == 0) settled[threadIdx.x / 32] = sum[0] + sum[1];
                warpgroup_wait<0>();
                let_go(values_free, for_values);
                round_weights();
                if (__any_sync(0xffffffffu, rescale[0] != 1.0f || rescale[1] != 1.0f))
#pragma unroll
                    for (int i = 0; i < HEAD_DIM / 2; ++i) o[i] *= rescale[i / 2 % 2];
            }
            take_turn();
            multiply_values();
            pass_turn();
            warpgroup_wait<0>();
            let_go(values_free, for_values);
        }

#pragma unroll
        for (int half = 0; half < 2; ++half) {
            sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
            sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
            const float by = inverse(sum[half]);
            const int position = work.first + (row + 8 * half) % EACH, head = work.head + (row + 8 * half) / EACH;
            if (position >= n) continue;
            unsigned* to = reinterpret_cast<unsigned*>(out + (position * (size_t)heads + head) * HEAD_DIM);
#pragma unroll
            for (int d = 0; d < HEAD_DIM; d += 8)
                to[d / 2 + lane % 4] = rounded_pair(o[d / 2 + 2 * half] * by, o[d / 2 + 2 * half + 1] * by);
        }
    }
}
