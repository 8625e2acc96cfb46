// gemv 2, coalesced: a thread an output column, so that neighbouring lanes read neighbouring floats.
//
// Purpose  every sector that moves is used whole. And no more than that: at n = 4096 there are 16 blocks, so most of
//          a large GPU has nothing to do.
// Shapes   a [k, n] float row-major, x [k] float, y [n] float: y = x a. Any n and k.
// Bytes    4 n k + 4 k + 4 n; 4 sectors a request, all of them used.
// Launch   THREADS threads a block, ceil(n / THREADS) blocks.
// Macros   THREADS = 256: threads a block;
//          TILE = 4096: floats of x in shared memory at a time.
// Changed  from a warp to a thread a column; x is kept in shared memory, TILE floats at a time whatever k is.
extern "C" __global__ void __launch_bounds__(THREADS)
    gemv_coalesced(const float* __restrict__ a, const float* __restrict__ x, float* __restrict__ y, unsigned n, unsigned k) {
    __shared__ float x_tile[TILE];
    const unsigned column = blockIdx.x * THREADS + threadIdx.x;
    float sum = 0.0f;
    for (unsigned first = 0; first < k; first += TILE) {
        const unsigned rows = min(unsigned(TILE), k - first);
        __syncthreads();  // no thread may overwrite a tile that another one still reads
        for (unsigned i = threadIdx.x; i < rows; i += THREADS) x_tile[i] = x[first + i];
        __syncthreads();  // a thread without a column comes here too: leaving early would break the barrier
        if (column < n) {
            const float* column_of_a = a + first * (unsigned long long)n + column;
#pragma unroll 4
            for (unsigned i = 0; i < rows; ++i) sum = fmaf(x_tile[i], column_of_a[i * (unsigned long long)n], sum);
        }
    }
    if (column < n) y[column] = sum;
}
