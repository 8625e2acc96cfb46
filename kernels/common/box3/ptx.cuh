// Copies of three-dimensional boxes by the tensor memory accelerator (sm_90a).
#pragma once
#include "common/ptx.cuh"

// The box at element (x, y, z) of `map`, x fastest, into shared memory, where its rows of x follow each other. What lies
// outside the map comes as zeros and counts as bytes all the same.
__device__ inline void tma_copy_box_3d(void* shared, const TensorMap* map, int x, int y, int z, unsigned long long* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
            (unsigned)__cvta_generic_to_shared(shared)),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"((unsigned)__cvta_generic_to_shared(barrier))
        : "memory");
}
