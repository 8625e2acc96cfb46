// faults, fixed tile: y = x A, a thread a column, and one mistake.
//
// The tile holds 4096 floats, x holds k. With the source's k = 4096 the mistake does not show.
//
// Shapes   a [k, n] float row-major, x [k] float, y [n] float.
// Launch   256 threads a block, ceil(n / 256) blocks.
#define TILE 4096

extern "C" __global__ void fixed_tile(const float* a, const float* x, float* y, unsigned n, unsigned k) {
    __shared__ float x_tile[TILE];
    const unsigned column = blockIdx.x * 256 + threadIdx.x;
    for (unsigned i = threadIdx.x; i < k; i += 256) x_tile[i] = x[i];
    __syncthreads();
    float sum = 0.0f;
    for (unsigned i = 0; i < k && column < n; ++i) sum += x_tile[i] * a[i * n + column];
    if (column < n) y[column] = sum;
}
