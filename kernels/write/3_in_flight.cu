// write 3, in flight: every thread handles UNROLL times 16 bytes.
//
// Purpose  more bytes under way per thread.
// Shapes   y [n] uint32, 16-byte aligned, n a multiple of 4; seed a word.
// Bytes    4 n written.
// Launch   THREADS threads a block, ceil(n / 4 / (THREADS UNROLL)) blocks; a block owns one contiguous tile.
// Macros   THREADS = 256: threads a block;
//          UNROLL = 4: 16-byte accesses that a thread has in flight.
// Changed  UNROLL accesses a thread, THREADS apart so that a warp stays coalesced.
extern "C" __global__ void __launch_bounds__(THREADS)
    write_in_flight(uint4* __restrict__ y, unsigned seed, unsigned long long n) {
    const unsigned long long first = blockIdx.x * (unsigned long long)(THREADS * UNROLL) + threadIdx.x;
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned long long i = first + u * THREADS;
        const unsigned w = 4 * (unsigned)i;
        if (i < n / 4) y[i] = make_uint4(w ^ seed, (w + 1) ^ seed, (w + 2) ^ seed, (w + 3) ^ seed);
    }
}
