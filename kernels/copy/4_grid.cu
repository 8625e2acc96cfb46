// copy 4, grid: as many blocks as the GPU holds at once, each walking through the data.
//
// Purpose  no block is launched or retired while the stream runs.
// Shapes   x, y [n] uint32, 16-byte aligned, n a multiple of 4.
// Bytes    4 n read + 4 n written.
// Launch   THREADS threads a block, SMs x resident blocks (or `blocks`, if given).
// Macros   THREADS = 256: threads a block;
//          UNROLL = 4: 16-byte accesses that a thread has in flight.
// Changed  a loop over tiles with the grid as its stride.
extern "C" __global__ void __launch_bounds__(THREADS)
    copy_grid(const uint4* __restrict__ x, uint4* __restrict__ y, unsigned long long n) {
    const unsigned long long step = gridDim.x * (unsigned long long)(THREADS * UNROLL);
    for (unsigned long long first = blockIdx.x * (unsigned long long)(THREADS * UNROLL) + threadIdx.x; first < n / 4;
         first += step) {
        uint4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (first + u * THREADS < n / 4) v[u] = x[first + u * THREADS];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (first + u * THREADS < n / 4) y[first + u * THREADS] = v[u];
    }
}
