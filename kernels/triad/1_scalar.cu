// triad 1, scalar: every thread handles one 4-byte word.
//
// Purpose  a = b + s c, STREAM's triad: two streams in, one out.
// Shapes   a, b, c [n] float.
// Bytes    8 n read + 4 n written.
// Launch   THREADS threads a block, ceil(n / THREADS) blocks.
// Macros   THREADS = 256: threads a block.
// Below    this is the first rung.
extern "C" __global__ void __launch_bounds__(THREADS)
    triad_scalar(const float* __restrict__ b, const float* __restrict__ c, float* __restrict__ a, float s, unsigned long long n) {
    const unsigned long long i = blockIdx.x * (unsigned long long)THREADS + threadIdx.x;
    if (i < n) {
        a[i] = fmaf(s, c[i], b[i]);
    }
}
