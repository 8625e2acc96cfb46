// Loads and stores with cache hints (hints mean nothing here), fences and atomics.
#pragma once
#include <string.h>

#include "simt/runtime.h"

#define SIMT_LOAD(NAME) \
  template <typename T> \
  inline T NAME(const T* from) { return *from; }
SIMT_LOAD(__ldg)
SIMT_LOAD(__ldca)
SIMT_LOAD(__ldcg)
SIMT_LOAD(__ldcs)
SIMT_LOAD(__ldlu)
SIMT_LOAD(__ldcv)

#define SIMT_STORE(NAME) \
  template <typename T> \
  inline void NAME(T* to, T value) { *to = value; }
SIMT_STORE(__stwb)
SIMT_STORE(__stcg)
SIMT_STORE(__stcs)
SIMT_STORE(__stwt)

// Threads run one at a time, so memory is always in order.
static inline void __threadfence_block() { __asm__ volatile("" ::: "memory"); }
static inline void __threadfence() { __asm__ volatile("" ::: "memory"); }
static inline void __threadfence_system() { __asm__ volatile("" ::: "memory"); }

// A word that threads share: read, perhaps again and again until it changes, and written.
template <typename T>
inline T simt_read_word(const T* p) {
  T v;
  simt_atomic_read(&v, p, sizeof(T), 1);
  return v;
}
template <typename T>
inline void simt_write_word(T* p, T v) {
  T old;
  simt_atomic_read(&old, p, sizeof(T), 0);
  simt_atomic_write(p, &v, sizeof(T));
}

template <typename T>
struct SimtSame {
  typedef T type;
};

// A change that changes nothing may be a loop that waits for a lock, so it lets other threads run.
template <typename T, typename F>
inline T simt_change(T* p, F change) {
  T old;
  simt_atomic_read(&old, p, sizeof(T), 0);
  const T next = change(old);
  simt_atomic_write(p, &next, sizeof(T));
  if (memcmp(&old, &next, sizeof(T)) == 0) simt_yield();
  return old;
}

#define SIMT_ATOMIC(NAME, CHANGE)                                                      \
  template <typename T>                                                                \
  inline T NAME(T* p, typename SimtSame<T>::type v) {                                  \
    return simt_change(p, [v](T old) { (void)old; return static_cast<T>(CHANGE); });   \
  }                                                                                    \
  template <typename T>                                                                \
  inline T NAME##_block(T* p, typename SimtSame<T>::type v) { return NAME(p, v); }     \
  template <typename T>                                                                \
  inline T NAME##_system(T* p, typename SimtSame<T>::type v) { return NAME(p, v); }
SIMT_ATOMIC(atomicAdd, old + v)
SIMT_ATOMIC(atomicSub, old - v)
SIMT_ATOMIC(atomicMin, v < old ? v : old)
SIMT_ATOMIC(atomicMax, v > old ? v : old)
SIMT_ATOMIC(atomicAnd, old & v)
SIMT_ATOMIC(atomicOr, old | v)
SIMT_ATOMIC(atomicXor, old ^ v)
SIMT_ATOMIC(atomicExch, v)
SIMT_ATOMIC(atomicInc, old >= v ? 0u : old + 1)
SIMT_ATOMIC(atomicDec, old == 0 || old > v ? v : old - 1)

template <typename T>
inline T atomicCAS(T* p, typename SimtSame<T>::type expected, typename SimtSame<T>::type next) {
  return simt_change(p, [&](T old) { return memcmp(&old, &expected, sizeof(T)) == 0 ? T(next) : old; });
}
