// half and bfloat16: 16-bit floats of our own, whose every operation is rounded once, to nearest even.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "rooflab_simt.h"

// MANTISSA explicit bits; LOWEST is the exponent of the smallest normal number.
template <int MANTISSA, int LOWEST>
struct alignas(2) SimtSmall {
  uint16_t bits;

  static constexpr uint16_t INFINITE = uint16_t(0x7fff >> MANTISSA << MANTISSA);
  static SimtSmall of_bits(uint16_t bits) {
    SimtSmall value;
    value.bits = bits;
    return value;
  }
  static SimtSmall rounded(double exact) {
    if (exact != exact) return of_bits(0x7fff);
    const uint16_t sign = signbit(exact) ? 0x8000 : 0;
    const double size = fabs(exact);
    if (size == 0 || isinf(exact)) return of_bits(sign | (size == 0 ? 0 : INFINITE));
    const int exponent = ilogb(size) < LOWEST ? LOWEST : ilogb(size);
    const double steps = nearbyint(ldexp(size, MANTISSA - exponent));  // in units of the last place
    const double whole = ldexp(double(exponent - LOWEST), MANTISSA) + steps;  // a carry moves into the exponent
    return of_bits(sign | uint16_t(whole < INFINITE ? whole : INFINITE));
  }

  SimtSmall() = default;
  SimtSmall(float v) { *this = rounded(v); }
  SimtSmall(double v) { *this = rounded(v); }
  SimtSmall(int v) { *this = rounded(v); }
  SimtSmall(unsigned v) { *this = rounded(v); }
  SimtSmall(short v) { *this = rounded(v); }
  SimtSmall(unsigned short v) { *this = rounded(v); }
  SimtSmall(long long v) { *this = rounded(double(v)); }
  SimtSmall(unsigned long long v) { *this = rounded(double(v)); }
  operator float() const {
    const uint32_t sign = uint32_t(bits & 0x8000) << 16, rest = uint32_t(bits & 0x7fff) << (23 - MANTISSA);
    if ((bits & INFINITE) == INFINITE) return simt_bits<float>(sign | 0x7f800000u | rest);
    // The exponent's bias is put right by a multiplication, which normalises small numbers too.
    const float scale = simt_bits<float>(uint32_t(127 + LOWEST + 126) << 23);
    return simt_bits<float>(sign | simt_bits<uint32_t>(simt_bits<float>(rest) * scale));
  }

  // Sums, products, quotients of 8 or 11 bits are exact in a double, or far from a tie: one rounding.
  friend SimtSmall operator+(SimtSmall a, SimtSmall b) { return rounded(double(float(a)) + double(float(b))); }
  friend SimtSmall operator-(SimtSmall a, SimtSmall b) { return rounded(double(float(a)) - double(float(b))); }
  friend SimtSmall operator*(SimtSmall a, SimtSmall b) { return rounded(double(float(a)) * double(float(b))); }
  friend SimtSmall operator/(SimtSmall a, SimtSmall b) { return rounded(double(float(a)) / double(float(b))); }
  friend SimtSmall operator-(SimtSmall a) { return of_bits(a.bits ^ 0x8000); }
  friend SimtSmall operator+(SimtSmall a) { return a; }
  SimtSmall& operator+=(SimtSmall b) { return *this = *this + b; }
  SimtSmall& operator-=(SimtSmall b) { return *this = *this - b; }
  SimtSmall& operator*=(SimtSmall b) { return *this = *this * b; }
  SimtSmall& operator/=(SimtSmall b) { return *this = *this / b; }
  friend bool operator==(SimtSmall a, SimtSmall b) { return float(a) == float(b); }
  friend bool operator!=(SimtSmall a, SimtSmall b) { return float(a) != float(b); }
  friend bool operator<(SimtSmall a, SimtSmall b) { return float(a) < float(b); }
  friend bool operator<=(SimtSmall a, SimtSmall b) { return float(a) <= float(b); }
  friend bool operator>(SimtSmall a, SimtSmall b) { return float(a) > float(b); }
  friend bool operator>=(SimtSmall a, SimtSmall b) { return float(a) >= float(b); }
};

