// Arithmetic that CUDA C++ has and C++ has not: integer and bit operations, conversions, fast-math names (computed
// exactly here: the GPU's approximations are a matter of its hardware).
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SIMT_ORDER(T)                                         \
  static inline T min(T a, T b) { return b < a ? b : a; }     \
  static inline T max(T a, T b) { return a < b ? b : a; }
SIMT_ORDER(int)
SIMT_ORDER(unsigned)
SIMT_ORDER(long)
SIMT_ORDER(unsigned long)
SIMT_ORDER(long long)
SIMT_ORDER(unsigned long long)
static inline unsigned min(int a, unsigned b) { return min(unsigned(a), b); }
static inline unsigned min(unsigned a, int b) { return min(a, unsigned(b)); }
static inline unsigned max(int a, unsigned b) { return max(unsigned(a), b); }
static inline unsigned max(unsigned a, int b) { return max(a, unsigned(b)); }
static inline float min(float a, float b) { return fminf(a, b); }  // as on the GPU, the number wins over NaN
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(float a, double b) { return fmin(a, b); }
static inline double max(float a, double b) { return fmax(a, b); }
static inline double min(double a, float b) { return fmin(a, b); }
static inline double max(double a, float b) { return fmax(a, b); }

template <typename To, typename From>
inline To simt_bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To bits;
  memcpy(&bits, &value, sizeof(To));
  return bits;
}
static inline float __int_as_float(int v) { return simt_bits<float>(v); }
static inline float __uint_as_float(unsigned v) { return simt_bits<float>(v); }
static inline int __float_as_int(float v) { return simt_bits<int>(v); }
static inline unsigned __float_as_uint(float v) { return simt_bits<unsigned>(v); }
static inline double __longlong_as_double(long long v) { return simt_bits<double>(v); }
static inline long long __double_as_longlong(double v) { return simt_bits<long long>(v); }

static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static inline int __clz(int v) { return v ? __builtin_clz(unsigned(v)) : 32; }
static inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __ffsll(long long v) { return __builtin_ffsll(v); }
static inline unsigned __brev(unsigned v) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (v >> bit & 1u) << (31 - bit);
  return reversed;
}
static inline unsigned long long __brevll(unsigned long long v) {
  return (unsigned long long)__brev(unsigned(v)) << 32 | __brev(unsigned(v >> 32));
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
static inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned((((unsigned long long)high << 32 | low) << (shift & 31)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned(((unsigned long long)high << 32 | low) >> (shift & 31));
}
// Byte k of the result is byte (selector nibble k) of the eight bytes b:a; a nibble's top bit asks for that byte's sign.
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned result = 0;
  for (int k = 0; k < 4; ++k) {
    const unsigned nibble = selector >> (4 * k) & 0xf;
    unsigned byte = unsigned(both >> (8 * (nibble & 7))) & 0xff;
    if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << (8 * k);
  }
  return result;
}

// Four products of signed (unsigned) bytes added to c, wrapping.
static inline int __dp4a(int a, int b, int c) {
  SIMT_COUNT(SIMT_DP4A);
  unsigned sum = unsigned(c);
  for (int k = 0; k < 32; k += 8) sum += unsigned(int(int8_t(unsigned(a) >> k)) * int(int8_t(unsigned(b) >> k)));
  return int(sum);
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  SIMT_COUNT(SIMT_DP4A);
  for (int k = 0; k < 32; k += 8) c += (a >> k & 0xff) * (b >> k & 0xff);
  return c;
}
// Four bytes at once: wrapping and signed-saturating sums and differences, and equality as 0xff or 0.
template <typename F>
inline unsigned simt_bytes(unsigned a, unsigned b, F f) {
  unsigned result = 0;
  for (int k = 0; k < 32; k += 8) result |= (unsigned(f(int(int8_t(a >> k)), int(int8_t(b >> k)))) & 0xff) << k;
  return result;
}
static inline unsigned __vadd4(unsigned a, unsigned b) { return simt_bytes(a, b, [](int p, int q) { return p + q; }); }
static inline unsigned __vsub4(unsigned a, unsigned b) { return simt_bytes(a, b, [](int p, int q) { return p - q; }); }
static inline unsigned __vaddss4(unsigned a, unsigned b) {
  return simt_bytes(a, b, [](int p, int q) { return min(127, max(-128, p + q)); });
}
static inline unsigned __vsubss4(unsigned a, unsigned b) {
  return simt_bytes(a, b, [](int p, int q) { return min(127, max(-128, p - q)); });
}
static inline unsigned __vcmpeq4(unsigned a, unsigned b) {
  return simt_bytes(a, b, [](int p, int q) { return p == q ? 0xff : 0; });
}
static inline unsigned __vcmpne4(unsigned a, unsigned b) { return ~__vcmpeq4(a, b); }

// Two products of 16-bit numbers with the low (or high) bytes of b, added to c.
static inline int __dp2a_lo(int a, int b, int c) {
  return int(unsigned(c) + unsigned(int16_t(a) * int8_t(b)) + unsigned(int16_t(a >> 16) * int8_t(b >> 8)));
}
static inline int __dp2a_hi(int a, int b, int c) { return __dp2a_lo(a, b >> 16, c); }
static inline unsigned __vabsdiffu4(unsigned a, unsigned b) {
  return simt_bytes(a, b, [](int p, int q) { return abs((p & 0xff) - (q & 0xff)); });
}
static inline unsigned __vmaxs4(unsigned a, unsigned b) { return simt_bytes(a, b, [](int p, int q) { return max(p, q); }); }
static inline unsigned __vmins4(unsigned a, unsigned b) { return simt_bytes(a, b, [](int p, int q) { return min(p, q); }); }
static inline unsigned __vneg4(unsigned a) { return __vsub4(0, a); }
static inline unsigned __vabs4(unsigned a) { return simt_bytes(a, 0, [](int p, int) { return abs(p); }); }

// Conversions saturate, and NaN becomes 0, as on the GPU.
template <typename To, typename From>
inline To simt_saturated(From v, double low, double high) {
  if (v != v) return 0;
  return double(v) <= low ? To(low) : double(v) >= high ? To(high) : To(v);
}
#define SIMT_TO_INT(SUFFIX, ROUND)                                                                                    \
  static inline int __float2int_##SUFFIX(float v) {                                                                   \
    return simt_saturated<int>(ROUND(double(v)), -2147483648.0, 2147483647.0);                                        \
  }                                                                                                                   \
  static inline unsigned __float2uint_##SUFFIX(float v) {                                                             \
    return simt_saturated<unsigned>(ROUND(double(v)), 0.0, 4294967295.0);                                             \
  }
SIMT_TO_INT(rn, nearbyint)
SIMT_TO_INT(rz, trunc)
SIMT_TO_INT(ru, ceil)
SIMT_TO_INT(rd, floor)
static inline float __int2float_rn(int v) { return float(v); }
static inline float __uint2float_rn(unsigned v) { return float(v); }
static inline float __double2float_rn(double v) { return float(v); }

static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float v) { return v > 0.0f ? fminf(v, 1.0f) : 0.0f; }  // NaN becomes 0
static inline float rsqrtf(float v) { return float(1.0 / sqrt(double(v))); }
static inline double rsqrt(double v) { return 1.0 / sqrt(v); }
static inline float __frsqrt_rn(float v) { return rsqrtf(v); }
// The host's own headers declare functions of these names.
#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
