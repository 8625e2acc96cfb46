// kernels/common/ptx/cache_hints.cuh on the CPU: there are no caches.
#pragma once
#include "rooflab_simt.h"

static inline uint4 load_streaming(const uint4* p) { return *p; }
static inline uint2 load_streaming(const uint2* p) { return *p; }
static inline unsigned load_streaming(const unsigned* p) { return *p; }
static inline uint4 load_streaming(const uint4* p, unsigned long long) { return *p; }
static inline unsigned long long evict_first_policy() { return 0; }
static inline void store_streaming(uint4* p, uint4 v) { *p = v; }
static inline void prefetch_l2(const void*) {}
