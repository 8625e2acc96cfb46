// Thread block clusters (sm_90 and up).
//
// Blocks of a cluster run at the same time and can read each other's shared memory, at the address that the same
// variable has in every block of the kernel.
#pragma once

#if __CUDA_ARCH__ >= 900
__device__ inline unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// All threads of all the cluster's blocks wait here; what each wrote into shared memory before, all see after.
__device__ inline void cluster_wait() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The four floats at `shared` in the shared memory of the cluster's block `rank`.
__device__ inline float4 cluster_load(const float4* shared, unsigned rank) {
    float4 v;
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(there)
        : "r"((unsigned)__cvta_generic_to_shared(shared)), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(there));
    return v;
}
#endif
