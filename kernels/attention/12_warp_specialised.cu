// attention 12, warp specialised: one warpgroup scores, two add values, two blocks share what is copied.
//
// Purpose  at 512 columns two warpgroups are full of outputs. In rung 10 they make the scores too, and wait for each other
//          twice a tile; here a third one does nothing else, with its queries in registers, a tile ahead of them. Keys
//          and values of 64 rows each are too much for L2's bandwidth: two blocks take the same ones, half of every copy
//          each, which the tensor memory accelerator delivers to both.
// Shapes   as rung 1, HEAD_DIM 512. SHARED_KV=1: v is k, and a tile serves both products.
// Bytes    4 HEAD_DIM read for each 64 CLUSTER rows and each key that one of them sees; half with SHARED_KV.
// Launch   384 threads a block: a warpgroup that scores, two that add 256 columns each, of whose first the first thread also
//          copies; clusters of CLUSTER blocks with 64 rows each: PACK query heads that share keys, 64 / PACK queries of
//          each. As many blocks as SMs, which go through the tiles as in rung 11. Three places of shared memory for 64
//          rows of 1024 bytes, and two tiles of weights of 8 KB, 1024-aligned.
// Macros   HEAD_DIM = 512: width of a head;
//          BF16 = 0: 1 for bfloat16 instead of FP16;
//          CLUSTER = 2: blocks that share what is copied;
//          PACK = 1: query heads of one key-value head whose rows a warpgroup packs together;
//          EARLY = 4: last steps of a tile's scores that come after the weights of the tile before are handed over;
//          SHARED_KV = 0: 1 where v is k: one array serves as both.
// Branch   from rung 10: roles, as above; copies, persistent blocks and packed heads as in rung 11. Weights of a tile are
//          handed over when the next one's scores but the last EARLY steps are made: their products come first.
#include "common/attention.cuh"
#include "common/ptx/cluster.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/warpgroup.cuh"
#include "common/ptx/wgmma/wide.cuh"

#if BF16
#define WGMMA(name) wgmma_##name##_bf16
#else
#define WGMMA(name) wgmma_##name##_f16
#endif
#if CLUSTER > 1
#define CLUSTER_DIMS __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTER_DIMS
#endif

constexpr int KEYS = 64, ROWS = 64, EACH = ROWS / PACK, THREADS = 384, HALF = HEAD_DIM / 2;
constexpr int BLOCK = 64, STEPS = HEAD_DIM / 16;  // columns of a swizzled block with rows of 128 bytes; products of a score
constexpr int SLOTS = 3, TILE = KEYS * HEAD_DIM;
constexpr int ARRIVALS = SHARED_KV ? 12 : 8;  // of warps of a block, until a slot is empty
constexpr int REGISTER_STEPS = STEPS - 4;  // products whose queries stay in registers; the last block's do not fit

extern "C" __global__ void __launch_bounds__(THREADS, 1) CLUSTER_DIMS
    attention_warp_specialised(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                    const __grid_constant__ TensorMap v, Element* __restrict__ out, int n, int context, int start, int heads,
                    int kv_heads, int causal, int window, float scale, int together) {
    extern __shared__ __align__(1024) Element shared[];
    __shared__ unsigned long long full[SLOTS], empty[SLOTS], p_full[2], p_empty[2];
    __shared__ float rescales[2][ROWS], inverses[2][ROWS];
    Element *ring = shared, *p_tiles = ring + SLOTS * TILE, *last = p_tiles + 2 * ROWS * KEYS;
#if CLUSTER > 1
    const int rank = cluster_rank();
#else
    const int rank = 0;
#endif
    const int lane = threadIdx.x % 32, role = threadIdx.x / 128, rows = (n + EACH * CLUSTER - 1) / (EACH * CLUSTER);
    const int sections = heads / PACK / together;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; ++i) mbarrier_init(full + i, 1), mbarrier_init(empty + i, ARRIVALS * CLUSTER);
        for (int i = 0; i < 2; ++i) mbarrier_init(p_full + i, 128), mbarrier_init(p_empty + i, 8);
        warpgroup_shared_fence();
    }
#if CLUSTER > 1
    cluster_wait();
#else
    __syncthreads();
