// write 1, scalar: every thread handles one 4-byte word.
//
// Purpose  y[i] = i ^ seed: nothing is read.
// Shapes   y [n] uint32; seed a word.
// Bytes    4 n written.
// Launch   THREADS threads a block, ceil(n / THREADS) blocks.
// Macros   THREADS = 256: threads a block.
// Below    this is the first rung.
extern "C" __global__ void __launch_bounds__(THREADS)
    write_scalar(unsigned* __restrict__ y, unsigned seed, unsigned long long n) {
    const unsigned long long i = blockIdx.x * (unsigned long long)THREADS + threadIdx.x;
    if (i < n) {
        y[i] = (unsigned)i ^ seed;
    }
}
