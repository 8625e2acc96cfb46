// faults, early exit: y = x A, a thread a column, and one mistake.
//
// A thread without a column leaves at once. It should have loaded its part of x first, and met the others at the
// barriers. With n a multiple of 256 the mistake does not show.
//
// Shapes   a [k, n] float row-major, x [k] float, y [n] float.
// Launch   256 threads a block, ceil(n / 256) blocks.
#define TILE 256

extern "C" __global__ void early_exit(const float* a, const float* x, float* y, unsigned n, unsigned k) {
    __shared__ float x_tile[TILE];
    const unsigned column = blockIdx.x * 256 + threadIdx.x;
    if (column >= n) return;
    float sum = 0.0f;
    for (unsigned first = 0; first < k; first += TILE) {
        if (first + threadIdx.x < k) x_tile[threadIdx.x] = x[first + threadIdx.x];
        __syncthreads();
        for (unsigned i = 0; i < TILE && first + i < k; ++i) sum += x_tile[i] * a[(first + i) * n + column];
        __syncthreads();
    }
    y[column] = sum;
}
