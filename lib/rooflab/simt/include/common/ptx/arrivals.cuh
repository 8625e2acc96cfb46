// kernels/common/ptx/arrivals.cuh on the CPU.
#pragma once
#include "rooflab_simt.h"

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
