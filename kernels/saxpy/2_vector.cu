// saxpy 2, vector: z = a x + y, four elements a thread.
//
// Purpose  a quarter of the memory instructions for the same bytes.
// Shapes   x, y, z [n] float, 16-byte aligned, n a multiple of 4.
// Bytes    8 n read + 4 n written; 2 n FLOPs.
// Launch   THREADS threads a block, ceil(n / 4 / THREADS) blocks.
// Macros   THREADS = 256: threads a block.
// Changed  float4 accesses instead of 4-byte ones; no dependent form.
extern "C" __global__ void __launch_bounds__(THREADS)
    saxpy_vector(const float4* __restrict__ x, const float4* __restrict__ y, float4* __restrict__ z, float a,
                 unsigned long long n) {
    const unsigned long long i = blockIdx.x * (unsigned long long)THREADS + threadIdx.x;
    if (i < n / 4) {
        const float4 p = x[i], q = y[i];
        z[i] = make_float4(fmaf(a, p.x, q.x), fmaf(a, p.y, q.y), fmaf(a, p.z, q.z), fmaf(a, p.w, q.w));
    }
}
