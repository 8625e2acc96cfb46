// faults, not zeroed: y = x A, a thread a column, and one mistake.
//
// Each tile's sum is added to what y holds, and y holds what the last call left. On memory that happens to be zero
// the first call is right.
//
// Shapes   a [k, n] float row-major, x [k] float, y [n] float.
// Launch   256 threads a block, ceil(n / 256) blocks.
#define TILE 256

extern "C" __global__ void not_zeroed(const float* a, const float* x, float* y, unsigned n, unsigned k) {
    __shared__ float x_tile[TILE];
    const unsigned column = blockIdx.x * 256 + threadIdx.x;
    for (unsigned first = 0; first < k; first += TILE) {
        if (first + threadIdx.x < k) x_tile[threadIdx.x] = x[first + threadIdx.x];
        __syncthreads();
        float sum = 0.0f;
        for (unsigned i = 0; i < TILE && first + i < k && column < n; ++i)
            sum += x_tile[i] * a[(first + i) * n + column];
        if (column < n) y[column] += sum;
        __syncthreads();
    }
}
