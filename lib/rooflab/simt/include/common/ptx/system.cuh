// kernels/common/ptx/system.cuh on the CPU, where several GPUs are rows of one grid.
#pragma once
#include "rooflab_simt.h"

static inline void store_release_system(unsigned* p, unsigned v) { simt_write_word(p, v); }
static inline unsigned load_acquire_system(const unsigned* p) { return simt_read_word(p); }
static inline void store_pair_system(ulonglong2* p, ulonglong2 v) {
  simt_write_word(&p->x, v.x);
  simt_write_word(&p->y, v.y);
}
static inline ulonglong2 load_pair_system(const ulonglong2* p) {
  ulonglong2 v;
  v.x = simt_read_word(&p->x);
  v.y = simt_read_word(&p->y);
  return v;
}
