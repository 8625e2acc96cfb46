// The instructions of common/ptx that a warp executes together, and its asynchronous copies, one kernel each.
#include "common/ptx/bitwise.cuh"
#include "common/ptx/cache_hints.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"

// Registers of every lane, filled from and emptied to plain row-major matrices as mma.cuh says.
template <typename T>
__device__ unsigned packed(const T* matrix, int width, int row, int column, bool down) {
    unsigned word = 0;
    for (int k = 0; k < int(4 / sizeof(T)); ++k) {
        const T value = down ? matrix[(row + k) * width + column] : matrix[row * width + column + k];
        word |= unsigned(value) << (8 * sizeof(T) * k);
    }
    return word;
}

template <typename T, int M, int K>
__device__ void operands(const T* a, const T* b, unsigned* ra, unsigned* rb) {
    constexpr int each = 4 / sizeof(T);
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    for (int half = 0; half < K / (4 * each); ++half) {
        for (int eight = 0; eight < M / 8; ++eight)
            ra[half * M / 8 + eight] = packed(a, K, g + 8 * eight, 4 * each * half + each * t, false);
        rb[half] = packed(b, 8, 4 * each * half + each * t, g, true);
    }
}

#define PRODUCT(FUNCTION, T, M, K)                                                     \
    unsigned ra[4], rb[2];                                                             \
    operands<T, M, K>(a, b, ra, rb);                                                   \
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;                                \
    for (int k = 0; k < M / 4; ++k) d[k] = c[(g + k / 2 * 8) * 8 + 2 * t + k % 2];     \
    FUNCTION(d, ra, rb);                                                               \
    for (int k = 0; k < M / 4; ++k) c[(g + k / 2 * 8) * 8 + 2 * t + k % 2] = d[k];
extern "C" __global__ void m16n8k16_f16(const unsigned short* a, const unsigned short* b, float* c) {
    float d[4];
    PRODUCT(mma_m16n8k16_f16, unsigned short, 16, 16)
}
extern "C" __global__ void m16n8k8_f16(const unsigned short* a, const unsigned short* b, float* c) {
    float d[4];
    PRODUCT(mma_m16n8k8_f16, unsigned short, 16, 8)
}
extern "C" __global__ void m16n8k32_s8(const unsigned char* a, const unsigned char* b, int* c) {
    int d[4];
    PRODUCT(mma_m16n8k32_s8, unsigned char, 16, 32)
}
extern "C" __global__ void m8n8k16_s8(const unsigned char* a, const unsigned char* b, int* c) {
    int d[4];
    PRODUCT(mma_m8n8k16_s8, unsigned char, 8, 16)
}
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
extern "C" __global__ void m16n8k16_bf16(const unsigned short* a, const unsigned short* b, float* c) {
    float d[4];
    PRODUCT(mma_m16n8k16_bf16, unsigned short, 16, 16)
}
#endif

// Sums in half: c holds 16 x 8 of them, in pairs.
#define PRODUCT_HALF(FUNCTION, K)                                                      \
    unsigned ra[4], rb[2];                                                             \
    operands<unsigned short, 16, K>(a, b, ra, rb);                                     \
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;                                \
    unsigned d[2] = {c[g * 4 + t], c[(g + 8) * 4 + t]};                                \
    FUNCTION(d, ra, rb);                                                               \
    c[g * 4 + t] = d[0], c[(g + 8) * 4 + t] = d[1];
extern "C" __global__ void m16n8k16_f16_sum_f16(const unsigned short* a, const unsigned short* b, unsigned* c) {
    PRODUCT_HALF(mma_m16n8k16_f16_sum_f16, 16)
}
extern "C" __global__ void m16n8k8_f16_sum_f16(const unsigned short* a, const unsigned short* b, unsigned* c) {
    PRODUCT_HALF(mma_m16n8k8_f16_sum_f16, 8)
}

// out [14][32]: the registers of every lane after each kind of load from a tile of 32 rows of 8 elements.
extern "C" __global__ void load_matrices(const uint4* tile, unsigned* out) {
    __shared__ uint4 rows[32];
    const int lane = threadIdx.x;
    rows[lane] = tile[lane];
    __syncthreads();
    unsigned r[14];
    load_matrix_x1(r, &rows[lane]);
    load_matrix_x2(r + 1, &rows[lane]);
    load_matrix_x4(r + 3, &rows[lane]);
    load_matrix_x1_transposed(r + 7, &rows[lane]);
    load_matrix_x2_transposed(r + 8, &rows[lane]);
    load_matrix_x4_transposed(r + 10, &rows[lane]);
    for (int k = 0; k < 14; ++k) out[k * 32 + lane] = r[k];
}

