// kernels/common/ptx/kept.cuh on the CPU.
#pragma once
#include "rooflab_simt.h"

template <typename T>
static inline T* kept(T* p) {
  return p;
}
static inline int recomputed(int v) { return v; }
