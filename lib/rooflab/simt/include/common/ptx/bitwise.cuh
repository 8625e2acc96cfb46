// kernels/common/ptx/bitwise.cuh on the CPU.
#pragma once
#include "rooflab_simt.h"

template <int TABLE>
static inline unsigned bitwise(unsigned a, unsigned b, unsigned c) {
  unsigned v = 0;
  for (int k = 0; k < 8; ++k)
    if (TABLE >> k & 1) v |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
  return v;
}