#endif

    // This cluster's piece of work number `round`, rounds going there and back.
    struct Work {
        int head, first, from, tiles;
    };
    const auto work_at = [&](int round) {
        const int clusters = gridDim.x / CLUSTER, me = blockIdx.x / CLUSTER;
        const int i = round * clusters + (round % 2 ? clusters - 1 - me : me);
        const int section = i / (together * rows), within = i % (together * rows), row = within / together;
        const int all = ((sections - 1 - section) % 2 ? row : rows - 1 - row) * EACH * CLUSTER;
        const int from = seen_from(start + all, context, causal, window).first;
        const int to = seen_from(start + min(all + EACH * CLUSTER, n) - 1, context, causal, window).last;
        return Work{(section * together + within % together) * PACK, all + rank * EACH, from,
                    i >= sections * together * rows ? -1 : to > from ? (to - from + KEYS - 1) / KEYS : 0};
    };
    // Through the places go, of each piece of work, keys 0, queries, keys 1, values 0, keys 2, values 1 ... and the last
    // values. (SHARED_KV: keys 0, queries, keys 1, keys 2 ...) An item is waited for, and let go by ARRIVALS of each
    // block's warps.
    const auto keys_of = [](int t) { return SHARED_KV ? t + (t > 0) : 2 * t; };
    const auto values_of = [&](int t, int tiles) { return SHARED_KV ? keys_of(t) : min(2 * t + 3, 2 * tiles); };
    const auto items_of = [](int tiles) { return SHARED_KV ? tiles + 1 : 2 * tiles + 1; };
    const auto wait_for = [&](int item) { mbarrier_wait(full + item % SLOTS, item / SLOTS % 2); };
    const auto release = [&](int item, int arrivals) {
        for (int i = lane; i < arrivals * CLUSTER; i += 32)
#if CLUSTER > 1
            mbarrier_arrive_at(empty + item % SLOTS, i % CLUSTER);
#else
            mbarrier_arrive(empty + item % SLOTS);
#endif
    };

    if (role == 0) {
        setmaxnreg_more<184>();
        const int row = threadIdx.x / 32 % 4 * 16 + lane / 4;  // and + 8
        unsigned queries[REGISTER_STEPS][4];
        float s[KEYS / 2];
        int base = 0, count = 0;  // items and tiles before this piece of work
        for (int round = 0;; ++round) {
            const Work work = work_at(round);
            if (work.tiles < 0) break;
            if (work.tiles == 0) continue;
            // All rows of this warp see the keys [all_from, all_to).
            const int lowest = EACH % 16 ? work.first : work.first + (row - lane / 4) % EACH;
            const int highest = EACH % 16 ? work.first + EACH - 1 : lowest + 15;
            const int all_from = seen_from(start + highest, context, causal, window).first;
            const int all_to = seen_from(start + lowest, context, causal, window).last;
            float row_max[2] = {NOTHING, NOTHING}, row_sum[2] = {0.0f, 0.0f};
            wait_for(base + 1);
            const Element* const from = ring + (base + 1) % SLOTS * TILE;
#pragma unroll
            for (int i = 0; i < REGISTER_STEPS; ++i)
                load_matrix_x4(queries[i], from + (i / 4 * ROWS + threadIdx.x / 32 % 4 * 16 + lane % 16) * BLOCK +
                                               ((i % 4 * 2 + lane / 16) ^ lane % 8) * 8);
            warpgroup_wait_turn(1, 128);  // no warp multiplies by the earlier queries any more
#pragma unroll
            for (int i = threadIdx.x * 8; i < ROWS * BLOCK; i += 1024)
                *reinterpret_cast<uint4*>(last + i) = *reinterpret_cast<const uint4*>(from + REGISTER_STEPS / 4 * ROWS * BLOCK + i);
            warpgroup_shared_fence();
            warpgroup_wait_turn(1, 128);
            release(base + 1, ARRIVALS / 4);
            for (int t = 0; t < work.tiles; ++t) {
                const int item = base + keys_of(t), buffer = (count + t) % 2;
                wait_for(item);
                warpgroup_arrive();
                const unsigned long long columns = wgmma_columns(ring + item % SLOTS * TILE);
#pragma unroll
                for (int i = 0; i < STEPS; ++i) {  // in units of 16 bytes, of which a row of a block has 8
                    const unsigned long long at = columns + i / 4 * KEYS * 8 + i % 4 * 2;
                    if (i < REGISTER_STEPS)
                        WGMMA(registers)<KEYS>(s, queries[i], at, i > 0);
                    else
                        WGMMA(shared)<KEYS>(s, wgmma_columns(last) + i % 4 * 2, at, true);
                    if (i == STEPS - 1 - EARLY) warpgroup_commit();
                }
                warpgroup_commit();
                if (t) {
                    warpgroup_wait<1>();
                    mbarrier_arrive(p_full + (buffer ^ 1));
                }
                warpgroup_wait<0>();
                release(item, SHARED_KV ? 1 : 2);

                const int tile = work.from + t * KEYS;
                if (tile < all_from || tile + KEYS > all_to)
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const Seen seen = seen_from(start + work.first + (row + 8 * half) % EACH, context, causal, window);
                        const int before = seen.first - tile - lane % 4 * 2, end = seen.last - tile - lane % 4 * 2;
#pragma unroll
                        for (int i = 0; i < KEYS / 4; ++i) {
                            const int c = i / 2 * 8 + i % 2;
                            if (c < before || c >= end) s[i / 2 * 4 + 2 * half + i % 2] = NOTHING;
                        }
                    }
                // A tile of p has been used two tiles later.
                mbarrier_wait(p_empty + buffer, (count + t) / 2 % 2 ^ 1);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float* const scores = s + 2 * half;
                    float new_max = row_max[half], another = scores[1], rescale = 1.0f;  // two independent chains
#pragma unroll
                    for (int i = 0; i < KEYS / 2; i += 4)
                        new_max = fmaxf(new_max, scores[i]), another = fmaxf(another, scores[i + 1]);
                    new_max = fmaxf(new_max, another);
                    new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 1));
                    new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 2));
                    if ((new_max - row_max[half]) * scale > 8.0f) {
                        rescale = exp2_approx((row_max[half] - new_max) * scale);
                        row_max[half] = new_max;
                        row_sum[half] *= rescale;
                    }
                    const float shift = row_max[half] == NOTHING ? 0.0f : row_max[half] * scale;  // a row without visible keys gets p = 0
                    Element* const to = p_tiles + (buffer * ROWS + row + 8 * half) * KEYS + lane % 4 * 2;
                    another = 0.0f;
