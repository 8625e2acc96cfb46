// Instructions that the decoder alone uses, as the CPU has them; its timeline needs a GPU's clocks.
#pragma once

static inline int recomputed(int v) { return v; }

template <typename T>
static inline T load_relaxed(const T* p) {
  T v;
  simt_atomic_read(&v, p, sizeof v, 1);
  return v;
}
template <typename T>
static inline void store_relaxed(T* p, T v) {
  T before;
  simt_atomic_read(&before, p, sizeof v, 0);
  simt_atomic_write(p, &v, sizeof v);
}
