// What cuda_fp16.h and cuda_bf16.h do with the 16-bit floats of small_floats.h and their pairs.
#pragma once
#include "simt/small_floats.h"

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
SIMT_BOTH(htanh_approx, h2tanh_approx, T(tanhf(a)))
SIMT_BOTH(hexp10, h2exp10, T(pow(10.0, double(float(a)))))
SIMT_BOTH(hlog10, h2log10, T(log10f(a)))
SIMT_BOTH(hfloor, h2floor, T(floorf(a)))
SIMT_BOTH(hceil, h2ceil, T(ceilf(a)))
SIMT_BOTH(hrint, h2rint, T(nearbyintf(a)))
SIMT_BOTH(htrunc, h2trunc, T(truncf(a)))

#define SIMT_BOTH2(NAME, NAME2, EXPRESSION)                                                \
  template <int M, int L>                                                                  \
  inline SimtSmall<M, L> NAME(SimtSmall<M, L> a, SimtSmall<M, L> b) {                      \
    typedef SimtSmall<M, L> T;                                                             \
    (void)sizeof(T);                                                                       \
    return EXPRESSION;                                                                     \
  }                                                                                        \
  template <typename T>                                                                    \
  inline SimtPair<T> NAME2(SimtPair<T> a, SimtPair<T> b) { return {NAME(a.x, b.x), NAME(a.y, b.y)}; }
SIMT_BOTH2(__hadd, __hadd2, a + b)
SIMT_BOTH2(__hsub, __hsub2, a - b)
SIMT_BOTH2(__hmul, __hmul2, a * b)
SIMT_BOTH2(__hadd_rn, __hadd2_rn, a + b)
SIMT_BOTH2(__hsub_rn, __hsub2_rn, a - b)
SIMT_BOTH2(__hmul_rn, __hmul2_rn, a * b)
// The number wins over NaN, and +0 counts as more than -0; the _nan forms return NaN.
template <typename T>
inline T simt_less(T a, T b, bool less) {
  if (float(a) != float(a)) return float(b) != float(b) ? T::of_bits(0x7fff) : b;
  if (float(b) != float(b)) return a;
  const bool first = a < b || (a == b && (a.bits & 0x8000));
  return first == less ? a : b;
}
template <typename T>
inline T simt_nan(T a, T b, T otherwise) {
  return float(a) != float(a) || float(b) != float(b) ? T::of_bits(0x7fff) : otherwise;
}
template <typename T>
inline T simt_unit(T v) { return float(v) > 0 ? (float(v) < 1 ? v : T(1)) : T(0); }  // within [0, 1], NaN to 0
template <typename T>
inline T simt_positive(T v) { return float(v) != float(v) ? T::of_bits(0x7fff) : float(v) > 0 ? v : T(0); }
SIMT_BOTH2(__hmin, __hmin2, simt_less(a, b, true))
SIMT_BOTH2(__hmax, __hmax2, simt_less(a, b, false))
SIMT_BOTH2(__hmin_nan, __hmin2_nan, simt_nan(a, b, simt_less(a, b, true)))
SIMT_BOTH2(__hmax_nan, __hmax2_nan, simt_nan(a, b, simt_less(a, b, false)))
SIMT_BOTH2(__hadd_sat, __hadd2_sat, simt_unit(a + b))
SIMT_BOTH2(__hsub_sat, __hsub2_sat, simt_unit(a - b))
SIMT_BOTH2(__hmul_sat, __hmul2_sat, simt_unit(a * b))
template <int M, int L>
inline SimtSmall<M, L> __hdiv(SimtSmall<M, L> a, SimtSmall<M, L> b) { return a / b; }
template <typename T>
inline SimtPair<T> __h2div(SimtPair<T> a, SimtPair<T> b) { return a / b; }
#define SIMT_FUSED(NAME, NAME2, LAST)                                                                   \
  template <int M, int L>                                                                              \
  inline SimtSmall<M, L> NAME(SimtSmall<M, L> a, SimtSmall<M, L> b, SimtSmall<M, L> c) {                \
    return LAST(simt_fma(a, b, c));                                                                    \
  }                                                                                                    \
  template <typename T>                                                                                \
  inline SimtPair<T> NAME2(SimtPair<T> a, SimtPair<T> b, SimtPair<T> c) {                               \
    return {LAST(simt_fma(a.x, b.x, c.x)), LAST(simt_fma(a.y, b.y, c.y))};                             \
  }
