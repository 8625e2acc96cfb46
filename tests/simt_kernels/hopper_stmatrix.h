// What the stream-K rungs need beyond hopper.h: the store of four matrices of 8 x 8 halves, each column a row of memory.
static inline void store_matrix_x4_transposed(void* shared, const unsigned* r) {
  const int lane = threadIdx.x % 32;
  for (int m = 0; m < 4; ++m)
    for (int e = 0; e < 2; ++e) {
      const unsigned long long to =
          __shfl_sync(0xffffffffu, (unsigned long long)shared, 8 * m + lane % 4 * 2 + e);
      ((unsigned short*)to)[lane / 4] = (unsigned short)(r[m] >> 16 * e);
    }
}
