// write 2, vector: every thread handles 16 bytes.
//
// Purpose  a quarter of the memory instructions for the same bytes.
// Shapes   y [n] uint32, 16-byte aligned, n a multiple of 4; seed a word.
// Bytes    4 n written.
// Launch   THREADS threads a block, ceil(n / 4 / THREADS) blocks.
// Macros   THREADS = 256: threads a block.
// Changed  16-byte accesses instead of 4-byte ones.
extern "C" __global__ void __launch_bounds__(THREADS)
    write_vector(uint4* __restrict__ y, unsigned seed, unsigned long long n) {
    const unsigned long long i = blockIdx.x * (unsigned long long)THREADS + threadIdx.x;
    if (i < n / 4) {
        const unsigned w = 4 * (unsigned)i;
        y[i] = make_uint4(w ^ seed, (w + 1) ^ seed, (w + 2) ^ seed, (w + 3) ^ seed);
    }
}
