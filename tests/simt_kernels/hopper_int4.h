// What INT4's rungs 11 and 12 need beyond hopper.h: products with rows in registers and columns as they lie, and plain copies.
template <int COLUMNS>
static inline void wgmm_few_f16(float* d, const unsigned* a, unsigned long long b, bool add) {
  wgmm_registers_f16<COLUMNS>(d, a, b, add);
}

template <int COLUMNS>
static inline void wgmm_m64k16_f16(float* d, const unsigned* a, unsigned long long b) {
  wgmm_few_f16<COLUMNS>(d, a, b, true);
}

static inline void tmm_copy_bytes(void* shared, const void* global, unsigned bytes, unsigned long long*) {
  for (unsigned i = 0; i < bytes / 4; ++i) ((unsigned*)shared)[i] = ((const unsigned*)global)[i];
}
