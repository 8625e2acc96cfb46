// Matrices of 8 x 8 16-bit elements from shared memory (ldmatrix).
//
// Lane l gives the address of a row of 16 bytes, a multiple of 16: lanes 0-7 the rows of the first matrix, 8-15 of the
// second, 16-23 of the third, 24-31 of the fourth (of lanes beyond the last matrix the address is not used). Lane l
// gets in r[m] two neighbours of matrix m: row l / 4, columns 2 (l % 4) and the next, the first in the low half.
// `_transposed` hands out columns instead: column l / 4, rows 2 (l % 4) and the next. All 32 lanes must call it.
#pragma once

__device__ inline void load_matrix_x1(unsigned* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ inline void load_matrix_x2(unsigned* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ inline void load_matrix_x4(unsigned* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ inline void load_matrix_x1_transposed(unsigned* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ inline void load_matrix_x2_transposed(unsigned* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ inline void load_matrix_x4_transposed(unsigned* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}