SIMT_FUSED(__hfma, __hfma2, )
SIMT_FUSED(__hfma_sat, __hfma2_sat, simt_unit)
SIMT_FUSED(__hfma_relu, __hfma2_relu, simt_positive)
// a b + c of complex numbers.
template <typename T>
inline SimtPair<T> __hcmadd(SimtPair<T> a, SimtPair<T> b, SimtPair<T> c) {
  return {simt_fma(-a.y, b.y, simt_fma(a.x, b.x, c.x)), simt_fma(a.y, b.x, simt_fma(a.x, b.y, c.y))};
}

// Comparisons: false with NaN, or true in the form that ends in u; of pairs as numbers, masks, or both at once.
template <typename T>
inline bool simt_ordered(T a, T b) { return float(a) == float(a) && float(b) == float(b); }
#define SIMT_COMPARE1(NAME, HOLDS)                                                                          \
  template <int M, int L>                                                                                  \
  inline bool __h##NAME(SimtSmall<M, L> a, SimtSmall<M, L> b) { return HOLDS; }                             \
  template <typename T>                                                                                    \
  inline SimtPair<T> __h##NAME##2(SimtPair<T> a, SimtPair<T> b) {                                           \
    return {T::rounded(__h##NAME(a.x, b.x)), T::rounded(__h##NAME(a.y, b.y))};                             \
  }                                                                                                        \
  template <typename T>                                                                                    \
  inline unsigned __h##NAME##2_mask(SimtPair<T> a, SimtPair<T> b) {                                         \
    return (__h##NAME(a.x, b.x) ? 0xffffu : 0u) | (__h##NAME(a.y, b.y) ? 0xffff0000u : 0u);                \
  }                                                                                                        \
  template <typename T>                                                                                    \
  inline bool __hb##NAME##2(SimtPair<T> a, SimtPair<T> b) { return __h##NAME(a.x, b.x) && __h##NAME(a.y, b.y); }
#define SIMT_COMPARE(NAME, OPERATOR)                         \
  SIMT_COMPARE1(NAME, simt_ordered(a, b) && a OPERATOR b)    \
  SIMT_COMPARE1(NAME##u, !simt_ordered(a, b) || a OPERATOR b)
SIMT_COMPARE(eq, ==)
SIMT_COMPARE(ne, !=)
SIMT_COMPARE(lt, <)
SIMT_COMPARE(le, <=)
SIMT_COMPARE(gt, >)
SIMT_COMPARE(ge, >=)
template <int M, int L>
inline bool __hisnan(SimtSmall<M, L> a) { return float(a) != float(a); }
template <typename T>
inline SimtPair<T> __hisnan2(SimtPair<T> a) { return {T::rounded(__hisnan(a.x)), T::rounded(__hisnan(a.y))}; }
template <int M, int L>
inline int __hisinf(SimtSmall<M, L> a) { return isinf(float(a)) ? (a.bits & 0x8000 ? -1 : 1) : 0; }

template <typename T>
inline float __low2float(SimtPair<T> a) { return a.x; }
template <typename T>
inline float __high2float(SimtPair<T> a) { return a.y; }

static SIMT_INLINE __half __float2half(float v) { return __half(v); }
static SIMT_INLINE __half __double2half(double v) { return __half(v); }
static inline float __half2float(__half v) { return v; }
static inline unsigned short __half_as_ushort(__half v) { return v.bits; }
static inline short __half_as_short(__half v) { return short(v.bits); }
static inline __half __ushort_as_half(unsigned short v) { return __half::of_bits(v); }
static inline __half __short_as_half(short v) { return __half::of_bits(uint16_t(v)); }
static inline __half2 make_half2(__half a, __half b) { return {a, b}; }
static inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
static inline __half2 __half2half2(__half a) { return {a, a}; }
static SIMT_INLINE __half2 __float2half2_rn(float v) { return {v, v}; }
static SIMT_INLINE __half2 __floats2half2_rn(float a, float b) { return {a, b}; }
static SIMT_INLINE __half2 __float22half2_rn(float2 v) { return {v.x, v.y}; }
static inline float2 __half22float2(__half2 v) { return make_float2(v.x, v.y); }
static inline __half __low2half(__half2 v) { return v.x; }
static inline __half __high2half(__half2 v) { return v.y; }
static inline __half2 __low2half2(__half2 v) { return {v.x, v.x}; }
static inline __half2 __high2half2(__half2 v) { return {v.y, v.y}; }
static inline __half2 __lows2half2(__half2 a, __half2 b) { return {a.x, b.x}; }
static inline __half2 __highs2half2(__half2 a, __half2 b) { return {a.y, b.y}; }
static inline __half2 __lowhigh2highlow(__half2 v) { return {v.y, v.x}; }

static SIMT_INLINE __nv_bfloat16 __float2bfloat16(float v) { return __nv_bfloat16(v); }
static SIMT_INLINE __nv_bfloat16 __double2bfloat16(double v) { return __nv_bfloat16(v); }
static inline float __bfloat162float(__nv_bfloat16 v) { return v; }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short v) { return __nv_bfloat16::of_bits(v); }
static inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
static inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return {a, a}; }
static SIMT_INLINE __nv_bfloat162 __float2bfloat162_rn(float v) { return {v, v}; }
static SIMT_INLINE __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {a, b}; }
static SIMT_INLINE __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {v.x, v.y}; }
static inline float2 __bfloat1622float2(__nv_bfloat162 v) { return make_float2(v.x, v.y); }
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
static inline __nv_bfloat162 __low2bfloat162(__nv_bfloat162 v) { return {v.x, v.x}; }
static inline __nv_bfloat162 __high2bfloat162(__nv_bfloat162 v) { return {v.y, v.y}; }
static inline __nv_bfloat162 __lows2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.x, b.x}; }
static inline __nv_bfloat162 __highs2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.y, b.y}; }
static inline short __bfloat16_as_short(__nv_bfloat16 v) { return short(v.bits); }
static inline __nv_bfloat16 __short_as_bfloat16(short v) { return __nv_bfloat16::of_bits(uint16_t(v)); }

