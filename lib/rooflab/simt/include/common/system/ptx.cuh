// kernels/common/system/ptx.cuh on the CPU, where several GPUs are rows of one grid.
#pragma once
#include "rooflab_simt.h"

static inline void store_release_system(unsigned* p, unsigned v) {
  unsigned old;
  simt_atomic_read(&old, p, sizeof old, 0);
  simt_atomic_write(p, &v, sizeof v);
}
static inline unsigned load_acquire_system(const unsigned* p) {
  unsigned v;
  simt_atomic_read(&v, p, sizeof v, 1);
  return v;
}
static inline void store_pair_system(ulonglong2* p, ulonglong2 v) {
  unsigned long long old;
  simt_atomic_read(&old, &p->x, sizeof old, 0);
  simt_atomic_write(&p->x, &v.x, sizeof v.x);
  simt_atomic_read(&old, &p->y, sizeof old, 0);
  simt_atomic_write(&p->y, &v.y, sizeof v.y);
}
static inline ulonglong2 load_pair_system(const ulonglong2* p) {
  ulonglong2 v;
  simt_atomic_read(&v.x, &p->x, sizeof v.x, 1);
  simt_atomic_read(&v.y, &p->y, sizeof v.y, 1);
  return v;
}
