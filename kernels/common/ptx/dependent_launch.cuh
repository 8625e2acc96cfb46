// Programmatic dependent launch (sm_90 and up): a kernel's blocks may start before the kernel in front has ended. On
// older chips the chain is an ordinary serial one.
#pragma once

// Wait until the kernels that this one depends on have finished and their writes are visible.
__device__ inline void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Say that dependents may start.
__device__ inline void let_successor_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
