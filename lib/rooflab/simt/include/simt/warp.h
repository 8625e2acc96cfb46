// Barriers and warp operations: each waits for the threads it names.
#pragma once
#include "simt/runtime.h"

static inline void __syncthreads(SIMT_HERE) { simt_barrier(SIMT_PLAIN, 0, file, line); }
static inline int __syncthreads_and(int p, SIMT_HERE) { return simt_barrier(SIMT_BARRIER_AND, p, file, line); }
static inline int __syncthreads_or(int p, SIMT_HERE) { return simt_barrier(SIMT_BARRIER_OR, p, file, line); }
static inline int __syncthreads_count(int p, SIMT_HERE) { return simt_barrier(SIMT_BARRIER_COUNT, p, file, line); }
static inline void __syncwarp(unsigned mask = 0xffffffffu, SIMT_HERE) {
  simt_warp(SIMT_SYNC, mask, nullptr, 0, 0, 32, file, line);
}
static inline unsigned __activemask(SIMT_HERE) {
  unsigned mask = 0;
  simt_warp(SIMT_ACTIVE, 0xffffffffu, &mask, 4, 0, 32, file, line);
  return mask;
}
static inline void __nanosleep(unsigned) { simt_yield(); }
static inline void __trap(SIMT_HERE) { simt_trap(file, line); }

template <typename T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, SIMT_HERE) {
  static_assert(sizeof(T) <= 8, "a shuffle moves a number of up to 8 bytes");
  simt_warp(SIMT_SHFL, mask, &value, sizeof(T), source, width, file, line);
  return value;
}
template <typename T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_HERE) {
  static_assert(sizeof(T) <= 8, "a shuffle moves a number of up to 8 bytes");
  simt_warp(SIMT_SHFL_UP, mask, &value, sizeof(T), int(delta), width, file, line);
  return value;
}
template <typename T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_HERE) {
  static_assert(sizeof(T) <= 8, "a shuffle moves a number of up to 8 bytes");
  simt_warp(SIMT_SHFL_DOWN, mask, &value, sizeof(T), int(delta), width, file, line);
  return value;
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32, SIMT_HERE) {
  static_assert(sizeof(T) <= 8, "a shuffle moves a number of up to 8 bytes");
  simt_warp(SIMT_SHFL_XOR, mask, &value, sizeof(T), with, width, file, line);
  return value;
}

static inline int __all_sync(unsigned mask, int predicate, SIMT_HERE) {
  simt_warp(SIMT_ALL, mask, &predicate, 4, 0, 32, file, line);
  return predicate;
}
static inline int __any_sync(unsigned mask, int predicate, SIMT_HERE) {
  simt_warp(SIMT_ANY, mask, &predicate, 4, 0, 32, file, line);
  return predicate;
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, SIMT_HERE) {
  simt_warp(SIMT_BALLOT, mask, &predicate, 4, 0, 32, file, line);
  return unsigned(predicate);
}
template <typename T>
inline unsigned __match_any_sync(unsigned mask, T value, SIMT_HERE) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "__match_any_sync takes 4- and 8-byte values");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  simt_warp(SIMT_MATCH_ANY, mask, &bits, 8, 0, 32, file, line);
  return unsigned(bits);
}
template <typename T>
inline unsigned __match_all_sync(unsigned mask, T value, int* same, SIMT_HERE) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "__match_all_sync takes 4- and 8-byte values");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  *same = simt_warp(SIMT_MATCH_ALL, mask, &bits, 8, 0, 32, file, line);
  return unsigned(bits);
}

#define SIMT_REDUCE(NAME, T, OPERATION)                               \
  static inline T NAME(unsigned mask, T value, SIMT_HERE) {           \
    simt_warp(OPERATION, mask, &value, 4, 0, 32, file, line);         \
    return value;                                                     \
  }
SIMT_REDUCE(__reduce_add_sync, unsigned, SIMT_ADD)
SIMT_REDUCE(__reduce_add_sync, int, SIMT_ADD)
SIMT_REDUCE(__reduce_min_sync, unsigned, SIMT_MIN_U)
SIMT_REDUCE(__reduce_min_sync, int, SIMT_MIN_S)
SIMT_REDUCE(__reduce_max_sync, unsigned, SIMT_MAX_U)
SIMT_REDUCE(__reduce_max_sync, int, SIMT_MAX_S)
SIMT_REDUCE(__reduce_and_sync, unsigned, SIMT_AND)
SIMT_REDUCE(__reduce_or_sync, unsigned, SIMT_OR)
SIMT_REDUCE(__reduce_xor_sync, unsigned, SIMT_XOR)
