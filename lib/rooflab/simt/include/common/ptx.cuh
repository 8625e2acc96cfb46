// kernels/common/ptx.cuh on the CPU: the same functions, in C++. It stands in front of that file on the include path,
// so the GPU's source knows nothing of it. Instructions that only Hopper has are refused by name before compiling.
#pragma once
#include "rooflab_simt.h"
#include "simt/small_floats.h"

static inline uint4 load_streaming(const uint4* p) { return *p; }
static inline uint2 load_streaming(const uint2* p) { return *p; }
static inline unsigned load_streaming(const unsigned* p) { return *p; }
static inline unsigned long long evict_first_policy() { return 0; }
static inline uint4 load_streaming(const uint4* p, unsigned long long) { return *p; }
static inline void prefetch_l2(const void*) {}
static inline void store_streaming(uint4* p, uint4 v) { *p = v; }

// Launches run one after another: the one before has finished.
static inline void wait_for_predecessor() {}
static inline void let_successor_start() {}

static inline unsigned add_release(unsigned* p, unsigned v) { return atomicAdd(p, v); }
static inline unsigned load_acquire(const unsigned* p) {
  unsigned v;
  simt_atomic_read(&v, p, sizeof v, 1);
  return v;
}

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

// The low half of a barrier counts arrivals that are missing, then stands how many a phase has, the top bit is the parity.
static inline void arrivals_init(unsigned long long* barrier, unsigned arrivals) {
  *barrier = arrivals | (unsigned long long)arrivals << 32;
}
static inline void arrivals_add(unsigned long long* barrier) {
  unsigned long long state;
  simt_atomic_read(&state, barrier, sizeof state, 0);
  if (unsigned(--state) == 0) state = (state ^ 1ull << 63) | (state >> 32 & 0x7fffffff);
  simt_atomic_write(barrier, &state, sizeof state);
}
static inline void arrivals_add_when_copied(unsigned long long* barrier) {
  simt_copy_commit();
  simt_copy_wait(0);
  arrivals_add(barrier);
}
static inline void arrivals_wait(unsigned long long* barrier, unsigned parity) {
  unsigned long long state;
  do simt_atomic_read(&state, barrier, sizeof state, 1);
  while (state >> 63 == parity);
}

static inline bool arrivals_over(unsigned long long* barrier, unsigned parity) {
  unsigned long long state;
  simt_atomic_read(&state, barrier, sizeof state, 1);
  return state >> 63 != parity;
}
static inline void sync_some(unsigned long long* barrier, int, int) {
  unsigned long long state;
  simt_atomic_read(&state, barrier, sizeof state, 0);
  const unsigned parity = state >> 63;
  arrivals_add(barrier);
  arrivals_wait(barrier, parity);
}

static inline void load_matrix_x1(unsigned* r, const void* row, SIMT_HERE) {
  simt_load_matrix(1, r, row, file, line);
}
static inline void load_matrix_x2(unsigned* r, const void* row, SIMT_HERE) {
  simt_load_matrix(2, r, row, file, line);
}
static inline void load_matrix_x4(unsigned* r, const void* row, SIMT_HERE) {
  simt_load_matrix(4, r, row, file, line);
}
static inline void load_matrix_x1_transposed(unsigned* r, const void* row, SIMT_HERE) {
  simt_load_matrix(-1, r, row, file, line);
}
static inline void load_matrix_x2_transposed(unsigned* r, const void* row, SIMT_HERE) {
  simt_load_matrix(-2, r, row, file, line);
}
static inline void load_matrix_x4_transposed(unsigned* r, const void* row, SIMT_HERE) {
  simt_load_matrix(-4, r, row, file, line);
}

static inline void mma_m16n8k8_f16(float* d, const unsigned* a, const unsigned* b, SIMT_HERE) {
  simt_product(SIMT_M16N8K8_F16, d, a, b, file, line);
}
static inline void mma_m16n8k16_f16(float* d, const unsigned* a, const unsigned* b, SIMT_HERE) {
  simt_product(SIMT_M16N8K16_F16, d, a, b, file, line);
}
static inline void mma_m16n8k8_f16_sum_f16(unsigned* d, const unsigned* a, const unsigned* b, SIMT_HERE) {
  simt_product(SIMT_M16N8K8_F16_SUM_F16, d, a, b, file, line);
}
static inline void mma_m16n8k16_f16_sum_f16(unsigned* d, const unsigned* a, const unsigned* b, SIMT_HERE) {
  simt_product(SIMT_M16N8K16_F16_SUM_F16, d, a, b, file, line);
}
static inline void mma_m16n8k16_bf16(float* d, const unsigned* a, const unsigned* b, SIMT_HERE) {
  simt_product(SIMT_M16N8K16_BF16, d, a, b, file, line);
}
static inline void mma_m8n8k16_s8(int* d, const unsigned* a, const unsigned* b, SIMT_HERE) {
  simt_product(SIMT_M8N8K16_S8, d, a, b, file, line);
}
static inline void mma_m16n8k32_s8(int* d, const unsigned* a, const unsigned* b, SIMT_HERE) {
  simt_product(SIMT_M16N8K32_S8, d, a, b, file, line);
}

template <int TABLE>
static inline unsigned bitwise(unsigned a, unsigned b, unsigned c) {
  unsigned v = 0;
  for (int k = 0; k < 8; ++k)
    if (TABLE >> k & 1) v |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
  return v;
}
template <typename T>
static inline T* kept(T* p) {
  return p;
}
// Rounded as the host's library rounds it; small numbers become 0 as on the GPU.
static inline float exp2_approx(float x) { return x < -126.0f ? 0.0f : exp2f(x); }
static inline unsigned exp2_approx_f16x2(unsigned x) {
  const unsigned low = __half::rounded(exp2(double(float(__half::of_bits(uint16_t(x)))))).bits;
  return low | unsigned(__half::rounded(exp2(double(float(__half::of_bits(uint16_t(x >> 16)))))).bits) << 16;
}