// The whole way of a tile: a [16][16] and b [n][k] = [8][16] in halves, copied late, loaded, multiplied.
extern "C" __global__ void tile_product(const unsigned short* a, const unsigned short* b, float* c, int rows) {
    __shared__ uint4 tile_a[32], tile_b[16];
    const int lane = threadIdx.x;
    const uint4* from = reinterpret_cast<const uint4*>(a);
    copy_async_16_or_zero(&tile_a[lane], from + lane, lane / 2 < rows);
    if (lane < 16) copy_async_16(&tile_b[lane], reinterpret_cast<const uint4*>(b) + lane);
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    unsigned ra[4], rb[2];
    load_matrix_x4(ra, &tile_a[lane % 16 * 2 + lane / 16]);
    load_matrix_x2(rb, &tile_b[lane % 8 * 2 + lane / 8 % 2]);
    float d[4] = {};
    mma_m16n8k16_f16(d, ra, rb);
    const int g = lane / 4, t = lane % 4;
    for (int k = 0; k < 4; ++k) c[(g + k / 2 * 8) * 8 + 2 * t + k % 2] = d[k];
}

// A pipeline of three stages: block b adds up its `steps` tiles of blockDim.x words.
extern "C" __global__ void pipeline(const unsigned* x, unsigned* out, int steps) {
    __shared__ unsigned stage[3][64];
    const int t = threadIdx.x;
    const unsigned* mine = x + blockIdx.x * steps * 64;
    for (int k = 0; k < 2; ++k) {
        if (k < steps) copy_async_4(&stage[k][t], mine + k * 64 + t);
        copy_async_commit();
    }
    unsigned sum = 0;
    for (int k = 0; k < steps; ++k) {
        copy_async_wait<1>();
        __syncthreads();
        sum += stage[k % 3][63 - t];
        if (k + 2 < steps) copy_async_4(&stage[(k + 2) % 3][t], mine + (k + 2) * 64 + t);
        copy_async_commit();
    }
    out[blockIdx.x * 64 + t] = sum;
}

// What a copy has brought before and after its wait: out [3][32].
extern "C" __global__ void copies_are_late(const unsigned* x, unsigned* out) {
    __shared__ unsigned s[64];
    __shared__ uint2 wide[32];
    const int t = threadIdx.x;
    s[t] = s[32 + t] = 7;
    wide[t] = make_uint2(7, 7);
    __syncthreads();
    copy_async_4(&s[t], x + t);
    copy_async_commit();
    copy_async_4_or_zero(&s[32 + t], x + 32 + t, t % 2 == 0);
    copy_async_8_or_zero(&wide[t], x + 2 * t, t < 5);
    copy_async_commit();
    out[t] = s[t];
    copy_async_wait<1>();
    out[32 + t] = s[t] + 1000 * s[32 + t];
    copy_async_wait<0>();
    copy_async_8(&wide[t ^ 16], x + 2 * t);  // in no group, so no wait covers it
    copy_async_wait<0>();
    out[64 + t] = s[32 + t];
    out[96 + t] = wide[t].x + wide[t].y;
}

extern "C" __global__ void words(const unsigned* a, const unsigned* b, const unsigned* c, unsigned* out, int n) {
    const int i = threadIdx.x;
    out[i] = bitwise<0xea>(a[i], b[i], c[i]);
    out[n + i] = bitwise<0x6a>(a[i], b[i], c[i]);
    out[2 * n + i] = bitwise<0x96>(a[i], b[i], c[i]);
    out[3 * n + i] = bitwise<0xd8>(a[i], b[i], c[i]);
}

extern "C" __global__ void powers(const float* x, float* y, const unsigned* halves, unsigned* out) {
    y[threadIdx.x] = exp2_approx(x[threadIdx.x]);
    out[threadIdx.x] = exp2_approx_f16x2(halves[threadIdx.x]);
}

extern "C" __global__ void streaming(const uint4* x, uint4* out) {
    const int t = threadIdx.x;
    prefetch_l2(x + t);
    uint4 v = load_streaming(x + t, evict_first_policy());
    const uint2 w = load_streaming(reinterpret_cast<const uint2*>(x) + t);
    v.x += load_streaming(reinterpret_cast<const unsigned*>(x) + t);
    v.y += w.x, v.z += w.y;
    store_streaming(out + t, v);
}

