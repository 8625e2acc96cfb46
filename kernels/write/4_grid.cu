// write 4, grid: as many blocks as the GPU holds at once, each walking through the data.
//
// Purpose  no block is launched or retired while the stream runs.
// Shapes   y [n] uint32, 16-byte aligned, n a multiple of 4; seed a word.
// Bytes    4 n written.
// Launch   THREADS threads a block, SMs x resident blocks (or `blocks`, if given).
// Macros   THREADS = 256: threads a block;
//          UNROLL = 4: 16-byte accesses that a thread has in flight.
// Changed  a loop over tiles with the grid as its stride.
extern "C" __global__ void __launch_bounds__(THREADS)
    write_grid(uint4* __restrict__ y, unsigned seed, unsigned long long n) {
    const unsigned long long step = gridDim.x * (unsigned long long)(THREADS * UNROLL);
    for (unsigned long long first = blockIdx.x * (unsigned long long)(THREADS * UNROLL) + threadIdx.x; first < n / 4;
         first += step) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const unsigned long long i = first + u * THREADS;
            const unsigned w = 4 * (unsigned)i;
            if (i < n / 4) y[i] = make_uint4(w ^ seed, (w + 1) ^ seed, (w + 2) ^ seed, (w + 3) ^ seed);
        }
    }
}
