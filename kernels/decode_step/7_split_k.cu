// decode_step 7, split k: OUT and DOWN are divided along k as well, so that all blocks have work and need little of x.
//
// Purpose  OUT and DOWN have HIDDEN / 16 units of rows: 96 of Qwen2.5-1.5B for 132 blocks, a quarter of which rest while the
//          others multiply, and every block loads all of x. Here a group of blocks shares a slab of k: it needs the slab's x
//          alone, and its blocks and warps take equal shares of the slab's chunks.
// Shapes   as rung 3, k a chunk or more for each slab; `residual_fixed` [HIDDEN], 16-byte aligned, anything before. The
//          residual stays within 2^31.
// Bytes    as rung 1, and 8 bytes of the residual where rung 1 has 4.
// Launch   as rung 6, or with PRODUCERS = 0 as rung 5.
// Macros   OUT_SLABS = 2: slabs that OUT is divided into, at most as many as it has chunks or the grid blocks;
//          DOWN_SLABS = 2: the same for DOWN;
//          PRODUCERS = 4: as in rung 6; 0 for the ring of rung 5, with its macros HELD_BACK and FIRST_HELD;
//          DEPTH = 12: as in rung 6;
//          IDLE_DEPTH = 4: as in rung 6;
//          HELD_BACK = 1: as in rung 5;
//          FIRST_HELD = 2: as in rung 5.
// Changed  from rungs 5 and 6: several blocks add to a row of OUT and DOWN. The residual is a number in fixed point, to which
//          each warp adds its sums by atomics: in any order they give the same bits. So a warp waits for no other one, and
//          nothing is added up in shared memory.
#if PRODUCERS
#include "common/decoder/ring_producers.cuh"
#else
#include "common/decoder/ring_deferred.cuh"
#endif
#include "common/decoder/products.cuh"
#include "common/decoder/prologues.cuh"
#include "common/decoder/attention.cuh"
#include "common/decoder/phases.cuh"
#include "common/decoder/grid_barrier.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/ordered.cuh"

// The thread that polls the grid barrier: not the one that has arrived, which waits for its copies.
constexpr int WAITER = PRODUCERS_FILL ? 0 : THREADS - 32;

extern "C" __global__ void __launch_bounds__(32 * (WARPS + PRODUCERS), 1)
    decode_step_split_k(DECODER_ARGUMENTS, unsigned* counter, int steps, long long* residual_fixed) {
    extern __shared__ uint4 shared[];
    Decoder m = DECODER;
    m.residual_fixed = residual_fixed;
    const Smem smem = smem_of(shared, threadIdx.x / 32 % WARPS);
    const int start = *position;
    int slot = 0;
    unsigned target = 0;
#if PRODUCERS
    Stream s = start_stream(m, smem);
    if (threadIdx.x >= THREADS) {
        produce(m, shared, threadIdx.x / 32 - WARPS, steps * (4 * layers + 1));
        return;
    }
#else
    Stream s = start_stream(m, smem, 0, QKV, steps * (4 * layers + 1));
#endif
    for (int step = 0; step < steps; ++step) {
        const int pos = start + step;
        const KvSplit& split = shared_split(m, smem, pos + 1);
        prefetch_kv(m, split, 0, pos);
        for (int layer = 0; layer < layers; ++layer)
#pragma unroll 1
            for (int phase = QKV; phase <= DOWN; ++phase) {
                run_phase(m, smem, split, s, slot, layer, phase, pos);
                arrive_at_grid_barrier(smem, counter);
                fetch_deferred(s, m, smem, slot);
                prefetch_next_phase(m, split, layer, phase, pos);
                wait_at_grid_barrier<WAITER>(smem, counter, target += gridDim.x);
            }
        run_head(m, smem, s, slot, pos + 1);
        if (step + 1 < steps) {
            arrive_at_grid_barrier(smem, counter);
            fetch_deferred(s, m, smem, slot);
            wait_at_grid_barrier<WAITER>(smem, counter, target += gridDim.x);
        }
    }
    copy_async_wait<0>();
    if (threadIdx.x == 0) {
        if (blockIdx.x == 0) *position = start + steps;
        // The last block to leave resets the counter for the next launch.
        if (add_release(counter, 1) == target + gridDim.x - 1) *counter = 0;
    }
}