template <typename T>
struct alignas(4) SimtPair {
  T x, y;
  SIMT_WHOLE(SimtPair, simt_4b)
#ifndef ROOFLAB_WATCHED
  SimtPair() = default;
#endif
  SimtPair(T a, T b) : x(a), y(b) {}
  friend SimtPair operator+(SimtPair a, SimtPair b) { return {a.x + b.x, a.y + b.y}; }
  friend SimtPair operator-(SimtPair a, SimtPair b) { return {a.x - b.x, a.y - b.y}; }
  friend SimtPair operator*(SimtPair a, SimtPair b) { return {a.x * b.x, a.y * b.y}; }
  friend SimtPair operator/(SimtPair a, SimtPair b) { return {a.x / b.x, a.y / b.y}; }
  friend SimtPair operator-(SimtPair a) { return {-a.x, -a.y}; }
  SimtPair& operator+=(SimtPair b) { return *this = *this + b; }
  SimtPair& operator-=(SimtPair b) { return *this = *this - b; }
  SimtPair& operator*=(SimtPair b) { return *this = *this * b; }
  SimtPair& operator/=(SimtPair b) { return *this = *this / b; }
  friend bool operator==(SimtPair a, SimtPair b) { return a.x == b.x && a.y == b.y; }
  friend bool operator!=(SimtPair a, SimtPair b) { return !(a == b); }
};

typedef SimtSmall<10, -14> __half;
typedef SimtSmall<7, -126> __nv_bfloat16;
typedef SimtPair<__half> __half2;
typedef SimtPair<__nv_bfloat16> __nv_bfloat162;
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

// a b + c, rounded once: the sum in double goes to the odd neighbour where it is inexact, so that a second rounding
// can't see a tie that is none.
template <typename T>
inline T simt_fma(T a, T b, T c) {
  const double product = double(float(a)) * double(float(b)), add = float(c);  // exact: at most 22 bits
  const double sum = product + add;
  if (isnan(sum) || isinf(sum)) return T::rounded(sum);
  const double back = sum - product, lost = (product - (sum - back)) + (add - back);
  if (lost == 0 || (simt_bits<uint64_t>(sum) & 1)) return T::rounded(sum);
  return T::rounded(nextafter(sum, lost > 0 ? INFINITY : -INFINITY));
}

#define SIMT_BOTH(NAME, FROM, EXPRESSION)                                \
  template <int M, int L>                                                \
  inline SimtSmall<M, L> NAME(SimtSmall<M, L> a) {                       \
    typedef SimtSmall<M, L> T;                                           \
    return EXPRESSION;                                                   \
  }                                                                      \
  template <typename T>                                                  \
  inline SimtPair<T> FROM(SimtPair<T> a) { return {NAME(a.x), NAME(a.y)}; }
SIMT_BOTH(__hneg, __hneg2, -a)
SIMT_BOTH(__habs, __habs2, T::of_bits(a.bits & 0x7fff))
SIMT_BOTH(hexp, h2exp, T(expf(a)))
SIMT_BOTH(hexp2, h2exp2, T(exp2f(a)))
SIMT_BOTH(hlog, h2log, T(logf(a)))
SIMT_BOTH(hlog2, h2log2, T(log2f(a)))
SIMT_BOTH(hsqrt, h2sqrt, T(sqrt(double(float(a)))))
SIMT_BOTH(hrsqrt, h2rsqrt, T(1.0 / sqrt(double(float(a)))))
SIMT_BOTH(hrcp, h2rcp, T(1.0 / double(float(a))))
SIMT_BOTH(hsin, h2sin, T(sinf(a)))
SIMT_BOTH(hcos, h2cos, T(cosf(a)))
SIMT_BOTH(htanh, h2tanh, T(tanhf(a)))
SIMT_BOTH(hfloor, h2floor, T(floorf(a)))
SIMT_BOTH(hceil, h2ceil, T(ceilf(a)))
SIMT_BOTH(hrint, h2rint, T(nearbyintf(a)))
SIMT_BOTH(htrunc, h2trunc, T(truncf(a)))

#define SIMT_BOTH2(NAME, EXPRESSION)                                                       \
  template <int M, int L>                                                                  \
  inline SimtSmall<M, L> NAME(SimtSmall<M, L> a, SimtSmall<M, L> b) {                      \
    typedef SimtSmall<M, L> T;                                                             \
    (void)sizeof(T);                                                                       \
    return EXPRESSION;                                                                     \
  }                                                                                        \
  template <typename T>                                                                    \
  inline SimtPair<T> NAME##2(SimtPair<T> a, SimtPair<T> b) { return {NAME(a.x, b.x), NAME(a.y, b.y)}; }
SIMT_BOTH2(__hadd, a + b)
SIMT_BOTH2(__hsub, a - b)
SIMT_BOTH2(__hmul, a * b)
SIMT_BOTH2(__hadd_rn, a + b)
SIMT_BOTH2(__hsub_rn, a - b)
SIMT_BOTH2(__hmul_rn, a * b)
SIMT_BOTH2(__hmin, T(fminf(a, b)))
SIMT_BOTH2(__hmax, T(fmaxf(a, b)))
template <int M, int L>
inline SimtSmall<M, L> __hdiv(SimtSmall<M, L> a, SimtSmall<M, L> b) { return a / b; }
template <typename T>
inline SimtPair<T> __h2div(SimtPair<T> a, SimtPair<T> b) { return a / b; }
template <int M, int L>
inline SimtSmall<M, L> __hfma(SimtSmall<M, L> a, SimtSmall<M, L> b, SimtSmall<M, L> c) { return simt_fma(a, b, c); }
template <typename T>
inline SimtPair<T> __hfma2(SimtPair<T> a, SimtPair<T> b, SimtPair<T> c) {
  return {simt_fma(a.x, b.x, c.x), simt_fma(a.y, b.y, c.y)};
}

