// all_reduce_rmsnorm 1, pdl: sum a branch over GPUs where it is added to the residual and normalised, a block a row.
//
// Purpose  all_reduce/3_flag_in_data is a launch of its own between a product and a norm, and what it sums is written
//          and read again. Here the sum never leaves registers, and the kernel is there when the product ends.
// Shapes   residual [n][width] float, read and written; parts [SPLITS][n][width] float; weights [width] half; x [n][width]
//          half. A mailbox is ulonglong2 [2][WORLD][rows][width / 4]: four halves and twice the round; rounds [rows]
//          uint32, how often each row has been summed. n <= rows; width a multiple of 4 and at most 4 THREADS PARTS.
//          Where blockIdx.y is a GPU, residual, x and rounds have a leading [GPUs], parts [GPUs][SPLITS].
// Bytes    n width (4 SPLITS + 4 + 4 + 2 + 4 (WORLD - 1)) here, and 4 n width (WORLD - 1) written over links.
// Launch   THREADS threads a block, a block for each of the n rows. grid.y = 1; the CPU target runs all GPUs in one launch,
//          with grid.y = the number of GPUs. Dependent launch (PDL) after the product.
// Macros   THREADS = 384: threads a block;
//          PARTS = 1: vectors of 4 numbers a thread keeps in registers;
//          SPLITS = 1: parts of this GPU's branch.
// Below    batch_rmsnorm/1_pdl, which adds the parts of one GPU, and all_reduce/3_flag_in_data.
#include "common/peers.cuh"
#include "common/ptx/cache_hints.cuh"
#include "common/ptx/dependent_launch.cuh"
#include "common/ptx/system.cuh"
#include "common/reduce.cuh"

__device__ inline float4 widened(uint2 bits) {
    const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&bits.x));
    const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&bits.y));
    return make_float4(low.x, low.y, high.x, high.y);
}

__device__ inline uint2 narrowed(float4 v) {
    const __half2 low = __floats2half2_rn(v.x, v.y), high = __floats2half2_rn(v.z, v.w);
    return make_uint2(*reinterpret_cast<const unsigned*>(&low), *reinterpret_cast<const unsigned*>(&high));
}

__device__ inline void add(float4& sum, float4 v) { sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w; }

extern "C" __global__ void __launch_bounds__(THREADS)
    all_reduce_rmsnorm_pdl(float* residual, const float* parts, const __half* __restrict__ weights, __half* x, char* mail0,
                           char* mail1, char* mail2, char* mail3, char* mail4, char* mail5, char* mail6, char* mail7,
                           unsigned* rounds, unsigned* lost, int width, float epsilon, int first, int rows) {
    __shared__ float by;
    const Mailboxes mail = {{mail0, mail1, mail2, mail3, mail4, mail5, mail6, mail7}};
    const int rank = first + blockIdx.y;
    const size_t row = (size_t)blockIdx.x * width, apart = (size_t)gridDim.x * width;
    residual += blockIdx.y * apart + row, x += blockIdx.y * apart + row;
    parts += blockIdx.y * SPLITS * apart + row;
    rounds += blockIdx.y * rows + blockIdx.x, lost += blockIdx.y;
    let_successor_start();
#pragma unroll 1
    for (int k = 64 * threadIdx.x; k < width; k += 64 * THREADS) prefetch_l2(weights + k);
    wait_for_predecessor();
    // Written by the norm before, which has ended: what this waited for had waited for it.
    const unsigned round = __ldcg(rounds) + 1;
    const unsigned long long stamp = (unsigned long long)round << 32;
    const size_t box = (size_t)rows * (width / 4), slot = (round & 1) * WORLD * box + row / 4;
    uint2 mine[PARTS];
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const int k = 4 * (threadIdx.x + p * THREADS);
        mine[p] = make_uint2(0, 0);
        if (k >= width) continue;
        float4 sum = __ldcg(reinterpret_cast<const float4*>(parts + k));
#pragma unroll
        for (int s = 1; s < SPLITS; ++s) add(sum, __ldcg(reinterpret_cast<const float4*>(parts + s * apart + k)));
        mine[p] = narrowed(sum);
        const ulonglong2 packet = make_ulonglong2(stamp | mine[p].x, stamp | mine[p].y);
#pragma unroll
        for (int r = 0; r < WORLD; ++r)
            if (r != rank) store_pair_system(reinterpret_cast<ulonglong2*>(mail.of[r]) + slot + rank * box + k / 4, packet);
    }
    const char* own = mail.of[0];
#pragma unroll
    for (int r = 1; r < WORLD; ++r)
        if (r == rank) own = mail.of[r];
    float4 v[PARTS];
    float squares = 0.0f;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const int k = 4 * (threadIdx.x + p * THREADS);
        v[p] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (k >= width) continue;
        v[p] = __ldcg(reinterpret_cast<const float4*>(residual + k));
        // In the order of the GPUs, so that all of them have the same bits.
#pragma unroll
        for (int r = 0; r < WORLD; ++r) {
            uint2 words = mine[p];
            if (r != rank)
                words = arrived(reinterpret_cast<const ulonglong2*>(own) + slot + r * box + k / 4, round, lost);
            add(v[p], widened(words));
        }
        *reinterpret_cast<float4*>(residual + k) = v[p];
        squares += v[p].x * v[p].x + v[p].y * v[p].y + v[p].z * v[p].z + v[p].w * v[p].w;
    }
    squares = block_sum<THREADS>(squares);
    if (threadIdx.x == 0) {
        by = rsqrtf(squares / width + epsilon);
        *rounds = round;  // all threads have read it: they have met in block_sum
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const int k = 4 * (threadIdx.x + p * THREADS);
        if (k >= width) continue;
        const float4 w = widened(*reinterpret_cast<const uint2*>(weights + k));
        *reinterpret_cast<uint2*>(x + k) =
            narrowed(make_float4(v[p].x * by * w.x, v[p].y * by * w.y, v[p].z * by * w.z, v[p].w * by * w.w));
    }
}
