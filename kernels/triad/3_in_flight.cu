// triad 3, in flight: every thread handles UNROLL times 16 bytes, all loads before the first store.
//
// Purpose  more bytes under way per thread.
// Shapes   a, b, c [n] float, 16-byte aligned, n a multiple of 4.
// Bytes    8 n read + 4 n written.
// Launch   THREADS threads a block, ceil(n / 4 / (THREADS UNROLL)) blocks; a block owns one contiguous tile.
// Macros   THREADS = 256: threads a block;
//          UNROLL = 4: 16-byte accesses that a thread has in flight.
// Changed  UNROLL accesses a thread, THREADS apart so that a warp stays coalesced.
extern "C" __global__ void __launch_bounds__(THREADS)
    triad_in_flight(const float4* __restrict__ b, const float4* __restrict__ c, float4* __restrict__ a, float s, unsigned long long n) {
    const unsigned long long first = blockIdx.x * (unsigned long long)(THREADS * UNROLL) + threadIdx.x;
    float4 p[UNROLL], q[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        if (first + u * THREADS < n / 4) {
            p[u] = b[first + u * THREADS];
            q[u] = c[first + u * THREADS];
        }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        if (first + u * THREADS < n / 4)
            a[first + u * THREADS] = make_float4(fmaf(s, q[u].x, p[u].x), fmaf(s, q[u].y, p[u].y),
                                                 fmaf(s, q[u].z, p[u].z), fmaf(s, q[u].w, p[u].w));
}
