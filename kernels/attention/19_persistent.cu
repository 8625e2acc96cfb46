// attention 19, persistent blocks: a block goes from tile to tile of queries, and copies run ahead across them.
//
// Purpose  in rung 18 a block's first tiles of keys arrive while nothing is multiplied, and its outputs leave while nothing
//          arrives. Here one thread fills the ring for the block's next queries while its last outputs are stored.
// Shapes   as rung 9.
// Bytes    as rung 9.
// Launch   384 threads a block, as many blocks as SMs: they go through the tiles of `together` heads, then of the next, so
//          that these keys and values stay in L2; longest tiles first or last, shortest last of all. Dynamic shared memory
//          as rung 9.
// Macros   HEAD_DIM = 128: width of a head;
//          KEYS = 128: keys a tile;
//          STAGES = 2: tiles of keys and of values in the ring.
// Changed  from rung 18: a loop over tiles of queries around all else, dealt there and back. Queries have an empty barrier, too:
//          the next ones are copied once the tile before has no scores to come.
#include "common/attention.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/warpgroup.cuh"
#include "common/ptx/wgmma/wide.cuh"

constexpr int ROWS = 128, THREADS = 384;
constexpr int BLOCK = 64, BLOCKS = HEAD_DIM / 64;  // columns of a swizzled block with rows of 128 bytes
constexpr int TILE = KEYS * BLOCK * BLOCKS;

// A slot of a ring and the parity of its barrier.
struct RingSlot {
    int index = 0;
    unsigned parity = 0;
    __device__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_persistent(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                    const __grid_constant__ TensorMap v, Element* __restrict__ out, int n, int context, int start, int heads,
                    int kv_heads, int causal, int window, float scale, int together) {
    extern __shared__ __align__(1024) Element shared[];
    __shared__ volatile float ordered[THREADS / 32];
    __shared__ unsigned long long k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
    __shared__ unsigned long long q_full, q_empty;
    Element *queries = shared, *keys = queries + ROWS * BLOCK * BLOCKS, *values = keys + STAGES * TILE;
    const int lane = threadIdx.x % 32, rows = (n + ROWS - 1) / ROWS, sections = heads / together;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            mbarrier_init(k_full + i, 1), mbarrier_init(k_empty + i, 8);
            mbarrier_init(v_full + i, 1), mbarrier_init(v_empty + i, 8);
        }
        mbarrier_init(&q_full, 1), mbarrier_init(&q_empty, 8);
        warpgroup_shared_fence();
    }
    __syncthreads();

    // This block's piece of work number `round`, rounds going there and back.
    struct Work {
        int head, first, from, tiles;
    };
    const auto work_at = [&](int round) {
        const int i = round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        const int section = i / (together * rows), within = i % (together * rows), row = within / together;
        const int first = ((sections - 1 - section) % 2 ? row : rows - 1 - row) * ROWS;
        const int from = seen_from(start + first, context, causal, window).first;
        const int to = seen_from(start + min(first + ROWS, n) - 1, context, causal, window).last;
        return Work{section * together + within % together, first, from,
                    i >= sections * together * rows ? -1 : to > from ? (to - from + KEYS - 1) / KEYS : 0};
    };

    if (threadIdx.x < 128) {
        setmaxnreg_fewer<40>();
        if (threadIdx.x) return;
        RingSlot slot;
        unsigned parity = 1;
        for (int round = 0;; ++round) {
            const Work work = work_at(round);
            if (work.tiles < 0) return;
            if (work.tiles == 0) continue;
            mbarrier_wait(&q_empty, parity);
            parity ^= 1;
            mbarrier_expect(&q_full, ROWS * BLOCK * BLOCKS * 2);
            for (int b = 0; b < BLOCKS; ++b)
                tma_copy_box(queries + b * ROWS * BLOCK, &q, work.head * HEAD_DIM + b * BLOCK, work.first, &q_full);
            mbarrier_arrive(&q_full);
            const int column = work.head / (heads / kv_heads) * HEAD_DIM;
            for (int t = 0; t < work.tiles; ++t, slot.next()) {
                mbarrier_wait(k_empty + slot.index, slot.parity ^ 1);
                mbarrier_expect(k_full + slot.index, TILE * 2);
                for (int b = 0; b < BLOCKS; ++b)
                    tma_copy_box(keys + slot.index * TILE + b * KEYS * BLOCK, &k, column + b * BLOCK, work.from + t * KEYS,
                                 k_full + slot.index);
                mbarrier_arrive(k_full + slot.index);
                mbarrier_wait(v_empty + slot.index, slot.parity ^ 1);
                mbarrier_expect(v_full + slot.index, TILE * 2);
                for (int b = 0; b < BLOCKS; ++b)
                    tma_copy_box(values + slot.index * TILE + b * KEYS * BLOCK, &v, column + b * BLOCK, work.from + t * KEYS,
                                 v_full + slot.index);
                mbarrier_arrive(v_full + slot.index);
            }
        }
    }

    setmaxnreg_more<232>();
    const int group = threadIdx.x / 128 - 1, row = threadIdx.x / 32 % 4 * 16 + lane / 4 + 64 * group;  // and + 8
    float acc_o[HEAD_DIM / 2], s[KEYS / 2], row_max[2], row_sum[2], rescale[2];
    unsigned p[KEYS / 4];
    RingSlot k_slot, v_slot;
    unsigned parity = 0;

    // Start the scores of the next tile, when its keys have arrived.
    const auto start_qk = [&] {
        mbarrier_wait(k_full + k_slot.index, k_slot.parity);
        warpgroup_arrive();
        const unsigned long long rows = wgmma_columns(queries + 64 * group * BLOCK);
        const unsigned long long columns = wgmma_columns(keys + k_slot.index * TILE);
#pragma unroll
        for (int d = 0; d < HEAD_DIM; d += 16)  // in units of 16 bytes, of which a row of a block has 8
            wgmma_shared_f16<KEYS>(s, rows + d / BLOCK * ROWS * 8 + d % BLOCK / 8, columns + d / BLOCK * KEYS * 8 + d % BLOCK / 8, d > 0);
        warpgroup_commit();
    };
    // Start adding p times the values of the next tile.
    const auto start_pv = [&] {
        mbarrier_wait(v_full + v_slot.index, v_slot.parity);
        warpgroup_arrive();
        const unsigned long long columns = wgmma_rows(values + v_slot.index * TILE, KEYS * BLOCK * 2);
#pragma unroll
        for (int key = 0; key < KEYS; key += 16) wgmma_rows_f16<HEAD_DIM>(acc_o, p + key / 4, columns + key * 8);
        warpgroup_commit();
    };
    const auto release = [&](unsigned long long* empty, RingSlot& slot) {
        if (lane == 0) mbarrier_arrive(empty + slot.index);
        slot.next();
    };
    const auto convert_p = [&] {
#pragma unroll
        for (int i = 0; i < KEYS / 4; ++i) p[i] = rounded_pair(s[2 * i], s[2 * i + 1]);
    };

    for (int round = 0;; ++round) {
        const Work work = work_at(round);
        if (work.tiles < 0) return;
        // All rows of this warp see the keys [all_from, all_to).
        const int lowest = work.first + row - lane / 4, highest = lowest + 15;
        const int all_from = seen_from(start + highest, context, causal, window).first;
        const int all_to = seen_from(start + lowest, context, causal, window).last;
        // Softmax of the scores, in FP32 and in place.
        const auto softmax = [&](int t) {
            const int tile = work.from + t * KEYS;
            if (tile < all_from || tile + KEYS > all_to)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const Seen seen = seen_from(start + work.first + row + 8 * half, context, causal, window);
#pragma unroll
                    for (int i = 0; i < KEYS / 4; ++i) {
                        const int key = tile + i / 2 * 8 + lane % 4 * 2 + i % 2;
                        if (key < seen.first || key >= seen.last) s[i / 2 * 4 + 2 * half + i % 2] = NOTHING;
                    }
                }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float new_max = row_max[half];
#pragma unroll
                for (int i = 0; i < KEYS / 4; ++i) new_max = fmaxf(new_max, s[i / 2 * 4 + 2 * half + i % 2]);
                new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 1));
                new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 2));
                const float base = new_max == NOTHING ? 0.0f : new_max * scale;  // a row without visible keys gets p = 0, not NaN
                rescale[half] = exp2_approx(row_max[half] * scale - base);
                row_max[half] = new_max;
                row_sum[half] *= rescale[half];
