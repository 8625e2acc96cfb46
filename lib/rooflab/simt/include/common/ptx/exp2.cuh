// kernels/common/ptx/exp2.cuh on the CPU.
#pragma once
#include "rooflab_simt.h"
#include "simt/small_floats.h"

// Rounded as the host's library rounds it; small numbers become 0 as on the GPU.
static inline float exp2_approx(float x) { return x < -126.0f ? 0.0f : exp2f(x); }
static inline unsigned exp2_approx_f16x2(unsigned x) {
  const unsigned low = __half::rounded(exp2(double(float(__half::of_bits(uint16_t(x)))))).bits;
  return low | unsigned(__half::rounded(exp2(double(float(__half::of_bits(uint16_t(x >> 16)))))).bits) << 16;
}
