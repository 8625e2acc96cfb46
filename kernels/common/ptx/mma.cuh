// Products of small matrices by a warp (mma.sync): d [m][n] += a [m][k] b [k][n].
//
// All 32 lanes must call it, each with its part of the three matrices. With g = lane / 4 and t = lane % 4:
//
// m16n8k16, 16-bit elements, two to a register (the lower column or row in the low half):
//   a[0] row g,     columns 2t, 2t + 1          a[2] row g,     columns 2t + 8, 2t + 9
//   a[1] row g + 8, columns 2t, 2t + 1          a[3] row g + 8, columns 2t + 8, 2t + 9
//   b[0] column g,  rows 2t, 2t + 1             b[1] column g,  rows 2t + 8, 2t + 9
//   d[0], d[1] row g, columns 2t, 2t + 1        d[2], d[3] row g + 8, columns 2t, 2t + 1
// so load_matrix_x4 of a 16 x 16 tile [m][k], lane l giving row l % 16 and column 8 (l / 16), fills a;
// load_matrix_x2 of [n][k] storage, row l % 8 and column 8 (l / 8 % 2), fills b; of [k][n] storage,
// load_matrix_x2_transposed of row l % 16 does.
// m16n8k8 is its first half: a[0], a[1], b[0].
//
// m16n8k32, bytes, four to a register (the lowest column or row in the lowest byte):
//   a[0] row g,     columns 4t ... 4t + 3       a[2] row g,     columns 4t + 16 ... 4t + 19
//   a[1] row g + 8, columns 4t ... 4t + 3       a[3] row g + 8, columns 4t + 16 ... 4t + 19
//   b[0] column g,  rows 4t ... 4t + 3          b[1] column g,  rows 4t + 16 ... 4t + 19
//   d as above, 32-bit integers that wrap
// so with bytes taken in pairs the ldmatrix of 16-bit elements fills a and b here too.
// m8n8k16: a[0] row g, columns 4t ...; b[0] column g, rows 4t ...; d[0], d[1] row g, columns 2t, 2t + 1.
//
// Below sm_80 the larger shapes are made of the smaller ones; bfloat16 does not exist there.
#pragma once

__device__ inline void mma_m16n8k8_f16(float* d, const unsigned* a, const unsigned* b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

__device__ inline void mma_m16n8k16_f16(float* d, const unsigned* a, const unsigned* b) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    mma_m16n8k8_f16(d, a, b);
    mma_m16n8k8_f16(d, a + 2, b + 1);
#endif
}

// Sums in half too, two to a register: d[0] row g, d[1] row g + 8, columns 2t, 2t + 1.
__device__ inline void mma_m16n8k8_f16_sum_f16(unsigned* d, const unsigned* a, const unsigned* b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3}, {%4}, {%0,%1};"
                 : "+r"(d[0]), "+r"(d[1])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

__device__ inline void mma_m16n8k16_f16_sum_f16(unsigned* d, const unsigned* a, const unsigned* b) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
                 : "+r"(d[0]), "+r"(d[1])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    mma_m16n8k8_f16_sum_f16(d, a, b);
    mma_m16n8k8_f16_sum_f16(d, a + 2, b + 1);
#endif
}

#if __CUDA_ARCH__ >= 800
__device__ inline void mma_m16n8k16_bf16(float* d, const unsigned* a, const unsigned* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

__device__ inline void mma_m8n8k16_s8(int* d, const unsigned* a, const unsigned* b) {
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+r"(d[0]), "+r"(d[1])
                 : "r"(a[0]), "r"(b[0]));
}

__device__ inline void mma_m16n8k32_s8(int* d, const unsigned* a, const unsigned* b) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    mma_m8n8k16_s8(d, a, b);
    mma_m8n8k16_s8(d, a + 2, b + 1);
    mma_m8n8k16_s8(d + 2, a + 1, b);
    mma_m8n8k16_s8(d + 2, a + 3, b + 1);
#endif
}