#pragma unroll
                for (int i = 0; i < KEYS / 4; ++i) {
                    float& p = s[i / 2 * 4 + 2 * half + i % 2];
                    p = exp2_approx(fmaf(p, scale, -base));
                    row_sum[half] += p;
                }
            }
        };

        row_max[0] = row_max[1] = NOTHING, row_sum[0] = row_sum[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; ++i) acc_o[i] = 0.0f;
        if (work.tiles) {
            mbarrier_wait(&q_full, parity);
            parity ^= 1;
            start_qk();
            warpgroup_wait<0>();
            release(k_empty, k_slot);
            if (work.tiles == 1 && lane == 0) mbarrier_arrive(&q_empty);
            softmax(0);
            convert_p();
            for (int t = 1; t < work.tiles; ++t) {
                start_qk();
                start_pv();
                warpgroup_wait<1>();
                release(k_empty, k_slot);
                if (t == work.tiles - 1 && lane == 0) mbarrier_arrive(&q_empty);
                softmax(t);
                // A store that is never read: it needs all of p and stays before the wait. Without it the compiler
                // works the weights out after the wait, and nothing runs beside the products.
                if (lane == 0) ordered[threadIdx.x / 32] = row_sum[0] + row_sum[1];
                warpgroup_wait<0>();
                release(v_empty, v_slot);
                convert_p();
                if (__any_sync(0xffffffffu, rescale[0] != 1.0f || rescale[1] != 1.0f))
#pragma unroll
                    for (int i = 0; i < HEAD_DIM / 2; ++i) acc_o[i] *= rescale[i / 2 % 2];
            }
            start_pv();
            warpgroup_wait<0>();
            release(v_empty, v_slot);
        }

#pragma unroll
        for (int half = 0; half < 2; ++half) {
            row_sum[half] += __shfl_xor_sync(0xffffffffu, row_sum[half], 1);
            row_sum[half] += __shfl_xor_sync(0xffffffffu, row_sum[half], 2);
            const float inv_sum = inverse(row_sum[half]);
            const int position = work.first + row + 8 * half;
            if (position >= n) continue;
            unsigned* to = reinterpret_cast<unsigned*>(out + (position * (size_t)heads + work.head) * HEAD_DIM);
#pragma unroll
            for (int d = 0; d < HEAD_DIM; d += 8)
                to[d / 2 + lane % 4] = rounded_pair(acc_o[d / 2 + 2 * half] * inv_sum, acc_o[d / 2 + 2 * half + 1] * inv_sum);
        }
    }
}
