// kernels/common/ptx/cp_async.cuh on the CPU.
#pragma once
#include "rooflab_simt.h"

// The copy is done when it is waited for, and no sooner.
static inline void copy_async_16(void* shared, const void* global) { simt_copy_async(shared, global, 16, 1); }
static inline void copy_async_16_of_line(void* shared, const void* global, unsigned long long) {
  simt_copy_async(shared, global, 16, 1);
}
static inline void copy_async_8(void* shared, const void* global) { simt_copy_async(shared, global, 8, 1); }
static inline void copy_async_4(void* shared, const void* global) { simt_copy_async(shared, global, 4, 1); }
static inline void copy_async_16_or_zero(void* shared, const void* global, bool take) {
  simt_copy_async(shared, global, 16, take);
}
static inline void copy_async_8_or_zero(void* shared, const void* global, bool take) {
  simt_copy_async(shared, global, 8, take);
}
static inline void copy_async_4_or_zero(void* shared, const void* global, bool take) {
  simt_copy_async(shared, global, 4, take);
}
static inline void copy_async_commit() { simt_copy_commit(); }
template <int PENDING>
static inline void copy_async_wait() {
  simt_copy_wait(PENDING);
}
