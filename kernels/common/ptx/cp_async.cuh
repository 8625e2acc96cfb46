// Asynchronous copies from global to shared memory (cp.async, sm_80 and up).
//
// A copy is started, and done no sooner than copy_async_wait says so: until then neither its shared bytes may be read
// nor its global ones be written. Copies started since the last copy_async_commit form a group of this thread;
// copy_async_wait<N> returns when all but its latest N groups are done. What other threads copied is theirs to wait
// for: a barrier between their wait and this thread's read. Both addresses are multiples of the size. Below sm_80 a
// copy is an ordinary load and store, and waiting is free.
#pragma once

// 16 bytes through L2 alone (cp.async.cg): data of which L1 need not keep a copy.
__device__ inline void copy_async_16(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
                 "l"(global)
                 : "memory");
#else
    *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
#endif
}

// The same with a policy for L2, and the whole line of 128 bytes comes there: its other pieces will be asked for soon.
__device__ inline void copy_async_16_of_line(void* shared, const void* global, unsigned long long policy) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(shared)),
                 "l"(global), "l"(policy)
                 : "memory");
#else
    *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
#endif
}

// 16 bytes, or 16 zeros where `take` is false: then nothing is read, so `global` may lie outside its array.
__device__ inline void copy_async_16_or_zero(void* shared, const void* global, bool take) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
                 "l"(global), "r"(take ? 16 : 0)
                 : "memory");
#else
    *static_cast<uint4*>(shared) = take ? *static_cast<const uint4*>(global) : make_uint4(0, 0, 0, 0);
#endif
}

// 8 and 4 bytes, which go through L1 (cp.async.ca).
__device__ inline void copy_async_8(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
                 "l"(global)
                 : "memory");
#else
    *static_cast<uint2*>(shared) = *static_cast<const uint2*>(global);
#endif
}

__device__ inline void copy_async_4(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
                 "l"(global)
                 : "memory");
#else
    *static_cast<unsigned*>(shared) = *static_cast<const unsigned*>(global);
#endif
}

__device__ inline void copy_async_8_or_zero(void* shared, const void* global, bool take) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
                 "l"(global), "r"(take ? 8 : 0)
                 : "memory");
#else
    *static_cast<uint2*>(shared) = take ? *static_cast<const uint2*>(global) : make_uint2(0, 0);
#endif
}

__device__ inline void copy_async_4_or_zero(void* shared, const void* global, bool take) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
                 "l"(global), "r"(take ? 4 : 0)
                 : "memory");
#else
    *static_cast<unsigned*>(shared) = take ? *static_cast<const unsigned*>(global) : 0;
#endif
}

__device__ inline void copy_async_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int PENDING>
__device__ inline void copy_async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}