#pragma unroll
                    for (int i = 0; i < KEYS / 8; ++i) {
                        const float one = exp2_approx(fmaf(scores[4 * i], scale, -shift));
                        const float other = exp2_approx(fmaf(scores[4 * i + 1], scale, -shift));
                        row_sum[half] += one, another += other;
                        *reinterpret_cast<unsigned*>(to + (i ^ row % 8) * 8) = rounded_pair(one, other);
                    }
                    row_sum[half] += another;
                    if (lane % 4 == 0) rescales[buffer][row + 8 * half] = rescale;
                }
                if (t == work.tiles - 1) {
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        row_sum[half] += __shfl_xor_sync(0xffffffffu, row_sum[half], 1);
                        row_sum[half] += __shfl_xor_sync(0xffffffffu, row_sum[half], 2);
                        if (lane % 4 == 0) inverses[buffer][row + 8 * half] = inverse(row_sum[half]);
                    }
                }
                warpgroup_shared_fence();
            }
            // A parity distinguishes neighbouring phases only: wait for the copy in a slot before the next one is waited for,
            // and do not let the next queries be loaded before p of this tile has been handed over.
            if (!SHARED_KV) wait_for(base + 2 * work.tiles - 1), wait_for(base + 2 * work.tiles);
            mbarrier_arrive(p_full + (count + work.tiles - 1) % 2);
            base += items_of(work.tiles), count += work.tiles;
        }
    } else {
        setmaxnreg_fewer<160>();
        const int half = role - 1, row = threadIdx.x / 32 % 4 * 16 + lane / 4;  // and + 8
        float acc_o[HALF / 2];
        int base = 0, count = 0;
        // The next item to copy: `at` is its number in the whole launch, `part` in its piece of work.
        int at = 0, part = 0, ahead = 0;
        Work next = work_at(0);
        const auto load_until = [&](int last) {
            if (threadIdx.x != 128) return;
            for (; at <= last; ++at) {
                while (next.tiles == 0) next = work_at(++ahead);
                if (next.tiles < 0) return;
                unsigned long long* const barrier = full + at % SLOTS;
                Element* const to = ring + at % SLOTS * TILE;
                mbarrier_wait(empty + at % SLOTS, at / SLOTS % 2 ^ 1);
                mbarrier_expect(barrier, TILE * 2);
                if (part == 1)
#pragma unroll 1
                    for (int b = 0; b < HEAD_DIM / BLOCK; ++b)
#pragma unroll 1
                        for (int h = 0; h < PACK; ++h)
                            tma_copy_box(to + (b * ROWS + h * EACH) * BLOCK, &q, (next.head + h) * HEAD_DIM + b * BLOCK,
                                         next.first, barrier);
                else {  // keys or values, of whose blocks this one of the cluster copies its share for all
                    const bool values = !SHARED_KV && (part == 2 * next.tiles || part % 2 && part > 1);
                    const int column = next.head / (heads / kv_heads) * HEAD_DIM;
                    const int tile = SHARED_KV ? max(part - 1, 0) : !values ? part / 2
                                     : part == 2 * next.tiles ? next.tiles - 1 : part / 2 - 1;
                    const int key = next.from + tile * KEYS;
#pragma unroll 1
                    for (int b = HEAD_DIM / BLOCK / CLUSTER * rank; b < HEAD_DIM / BLOCK / CLUSTER * (rank + 1); ++b)
#if CLUSTER > 1
                        tma_copy_box_to((1 << CLUSTER) - 1, to + b * KEYS * BLOCK, values ? &v : &k, column + b * BLOCK, key, barrier);
#else
                        tma_copy_box(to + b * KEYS * BLOCK, values ? &v : &k, column + b * BLOCK, key, barrier);
#endif
                }
                mbarrier_arrive(barrier);
                if (++part == items_of(next.tiles)) part = 0, next = work_at(++ahead);
            }
        };
        for (int round = 0;; ++round) {
            const Work work = work_at(round);
            if (work.tiles < 0) break;
            float inv_sum[2] = {0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < HALF / 2; ++i) acc_o[i] = 0.0f;
            for (int t = 0; t < work.tiles; ++t) {
                // A slot is empty again three items later; of those in use, the last but one soon will be.
                const int item = base + values_of(t, work.tiles), buffer = (count + t) % 2;
                load_until(SHARED_KV ? base + t + 2 : item + 1);  // what the next scores need is among it
                __syncwarp();
                mbarrier_wait(p_full + buffer, (count + t) / 2 % 2);
                const float rescale[2] = {rescales[buffer][row], rescales[buffer][row + 8]};
                if (__any_sync(0xffffffffu, rescale[0] != 1.0f || rescale[1] != 1.0f))
#pragma unroll
                    for (int i = 0; i < HALF / 2; ++i) acc_o[i] *= rescale[i / 2 % 2];
                wait_for(item);
                warpgroup_arrive();
                const unsigned long long rows = wgmma_columns(p_tiles + buffer * ROWS * KEYS);
                const unsigned long long columns = wgmma_rows(ring + item % SLOTS * TILE + half * HALF * KEYS, KEYS * BLOCK * 2);
#pragma unroll
                for (int key = 0; key < KEYS; key += 16) WGMMA(shared_rows)<HALF>(acc_o, rows + key / 8, columns + key * 8);
                warpgroup_commit();
                load_until(item + 2);
                __syncwarp();
                warpgroup_wait<0>();
                release(item, 1);
                if (t == work.tiles - 1) inv_sum[0] = inverses[buffer][row], inv_sum[1] = inverses[buffer][row + 8];
                __syncwarp();
                if (lane == 0) mbarrier_arrive(p_empty + buffer);
            }
            if (work.tiles) base += items_of(work.tiles), count += work.tiles;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int position = work.first + (row + 8 * i) % EACH, head = work.head + (row + 8 * i) / EACH;
                if (position >= n) continue;
                unsigned* to = reinterpret_cast<unsigned*>(out + (position * (size_t)heads + head) * HEAD_DIM + half * HALF);
#pragma unroll
                for (int d = 0; d < HALF; d += 8)
                    to[d / 2 + lane % 4] = rounded_pair(acc_o[d / 2 + 2 * i] * inv_sum[i], acc_o[d / 2 + 2 * i + 1] * inv_sum[i]);
            }
        }
    }
#if CLUSTER > 1
    cluster_wait();  // stay until the other block's copies and arrivals have come
#endif
}
