// Tiles copied by the tensor memory accelerator (TMA, sm_90a).
//
// A map describes a matrix in global memory and the box of it that one copy brings, as the host's encoder made it; it
// is a kernel argument, `const __grid_constant__ TensorMap`. One thread starts a copy and says how many bytes the
// mbarrier has to wait for besides its arrivals; what lies outside the matrix arrives as zeros.
#pragma once

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
struct __align__(64) TensorMap {
    unsigned char bytes[128];
};

// `bytes` that lie one after another, a multiple of 16 as both addresses are.
__device__ inline void tma_copy_bytes(void* shared, const void* global, unsigned bytes, unsigned long long* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            (unsigned)__cvta_generic_to_shared(shared)),
        "l"(global), "r"(bytes), "r"((unsigned)__cvta_generic_to_shared(barrier))
        : "memory");
}

__device__ inline void tma_copy_box(void* shared, const TensorMap* map, int column, int row, unsigned long long* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            (unsigned)__cvta_generic_to_shared(shared)),
        "l"(map), "r"(column), "r"(row), "r"((unsigned)__cvta_generic_to_shared(barrier))
        : "memory");
}

// The same into the shared memory of every block of the cluster whose bit `blocks` has, at the same place and with each
// one's own barrier.
__device__ inline void tma_copy_box_to(unsigned short blocks, void* shared, const TensorMap* map, int column, int row,
                                       unsigned long long* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
        "l"(map), "r"(column), "r"(row), "r"((unsigned)__cvta_generic_to_shared(barrier)), "h"(blocks)
        : "memory");
}

// The box at element (x, y, z) of `map`, x fastest, into shared memory, where its rows of x follow each other. What lies
// outside the map comes as zeros and counts as bytes all the same.
__device__ inline void tma_copy_box_3d(void* shared, const TensorMap* map, int x, int y, int z, unsigned long long* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
            (unsigned)__cvta_generic_to_shared(shared)),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"((unsigned)__cvta_generic_to_shared(barrier))
        : "memory");
}
#endif
