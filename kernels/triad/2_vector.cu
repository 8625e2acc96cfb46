// triad 2, vector: every thread handles 16 bytes.
//
// Purpose  a quarter of the memory instructions for the same bytes.
// Shapes   a, b, c [n] float, 16-byte aligned, n a multiple of 4.
// Bytes    8 n read + 4 n written.
// Launch   THREADS threads a block, ceil(n / 4 / THREADS) blocks.
// Macros   THREADS = 256: threads a block.
// Changed  16-byte accesses instead of 4-byte ones.
extern "C" __global__ void __launch_bounds__(THREADS)
    triad_vector(const float4* __restrict__ b, const float4* __restrict__ c, float4* __restrict__ a, float s, unsigned long long n) {
    const unsigned long long i = blockIdx.x * (unsigned long long)THREADS + threadIdx.x;
    if (i < n / 4) {
        const float4 p = b[i], q = c[i];
        a[i] = make_float4(fmaf(s, q.x, p.x), fmaf(s, q.y, p.y), fmaf(s, q.z, p.z), fmaf(s, q.w, p.w));
    }
}