#define SIMT_COMPARE(NAME, OPERATOR)                                                      \
  template <int M, int L>                                                                 \
  inline bool NAME(SimtSmall<M, L> a, SimtSmall<M, L> b) { return a OPERATOR b; }         \
  template <typename T>                                                                   \
  inline SimtPair<T> NAME##2(SimtPair<T> a, SimtPair<T> b) { return {T(float(a.x OPERATOR b.x)), T(float(a.y OPERATOR b.y))}; }
SIMT_COMPARE(__heq, ==)
SIMT_COMPARE(__hne, !=)
SIMT_COMPARE(__hlt, <)
SIMT_COMPARE(__hle, <=)
SIMT_COMPARE(__hgt, >)
SIMT_COMPARE(__hge, >=)
template <int M, int L>
inline bool __hisnan(SimtSmall<M, L> a) { return float(a) != float(a); }
template <int M, int L>
inline int __hisinf(SimtSmall<M, L> a) { return isinf(float(a)) ? (a.bits & 0x8000 ? -1 : 1) : 0; }

template <typename T>
inline float __low2float(SimtPair<T> a) { return a.x; }
template <typename T>
inline float __high2float(SimtPair<T> a) { return a.y; }

static inline __half __float2half(float v) { return __half(v); }
static inline __half __float2half_rn(float v) { return __half(v); }
static inline __half __double2half(double v) { return __half(v); }
static inline __half __int2half_rn(int v) { return __half(v); }
static inline __half __uint2half_rn(unsigned v) { return __half(v); }
static inline __half __short2half_rn(short v) { return __half(v); }
static inline __half __ushort2half_rn(unsigned short v) { return __half(v); }
static inline float __half2float(__half v) { return v; }
static inline int __half2int_rn(__half v) { return __float2int_rn(v); }
static inline int __half2int_rz(__half v) { return __float2int_rz(v); }
static inline unsigned short __half_as_ushort(__half v) { return v.bits; }
static inline short __half_as_short(__half v) { return short(v.bits); }
static inline __half __ushort_as_half(unsigned short v) { return __half::of_bits(v); }
static inline __half __short_as_half(short v) { return __half::of_bits(uint16_t(v)); }
static inline __half2 make_half2(__half a, __half b) { return {a, b}; }
static inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
static inline __half2 __half2half2(__half a) { return {a, a}; }
static inline __half2 __float2half2_rn(float v) { return {v, v}; }
static inline __half2 __floats2half2_rn(float a, float b) { return {a, b}; }
static inline __half2 __float22half2_rn(float2 v) { return {v.x, v.y}; }
static inline float2 __half22float2(__half2 v) { return make_float2(v.x, v.y); }
static inline __half __low2half(__half2 v) { return v.x; }
static inline __half __high2half(__half2 v) { return v.y; }
static inline __half2 __low2half2(__half2 v) { return {v.x, v.x}; }
static inline __half2 __high2half2(__half2 v) { return {v.y, v.y}; }
static inline __half2 __lows2half2(__half2 a, __half2 b) { return {a.x, b.x}; }
static inline __half2 __highs2half2(__half2 a, __half2 b) { return {a.y, b.y}; }
static inline __half2 __lowhigh2highlow(__half2 v) { return {v.y, v.x}; }

static inline __nv_bfloat16 __float2bfloat16(float v) { return __nv_bfloat16(v); }
static inline __nv_bfloat16 __float2bfloat16_rn(float v) { return __nv_bfloat16(v); }
static inline __nv_bfloat16 __double2bfloat16(double v) { return __nv_bfloat16(v); }
static inline __nv_bfloat16 __int2bfloat16_rn(int v) { return __nv_bfloat16(v); }
static inline float __bfloat162float(__nv_bfloat16 v) { return v; }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short v) { return __nv_bfloat16::of_bits(v); }
static inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
static inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return {a, a}; }
static inline __nv_bfloat162 __float2bfloat162_rn(float v) { return {v, v}; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {a, b}; }
static inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {v.x, v.y}; }
static inline float2 __bfloat1622float2(__nv_bfloat162 v) { return make_float2(v.x, v.y); }
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
