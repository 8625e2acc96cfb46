// half and bfloat16: 16-bit floats of our own, whose every operation is rounded once, to nearest even.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "rooflab_simt.h"

// A whole number as a double; where that has too few bits, with the last one set, so that a second rounding sees that
// something was lost.
static inline double simt_odd(unsigned long long v) {
  return v >> 53 ? double(v >> 11 | ((v & 2047) != 0)) * 2048 : double(v);
}
static inline double simt_odd(long long v) {
  return v < 0 ? -simt_odd(0ull - (unsigned long long)v) : simt_odd((unsigned long long)v);
}
enum SimtRounding { SIMT_RN, SIMT_RZ, SIMT_RU, SIMT_RD };  // to nearest even, to zero, up, down

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
  static SimtSmall rounded(double exact, SimtRounding way = SIMT_RN) {
    if (exact != exact) return of_bits(0x7fff);
    const uint16_t sign = signbit(exact) ? 0x8000 : 0;
    const double size = fabs(exact);
    if (size == 0 || isinf(exact)) return of_bits(sign | (size == 0 ? 0 : INFINITE));
    const int exponent = ilogb(size) < LOWEST ? LOWEST : ilogb(size);
    const double raw = ldexp(size, MANTISSA - exponent);  // in units of the last place
    const bool up = way == (sign ? SIMT_RD : SIMT_RU);    // away from zero
    const double steps = way == SIMT_RN ? nearbyint(raw) : up ? ceil(raw) : floor(raw);
    const double whole = ldexp(double(exponent - LOWEST), MANTISSA) + steps;  // a carry moves into the exponent
    const uint16_t most = way == SIMT_RN || up ? INFINITE : INFINITE - 1;
    return of_bits(sign | uint16_t(whole < INFINITE ? whole : most));
  }
  // A conversion: of a constant the GPU's compiler makes it, so that no thread executes it.
  static SIMT_INLINE SimtSmall converted(double exact, bool constant, SimtRounding way = SIMT_RN) {
    if (!constant) SIMT_COUNT(SIMT_TO_SMALL);
    return rounded(exact, way);
  }

  SimtSmall() = default;
  SIMT_INLINE SimtSmall(float v) { *this = converted(v, __builtin_constant_p(v)); }
  SIMT_INLINE SimtSmall(double v) { *this = converted(v, __builtin_constant_p(v)); }
  SIMT_INLINE SimtSmall(int v) { *this = converted(v, __builtin_constant_p(v)); }
  SIMT_INLINE SimtSmall(unsigned v) { *this = converted(v, __builtin_constant_p(v)); }
  SIMT_INLINE SimtSmall(short v) { *this = converted(v, __builtin_constant_p(v)); }
  SIMT_INLINE SimtSmall(unsigned short v) { *this = converted(v, __builtin_constant_p(v)); }
  SIMT_INLINE SimtSmall(long long v) { *this = converted(simt_odd(v), __builtin_constant_p(v)); }
  SIMT_INLINE SimtSmall(unsigned long long v) { *this = converted(simt_odd(v), __builtin_constant_p(v)); }
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

#include "simt/small_functions.h"
