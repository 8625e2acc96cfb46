// CUDA's vector types. In the watched build a copy of a 4-, 8- or 16-byte vector is one access of that size, as the
// GPU makes it, whatever the host compiler would like to split it into.
#pragma once
#include <stdint.h>

#ifdef ROOFLAB_WATCHED
typedef uint16_t simt_2b __attribute__((may_alias));
typedef uint32_t simt_4b __attribute__((may_alias));
typedef uint64_t simt_8b __attribute__((may_alias));
typedef uint64_t simt_16b __attribute__((may_alias, vector_size(16)));
#if defined(__x86_64__)
#define SIMT_WIDE "+x"
#else
#define SIMT_WIDE "+w"
#endif
// An empty instruction that needs the whole word keeps the compiler from splitting the load.
static inline void simt_keep(simt_2b& word) { __asm__("" : "+r"(word)); }
static inline void simt_keep(simt_4b& word) { __asm__("" : "+r"(word)); }
static inline void simt_keep(simt_8b& word) { __asm__("" : "+r"(word)); }
static inline void simt_keep(simt_16b& word) { __asm__("" : SIMT_WIDE(word)); }
#define SIMT_WHOLE(NAME, WORD)                              \
  NAME() = default;                                         \
  NAME(const NAME& from) { *this = from; }                  \
  NAME& operator=(const NAME& from) {                       \
    WORD word = *reinterpret_cast<const WORD*>(&from);      \
    simt_keep(word);                                        \
    *reinterpret_cast<WORD*>(this) = word;                  \
    return *this;                                           \
  }
#define SIMT_VALUES2(NAME, T) constexpr NAME(T a, T b = 0) : x(a), y(b) {}
#define SIMT_VALUES4(NAME, T) constexpr NAME(T a, T b = 0, T c = 0, T d = 0) : x(a), y(b), z(c), w(d) {}
#else
#define SIMT_WHOLE(NAME, WORD)
#define SIMT_VALUES2(NAME, T)
#define SIMT_VALUES4(NAME, T)
#endif

#define SIMT_VECTOR1(NAME, T)             \
  struct NAME##1 { T x; };                \
  static inline NAME##1 make_##NAME##1(T x) { return NAME##1{x}; }
#define SIMT_VECTOR2(NAME, T, WORD)       \
  struct alignas(2 * sizeof(T)) NAME##2 { \
    T x, y;                               \
    SIMT_WHOLE(NAME##2, WORD)             \
    SIMT_VALUES2(NAME##2, T)              \
  };                                      \
  static inline NAME##2 make_##NAME##2(T x, T y) { return NAME##2{x, y}; }
#define SIMT_VECTOR3(NAME, T)             \
  struct NAME##3 { T x, y, z; };          \
  static inline NAME##3 make_##NAME##3(T x, T y, T z) { return NAME##3{x, y, z}; }
#define SIMT_VECTOR4(NAME, T, WORD)       \
  struct alignas(4 * sizeof(T)) NAME##4 { \
    T x, y, z, w;                         \
    SIMT_WHOLE(NAME##4, WORD)             \
    SIMT_VALUES4(NAME##4, T)              \
  };                                      \
  static inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return NAME##4{x, y, z, w}; }
#define SIMT_VECTORS(NAME, T, WORD2, WORD4) \
  SIMT_VECTOR1(NAME, T)                     \
  SIMT_VECTOR2(NAME, T, WORD2)              \
  SIMT_VECTOR3(NAME, T)                     \
  SIMT_VECTOR4(NAME, T, WORD4)

SIMT_VECTORS(char, signed char, simt_2b, simt_4b)
SIMT_VECTORS(uchar, unsigned char, simt_2b, simt_4b)
SIMT_VECTORS(short, short, simt_4b, simt_8b)
SIMT_VECTORS(ushort, unsigned short, simt_4b, simt_8b)
SIMT_VECTORS(int, int, simt_8b, simt_16b)
SIMT_VECTORS(uint, unsigned, simt_8b, simt_16b)
SIMT_VECTORS(float, float, simt_8b, simt_16b)
SIMT_VECTOR1(longlong, long long)
SIMT_VECTOR1(ulonglong, unsigned long long)
SIMT_VECTOR1(double, double)
SIMT_VECTOR2(longlong, long long, simt_16b)
SIMT_VECTOR2(ulonglong, unsigned long long, simt_16b)
SIMT_VECTOR2(double, double, simt_16b)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
