// all_gather 1, pdl: every GPU stores its share of some rows at its peers, and puts the rows together from all shares.
//
// Purpose  a head that is split over GPUs leaves a share of the logits on each, and all of them choose the next token.
// Shapes   x [n][width] half, a GPU's share; y [n][WORLD width] half. A mailbox is ulonglong2 [2][WORLD][rows][width / 4]:
//          four halves and twice the round; rounds uint32, how often each block has run. n <= rows; width a multiple of 4.
//          Where blockIdx.z is a GPU, x, y, rounds and lost have a leading [GPUs].
// Bytes    n width (2 + 4 (WORLD - 1)) read and 2 n width WORLD written here, 4 n width (WORLD - 1) written over links.
// Launch   ceil(width / 4 / THREADS) x n blocks of THREADS threads, as a dependent; grid.z is 1, on the CPU target the number of GPUs.
// Macros   THREADS = 256: threads a block.
// Below    all_reduce/3_flag_in_data, which adds what this puts side by side.
#include "common/peers.cuh"
#include "common/ptx/dependent_launch.cuh"
#include "common/ptx/system.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    all_gather_pdl(const uint2* x, uint2* y, char* mail0, char* mail1, char* mail2, char* mail3, char* mail4, char* mail5,
                   char* mail6, char* mail7, unsigned* rounds, unsigned* lost, int width, int first, int rows) {
    const Mailboxes mail = {{mail0, mail1, mail2, mail3, mail4, mail5, mail6, mail7}};
    const int rank = first + blockIdx.z, vectors = width / 4, k = blockIdx.x * THREADS + threadIdx.x;
    const size_t row = blockIdx.y, here = blockIdx.z * (size_t)gridDim.y + row;
    rounds += (blockIdx.z * (size_t)rows + row) * gridDim.x + blockIdx.x;
    let_successor_start();
    wait_for_predecessor();
    const unsigned round = __ldcg(rounds) + 1;
    __syncthreads();  // all have read it
    if (threadIdx.x == 0) *rounds = round;
    if (k >= vectors) return;
    const uint2 mine = __ldcg(x + here * vectors + k);
    const unsigned long long stamp = (unsigned long long)round << 32;
    const size_t box = (size_t)rows * vectors, slot = (round & 1) * WORLD * box + row * vectors + k;
    const ulonglong2 packet = make_ulonglong2(stamp | mine.x, stamp | mine.y);
#pragma unroll
    for (int r = 0; r < WORLD; ++r)
        if (r != rank) store_pair_system(reinterpret_cast<ulonglong2*>(mail.of[r]) + slot + rank * box, packet);
    const char* own = mail.of[0];
#pragma unroll
    for (int r = 1; r < WORLD; ++r)
        if (r == rank) own = mail.of[r];
#pragma unroll
    for (int r = 0; r < WORLD; ++r) {
        uint2 words = mine;
        if (r != rank)
            words = arrived(reinterpret_cast<const ulonglong2*>(own) + slot + r * box, round, lost + blockIdx.z);
        y[(here * WORLD + r) * vectors + k] = words;
    }
}
