// copy 3, in flight: every thread handles UNROLL times 16 bytes, all loads before the first store.
//
// Purpose  more bytes under way per thread.
// Shapes   x, y [n] uint32, 16-byte aligned, n a multiple of 4.
// Bytes    4 n read + 4 n written.
// Launch   THREADS threads a block, ceil(n / 4 / (THREADS UNROLL)) blocks; a block owns one contiguous tile.
// Macros   THREADS = 256: threads a block;
//          UNROLL = 4: 16-byte accesses that a thread has in flight.
// Changed  UNROLL accesses a thread, THREADS apart so that a warp stays coalesced.
extern "C" __global__ void __launch_bounds__(THREADS)
    copy_in_flight(const uint4* __restrict__ x, uint4* __restrict__ y, unsigned long long n) {
    const unsigned long long first = blockIdx.x * (unsigned long long)(THREADS * UNROLL) + threadIdx.x;
    uint4 v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        if (first + u * THREADS < n / 4) v[u] = x[first + u * THREADS];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        if (first + u * THREADS < n / 4) y[first + u * THREADS] = v[u];
}
