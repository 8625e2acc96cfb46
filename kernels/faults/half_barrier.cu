// faults, half barrier: y = x A, a thread a column, and one mistake.
//
// The first barrier is inside a condition, so threads without a column wait at the second one instead. Today's
// hardware counts who waits and not where, and may let all of them through; or it may not. Nothing is promised.
//
// Shapes   a [k, n] float row-major, x [k] float, y [n] float.
// Launch   256 threads a block, ceil(n / 256) blocks.
#define TILE 256

extern "C" __global__ void half_barrier(const float* a, const float* x, float* y, unsigned n, unsigned k) {
    __shared__ float x_tile[TILE];
    const unsigned column = blockIdx.x * 256 + threadIdx.x;
    float sum = 0.0f;
    for (unsigned first = 0; first < k; first += TILE) {
        if (first + threadIdx.x < k) x_tile[threadIdx.x] = x[first + threadIdx.x];
        if (column < n) __syncthreads();
        for (unsigned i = 0; column < n && i < TILE && first + i < k; ++i)
            sum += x_tile[i] * a[(first + i) * n + column];
        __syncthreads();
    }
    if (column < n) y[column] = sum;
}
