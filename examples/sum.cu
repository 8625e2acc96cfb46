// The sum of an array, as a program of its own.
// Build and run: nvcc -O3 sum.cu -o sum && ./sum
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

__device__ float warp_sum(float value) {  // __device__: a function that kernels call
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffff, value, offset);
    return value;
}

// Adds the n elements of x to *total. Launch blocks of 256 threads, any number of blocks.
__global__ void sum_all(const float* x, double* total, long long n) {
    __shared__ float sums[8];  // one for each of the block's 8 warps
    float sum = 0;             // of elements i, i + threads of the grid, and so on
    for (long long i = blockIdx.x * 256LL + threadIdx.x; i < n; i += gridDim.x * 256LL)
        sum += x[i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {  // the first warp adds the 8 sums
        sum = warp_sum(threadIdx.x < 8 ? sums[threadIdx.x] : 0);
        if (threadIdx.x == 0) atomicAdd(total, double(sum));  // no block's addition is lost
    }
}

void check(cudaError_t code) {  // every call returns a code; the first error ends the program
    if (code == cudaSuccess) return;
    fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(code));
    exit(1);
}

int main() {
    const long long n = (1 << 26) + 3;  // not a multiple of 256: the array's end is tested too
    std::vector<float> x(n);            // in the host's memory
    double expected = 0;
    for (long long i = 0; i < n; i++) x[i] = (i % 1000) / 1000.0f;
    for (float value : x) expected += value;

    float* device_x;  // addresses in the device's memory, which the host may not read
    double* device_total;
    check(cudaMalloc(&device_x, n * sizeof(float)));
    check(cudaMalloc(&device_total, sizeof(double)));
    check(cudaMemcpy(device_x, x.data(), n * sizeof(float), cudaMemcpyHostToDevice));

    cudaEvent_t start, stop;  // the device notes the time when it reaches them
    check(cudaEventCreate(&start));
    check(cudaEventCreate(&stop));
    for (int turn = 0; turn < 2; turn++) {  // the first loads the kernel, the second is timed
        check(cudaMemset(device_total, 0, sizeof(double)));
        check(cudaEventRecord(start));
        sum_all<<<1024, 256>>>(device_x, device_total, n);  // 1024 blocks of 256; does not wait
        check(cudaGetLastError());  // an error if the launch was refused
        check(cudaEventRecord(stop));
    }
    check(cudaDeviceSynchronize());  // waits; reports an error inside the kernel

    float ms;
    double total;
    check(cudaEventElapsedTime(&ms, start, stop));
    check(cudaMemcpy(&total, device_total, sizeof(double), cudaMemcpyDeviceToHost));
    const bool right = std::abs(total - expected) <= 1e-5 * expected;
    printf("%s: %.3f, on the CPU %.3f\n", right ? "right" : "WRONG", total, expected);
    printf("%.3f ms, %.0f GB/s\n", ms, n * sizeof(float) / ms / 1e6);
    check(cudaFree(device_x));
    check(cudaFree(device_total));
    return right ? 0 : 1;
}