// From and to other numbers, in every way of rounding; whole numbers out of reach become the nearest in reach, and NaN
// becomes 0 (in 64 bits: only the top bit set).
template <typename To>
inline To simt_whole(double v, SimtRounding way) {
  typedef std::numeric_limits<To> Limits;
  if (v != v) return sizeof(To) == 8 ? To(1ull << 63) : To(0);
  const double whole = way == SIMT_RN ? nearbyint(v) : way == SIMT_RZ ? trunc(v) : way == SIMT_RU ? ceil(v) : floor(v);
  if (whole <= double(Limits::min())) return Limits::min();
  return whole >= double(Limits::max()) ? Limits::max() : To(whole);
}
#define SIMT_CONVERT(SMALL, T, NAME, TYPE, WIDE, SUFFIX, WAY)                                                      \
  static SIMT_INLINE T __##NAME##2##SMALL##_##SUFFIX(TYPE v) {                                                     \
    return T::converted(simt_odd(WIDE(v)), __builtin_constant_p(v), WAY);                                          \
  }                                                                                                                \
  static inline TYPE __##SMALL##2##NAME##_##SUFFIX(T v) { return simt_whole<TYPE>(float(v), WAY); }
typedef unsigned long long simt_unsigned;
typedef long long simt_signed;
#define SIMT_CONVERSIONS(SMALL, T, SUFFIX, WAY)                                                                    \
  static SIMT_INLINE T __float2##SMALL##_##SUFFIX(float v) {                                                       \
    return T::converted(v, __builtin_constant_p(v), WAY);                                                          \
  }                                                                                                                \
  SIMT_CONVERT(SMALL, T, int, int, simt_signed, SUFFIX, WAY)                                                       \
  SIMT_CONVERT(SMALL, T, uint, unsigned, simt_unsigned, SUFFIX, WAY)                                               \
  SIMT_CONVERT(SMALL, T, short, short, simt_signed, SUFFIX, WAY)                                                   \
  SIMT_CONVERT(SMALL, T, ushort, unsigned short, simt_unsigned, SUFFIX, WAY)                                       \
  SIMT_CONVERT(SMALL, T, ll, long long, simt_signed, SUFFIX, WAY)                                                  \
  SIMT_CONVERT(SMALL, T, ull, unsigned long long, simt_unsigned, SUFFIX, WAY)
#define SIMT_SMALL(SMALL, T)               \
  SIMT_CONVERSIONS(SMALL, T, rn, SIMT_RN)  \
  SIMT_CONVERSIONS(SMALL, T, rz, SIMT_RZ)  \
  SIMT_CONVERSIONS(SMALL, T, ru, SIMT_RU)  \
  SIMT_CONVERSIONS(SMALL, T, rd, SIMT_RD)  \
  static inline signed char __##SMALL##2char_rz(T v) { return simt_whole<signed char>(float(v), SIMT_RZ); }        \
  static inline unsigned char __##SMALL##2uchar_rz(T v) { return simt_whole<unsigned char>(float(v), SIMT_RZ); }
SIMT_SMALL(half, __half)
SIMT_SMALL(bfloat16, __nv_bfloat16)
