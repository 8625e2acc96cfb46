// kernels/common/ptx/ordered.cuh on the CPU, where every access is ordered.
#pragma once
#include "rooflab_simt.h"

static inline unsigned add_release(unsigned* p, unsigned v) { return atomicAdd(p, v); }
static inline unsigned load_acquire(const unsigned* p) { return simt_read_word(p); }
static inline unsigned add_acquire_release(unsigned* p, unsigned v) { return atomicAdd(p, v); }

static inline uint4 load_relaxed(const uint4* p) { return simt_read_word(p); }
static inline ulonglong2 load_relaxed(const ulonglong2* p) { return simt_read_word(p); }
static inline unsigned long long load_relaxed(const unsigned long long* p) { return simt_read_word(p); }
static inline void store_relaxed(unsigned* p, unsigned v) { simt_write_word(p, v); }
static inline void store_relaxed(unsigned long long* p, unsigned long long v) { simt_write_word(p, v); }
static inline void store_relaxed(uint4* p, uint4 v) { simt_write_word(p, v); }
