// kernels/common/ptx.cuh on the CPU: the same functions, in C++. It stands in front of that file on the include path,
// so the GPU's source knows nothing of it. Instructions that only Hopper has are refused by name before compiling.
#pragma once
#include "rooflab_simt.h"

static inline uint4 load_streaming(const uint4* p) { return *p; }
static inline void store_streaming(uint4* p, uint4 v) { *p = v; }

// Launches run one after another: whoever came before has finished.
static inline void wait_for_predecessor() {}
static inline void let_successor_start() {}

static inline unsigned add_release(unsigned* p, unsigned v) { return atomicAdd(p, v); }
static inline unsigned load_acquire(const unsigned* p) {
  unsigned v;
  simt_atomic_read(&v, p, sizeof v, 1);
  return v;
}
