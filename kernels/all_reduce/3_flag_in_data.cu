// all_reduce 3, flag_in_data: every four bytes travel with the number of the round, so that no flag follows them.
//
// Purpose  rung 2 waits for its data to arrive before it sends a flag, and for all threads of a block twice.
// Shapes   as rung 1, but n a multiple of 4; a mailbox is ulonglong2 [2][WORLD][capacity THREADS]: four halves and
//          twice the round; rounds [rows][capacity THREADS] uint32, how often each thread has run.
// Bytes    4 n (WORLD - 1) + 2 n read and 2 n written here, 4 n (WORLD - 1) written over links.
// Launch   ceil(n / 4 / THREADS) blocks, at most `capacity`, by rows; THREADS threads a block.
// Macros   THREADS = 256: threads a block.
// Changed  twice the bytes, one crossing, no barrier: a thread waits for its own four numbers alone.
#include "common/peers.cuh"
#include "common/ptx/system.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    all_reduce_flag_in_data(const uint2* x, uint2* y, char* mail0, char* mail1, char* mail2, char* mail3, char* mail4,
                            char* mail5, char* mail6, char* mail7, unsigned* rounds, unsigned* lost, int n, int first,
                            int capacity) {
    const Mailboxes mail = {{mail0, mail1, mail2, mail3, mail4, mail5, mail6, mail7}};
    const int rank = first + blockIdx.y, i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= n / 4) return;
    const size_t part = (size_t)capacity * THREADS;
    rounds += blockIdx.y * part + i;
    const uint2 mine = x[blockIdx.y * (size_t)(n / 4) + i];
    const unsigned round = *rounds + 1;
    const unsigned long long stamp = (unsigned long long)round << 32;
    const size_t slot = (round & 1) * WORLD * part + i;
    const ulonglong2 packet = make_ulonglong2(stamp | mine.x, stamp | mine.y);
#pragma unroll
    for (int r = 0; r < WORLD; ++r)
        if (r != rank) store_pair_system(reinterpret_cast<ulonglong2*>(mail.of[r]) + slot + rank * part, packet);
    const char* own = mail.of[0];
#pragma unroll
    for (int r = 1; r < WORLD; ++r)
        if (r == rank) own = mail.of[r];
    uint4 parts[WORLD];
#pragma unroll
    for (int r = 0; r < WORLD; ++r) {
        uint2 words = mine;
        if (r != rank) {
            const ulonglong2* from = reinterpret_cast<const ulonglong2*>(own) + slot + r * part;
            words = arrived(from, round, lost + blockIdx.y);
        }
        parts[r] = make_uint4(words.x, words.y, 0, 0);
    }
    const uint4 sum = sum_in_order(parts);
    y[blockIdx.y * (size_t)(n / 4) + i] = make_uint2(sum.x, sum.y);
    *rounds = round;
}
