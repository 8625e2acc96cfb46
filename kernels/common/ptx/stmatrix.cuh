// Matrices of 8 x 8 16-bit elements from a warp's registers to shared memory (stmatrix; sm_90a).
#pragma once

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Four matrices of 8 x 8 halves, each column a row of `shared`: lane 8 m + j gives the address of column j of matrix m.
// Register m of a lane holds row lane / 4 of matrix m, columns lane % 4 * 2 and the next.
__device__ inline void store_matrix_x4_transposed(void* shared, const unsigned* r) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                     (unsigned)__cvta_generic_to_shared(shared)),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}
#endif
