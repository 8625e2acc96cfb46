// copy 1, scalar: every thread handles one 4-byte word.
//
// Purpose  y = x: half the traffic reads, half writes.
// Shapes   x, y [n] uint32.
// Bytes    4 n read + 4 n written.
// Launch   THREADS threads a block, ceil(n / THREADS) blocks.
// Macros   THREADS = 256: threads a block.
// Below    this is the first rung.
extern "C" __global__ void __launch_bounds__(THREADS)
    copy_scalar(const unsigned* __restrict__ x, unsigned* __restrict__ y, unsigned long long n) {
    const unsigned long long i = blockIdx.x * (unsigned long long)THREADS + threadIdx.x;
    if (i < n) {
        y[i] = x[i];
    }
}
