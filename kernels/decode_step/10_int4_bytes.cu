// decode_step 10, int4_bytes: codes of INT4 are multiplied as bytes.
//
// Purpose  unpacking takes more of a multiprocessor's time than weights take to arrive: a word of eight codes costs five
//          operations of the pipe for integers, which starts one every other cycle. While blocks wait for each other the ring
//          is full and memory idles. Bytes cost three, and half the products.
// Shapes   as rung 9.
// Bytes    as rung 9.
// Launch   as rung 9.
// Macros   INT4_BYTES = 1: chooses such products;
//          FLAGS_IN_DATA = 1: as in rung 9;
//          OUT_SLABS = 2: as in rung 7;
//          DOWN_SLABS = 2: the same for DOWN;
//          PRODUCERS = 4: as in rung 6; 0 for the ring of rung 5, with its macros HELD_BACK and FIRST_HELD;
//          DEPTH = 12: as in rung 6;
//          IDLE_DEPTH = 4: as in rung 6;
//          HELD_BACK = 1: as in rung 5;
//          FIRST_HELD = 2: as in rung 5.
// Changed  from rung 9: x is kept as two bytes a number, like Q8_0's, and codes less 8 become bytes of 16 times their weight.
//          FP16 and Q8_0 are multiplied as there.
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
    decode_step_int4_bytes(DECODER_ARGUMENTS, unsigned* counter, int steps, long long* residual_fixed) {
    extern __shared__ uint4 shared[];
    Decoder m = DECODER;
    m.residual_fixed = residual_fixed;
    m.flag = 0;
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
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < HANDED_WORDS / 2; i += gridDim.x * THREADS) residual_fixed[i] = 0;
    for (int step = 0; step < steps; ++step) {
        arrive_at_grid_barrier(smem, counter);
        if (step > 0) fetch_deferred(s, m, smem, slot);
        wait_at_grid_barrier<WAITER>(smem, counter, target += gridDim.x);
        const int pos = start + step;
        const KvSplit& split = shared_split(m, smem, pos + 1);
        prefetch_kv(m, split, 0, pos);
        begin_token(m, step);
        for (int layer = 0; layer < layers; ++layer) {
            next_flag(m);
#pragma unroll 1
            for (int phase = QKV; phase <= DOWN; ++phase) {
                run_phase(m, smem, split, s, slot, layer, phase, pos);
                sync_consumers(smem);
                fetch_deferred(s, m, smem, slot);
                prefetch_next_phase(m, split, layer, phase, pos);
            }
            ++m.layers_done;
        }
        run_head(m, smem, s, slot, pos + 1);
    }
    copy_async_wait<0>();  // all that was copied has been multiplied
    if (threadIdx.x == 0) {
        if (blockIdx.x == 0) *position = start + steps;
        // The last block to leave resets the counter for the next launch.
        if (add_release(counter, 1) == target + gridDim.x - 1) *counter = 0;
    }
}
