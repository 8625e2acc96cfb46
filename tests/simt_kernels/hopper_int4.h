// What INT4's rungs 11 and 12 need beyond hopper.h: products with rows in registers and columns as they lie, and plain copies.
template <int COLUMNS>
static inline void wgmm_few_f16(float* d, const unsigned* a, unsigned long long b, bool add) {
  const int lane = threadIdx.x % 32;
  float rows[2][16];
  for (int half = 0; half < 2; ++half)
    for (int k = 0; k < 16; ++k) {
      const unsigned word = __shfl_sync(0xffffffffu, a[k / 8 * 2 + half], lane / 4 * 4 + k % 8 / 2);
      rows[half][k] = float(__ushort_as_half((unsigned short)(word >> k % 2 * 16)));
    }
  for (int i = 0; i < COLUMNS / 2; ++i) {
    double sum = add ? d[i] : 0;
    for (int k = 0; k < 16; ++k)
      sum += double(rows[i / 2 % 2][k]) * emulated_major(b, i / 4 * 8 + lane % 4 * 2 + i % 2, k);
    d[i] = float(sum);
  }
}

template <int COLUMNS>
static inline void wgmm_m64k16_f16(float* d, const unsigned* a, unsigned long long b) {
  wgmm_few_f16<COLUMNS>(d, a, b, true);
}

static inline void tmm_copy_bytes(void* shared, const void* global, unsigned bytes, unsigned long long*) {
  for (unsigned i = 0; i < bytes / 4; ++i) ((unsigned*)shared)[i] = ((const unsigned*)global)[i];
}
