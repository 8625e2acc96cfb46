// all_reduce 1, pull: every GPU reads its peers' parts and sums them.
//
// Purpose  the sum over all GPUs of a token's activations, each GPU with the same bits of it.
// Shapes   x, y [rows][n] half, n a multiple of 8, 16-byte aligned; mail0 to mail7: GPU r's mailbox, uint4
//          [2][capacity THREADS] of data and uint32 [8][capacity] of flags; rounds [rows][capacity] uint32, how often
//          each block has run; lost [rows] uint32, 1 once a peer did not answer. One launch plays `rows` GPUs from
//          `first` on: 1 on a GPU of its own.
// Bytes    2 n read and 2 n written here, 2 n (WORLD - 1) read over links.
// Launch   ceil(n / 8 / THREADS) blocks, at most `capacity`, by rows; THREADS threads a block.
// Macros   THREADS = 256: threads a block.
// Below    none: a GPU alone has nothing to sum.
#include "common/peers.cuh"
#include "common/ptx/system.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    all_reduce_pull(const uint4* x, uint4* y, char* mail0, char* mail1, char* mail2, char* mail3, char* mail4, char* mail5,
                    char* mail6, char* mail7, unsigned* rounds, unsigned* lost, int n, int first, int capacity) {
    const Mailboxes mail = {{mail0, mail1, mail2, mail3, mail4, mail5, mail6, mail7}};
    const int rank = first + blockIdx.y, block = blockIdx.x, i = block * THREADS + threadIdx.x;
    x += (size_t)blockIdx.y * (n / 8);
    y += (size_t)blockIdx.y * (n / 8);
    rounds += blockIdx.y * capacity + block;
    const unsigned round = *rounds + 1;
    // Rounds take turns with two slots: who writes one again knows that every peer has left the round before the last.
    const size_t slot = (size_t)(round & 1) * capacity * THREADS + i, flags = (size_t)2 * capacity * THREADS * sizeof(uint4);
#pragma unroll
    for (int r = 0; r < WORLD; ++r)
        if (r == rank && i < n / 8) reinterpret_cast<uint4*>(mail.of[r])[slot] = x[i];
    __syncthreads();
#pragma unroll
    for (int r = 0; r < WORLD; ++r) {
        if (threadIdx.x == r && r != rank)  // the peer's flag for this GPU and block
            store_release_system(reinterpret_cast<unsigned*>(mail.of[r] + flags) + rank * capacity + block, round);
    }
#pragma unroll
    for (int r = 0; r < WORLD; ++r) {
        if (r == rank && threadIdx.x < WORLD && threadIdx.x != rank)
            wait_for(reinterpret_cast<unsigned*>(mail.of[r] + flags) + threadIdx.x * capacity + block, round,
                     lost + blockIdx.y);
    }
    __syncthreads();
    if (threadIdx.x == 0) *rounds = round;
    if (i >= n / 8) return;
    uint4 parts[WORLD];
#pragma unroll
    for (int r = 0; r < WORLD; ++r) parts[r] = __ldcg(reinterpret_cast<const uint4*>(mail.of[r]) + slot);
    y[i] = sum_in_order(parts);
}
