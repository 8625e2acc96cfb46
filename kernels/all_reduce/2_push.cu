// all_reduce 2, push: every GPU stores its part into its peers' mailboxes.
//
// Purpose  a store is sent and forgotten, where a load over a link waits for the way there and back.
// Shapes   as rung 1; a mailbox is uint4 [2][WORLD][capacity THREADS] of data and uint32 [8][capacity] of flags.
// Bytes    2 n (WORLD + 1) read and 2 n written here, 2 n (WORLD - 1) written over links.
// Launch   ceil(n / 8 / THREADS) blocks, at most `capacity`, by rows; THREADS threads a block.
// Macros   THREADS = 256: threads a block.
// Changed  the peers' parts come to this GPU's own memory; its own part stays in registers.
#include "common/peers.cuh"
#include "common/ptx/system.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    all_reduce_push(const uint4* x, uint4* y, char* mail0, char* mail1, char* mail2, char* mail3, char* mail4, char* mail5,
                    char* mail6, char* mail7, unsigned* rounds, unsigned* lost, int n, int first, int capacity) {
    const Mailboxes mail = {{mail0, mail1, mail2, mail3, mail4, mail5, mail6, mail7}};
    const int rank = first + blockIdx.y, block = blockIdx.x, i = block * THREADS + threadIdx.x;
    x += (size_t)blockIdx.y * (n / 8);
    y += (size_t)blockIdx.y * (n / 8);
    rounds += blockIdx.y * capacity + block;
    const unsigned round = *rounds + 1;
    const size_t part = (size_t)capacity * THREADS, slot = (round & 1) * WORLD * part + i;
    const size_t flags = 2 * WORLD * part * sizeof(uint4);
    const uint4 mine = i < n / 8 ? x[i] : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int r = 0; r < WORLD; ++r)
        if (r != rank && i < n / 8) reinterpret_cast<uint4*>(mail.of[r])[slot + rank * part] = mine;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < WORLD; ++r) {
        if (threadIdx.x == r && r != rank)
            store_release_system(reinterpret_cast<unsigned*>(mail.of[r] + flags) + rank * capacity + block, round);
    }
    const char* own = mail.of[0];
#pragma unroll
    for (int r = 1; r < WORLD; ++r)
        if (r == rank) own = mail.of[r];
    if (threadIdx.x < WORLD && threadIdx.x != rank)
        wait_for(reinterpret_cast<const unsigned*>(own + flags) + threadIdx.x * capacity + block, round, lost + blockIdx.y);
    __syncthreads();
    if (threadIdx.x == 0) *rounds = round;
    if (i >= n / 8) return;
    uint4 parts[WORLD];
#pragma unroll
    for (int r = 0; r < WORLD; ++r)
        parts[r] = r == rank ? mine : __ldcg(reinterpret_cast<const uint4*>(own) + slot + r * part);
    y[i] = sum_in_order(parts);
}