// --- planted faults --------------------------------------------------------------------------------------------------

extern "C" __global__ void read_before_wait(const unsigned* x, unsigned* y, int n) {
    __shared__ unsigned s[64];
    copy_async_4(&s[threadIdx.x], x + threadIdx.x);  // STARTED read_before_wait
    copy_async_commit();
    __syncthreads();
    y[threadIdx.x] = s[63 - threadIdx.x];  // FAULT read_before_wait
}

extern "C" __global__ void one_group_short(const unsigned* x, unsigned* y, int n) {
    __shared__ unsigned s[64];
    copy_async_4(&s[threadIdx.x], x + threadIdx.x);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];  // FAULT one_group_short
}

extern "C" __global__ void no_barrier_after_wait(const unsigned* x, unsigned* y, int n) {
    __shared__ unsigned s[64];
    copy_async_4(&s[threadIdx.x], x + threadIdx.x);
    copy_async_commit();
    copy_async_wait<0>();
    y[threadIdx.x] = s[threadIdx.x ^ 32];  // FAULT no_barrier_after_wait
}

extern "C" __global__ void copied_over_readers(const unsigned* x, unsigned* y, int n) {
    __shared__ unsigned s[64];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[63 - threadIdx.x];
    copy_async_4(&s[threadIdx.x], x + threadIdx.x);  // FAULT copied_over_readers
    copy_async_commit();
    copy_async_wait<0>();
}

extern "C" __global__ void misaligned_copy(const unsigned* x, unsigned* y, int n) {
    __shared__ uint4 s[64];
    copy_async_16(&s[threadIdx.x], x + threadIdx.x);  // FAULT misaligned_copy
    copy_async_commit();
    copy_async_wait<0>();
}

extern "C" __global__ void copy_past_the_end(const unsigned* x, unsigned* y, int n) {
    __shared__ unsigned s[64];
    copy_async_4(&s[threadIdx.x], x + threadIdx.x + 1);  // FAULT copy_past_the_end
    copy_async_commit();
    copy_async_wait<0>();
}

extern "C" __global__ void copy_to_global(const unsigned* x, unsigned* y, int n) {
    copy_async_4(y + threadIdx.x, x + threadIdx.x);  // FAULT copy_to_global
    copy_async_commit();
    copy_async_wait<0>();
}

extern "C" __global__ void misaligned_row(const unsigned* x, unsigned* y, int n) {
    __shared__ unsigned s[64];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    unsigned r[1];
    load_matrix_x1(r, &s[threadIdx.x % 8 * 6]);  // FAULT misaligned_row
    y[threadIdx.x] = r[0];
}

extern "C" __global__ void row_in_global(const unsigned* x, unsigned* y, int n) {
    unsigned r[1];
    load_matrix_x1(r, x + threadIdx.x % 8 * 4);  // FAULT row_in_global
    y[threadIdx.x] = r[0];
}

extern "C" __global__ void row_not_written(const unsigned* x, unsigned* y, int n) {
    __shared__ uint4 s[8];
    if (threadIdx.x < 7) s[threadIdx.x] = reinterpret_cast<const uint4*>(x)[threadIdx.x];
    __syncthreads();
    unsigned r[1];
    load_matrix_x1(r, &s[threadIdx.x % 8]);  // FAULT row_not_written
    y[threadIdx.x] = r[0];
}

extern "C" __global__ void half_a_warp_multiplies(const unsigned* x, unsigned* y, int n) {
    float d[4] = {};
    if (threadIdx.x < 16) mma_m16n8k8_f16(d, x, x);  // FAULT half_a_warp_multiplies
    __syncthreads();
    y[threadIdx.x] = unsigned(d[0]);
}

extern "C" __global__ void lane_has_left(const unsigned* x, unsigned* y, int n) {
    if (threadIdx.x == 20) return;
    float d[4] = {};
    mma_m16n8k8_f16(d, x, x);  // FAULT lane_has_left
    y[threadIdx.x] = unsigned(d[0]);
}

extern "C" __global__ void short_warp(const unsigned* x, unsigned* y, int n) {
    __shared__ uint4 s[64];
    s[threadIdx.x] = make_uint4(1, 2, 3, 4);
    __syncthreads();
    unsigned r[4];
    load_matrix_x4(r, &s[threadIdx.x]);  // FAULT short_warp
    y[threadIdx.x] = r[3];
}
