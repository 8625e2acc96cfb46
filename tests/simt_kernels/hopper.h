// What the Hopper rungs of attention need, for a test on the CPU: warpgroup products done on the spot, from descriptors
// taken apart by the documented layouts (128-byte swizzle), and barriers that count arrivals. Times, and what running on
// their own means, are the GPU's. The test renames the words that the CPU target refuses.
static char* emulated_bases[64];  // where dynamic shared memory starts, of blocks that may live at the same time
#define emulated_base emulated_bases[blockIdx.x % 64]

static inline void wgm_arrive() {}
static inline void wgm_commit() {}
static inline void wgm_shared_fence() {}
template <int PENDING>
static inline void wgm_wait() { __syncwarp(); }  // all of a warp come from it together
template <int REGISTERS>
static inline void setmxr_more() {}
template <int REGISTERS>
static inline void setmxr_fewer() {}

static inline unsigned long long wgmm_rows(const void* shared, unsigned apart) {
  const unsigned long long address = (unsigned long long)((const char*)shared - emulated_base);
  return 1ull << 62 | 64ull << 32 | (unsigned long long)(apart >> 4) << 16 | address >> 4;
}
static inline unsigned long long wgmm_columns(const void* shared) { return wgmm_rows(shared, 16); }

static inline float emulated_element(unsigned long long descriptor, unsigned bytes) {
  const unsigned address = (unsigned(descriptor) & 0x3fffu) * 16 + bytes;
  return float(*(const __half*)(emulated_base + (address ^ (address >> 7 & 7) << 4)));
}
// Element k of row or column i where each has its k one after another, and element [k][n] where rows are of n.
static inline float emulated_major(unsigned long long descriptor, int i, int k) {
  return emulated_element(descriptor, i / 8 * (unsigned(descriptor >> 32) & 0x3fffu) * 16 + i % 8 * 128 + k * 2);
}
static inline float emulated_minor(unsigned long long descriptor, int k, int n) {
  const unsigned apart = (unsigned(descriptor >> 16) & 0x3fffu) * 16, eight = (unsigned(descriptor >> 32) & 0x3fffu) * 16;
  return emulated_element(descriptor, n / 64 * apart + n % 64 * 2 + k / 8 * eight + k % 8 * 128);
}

// Element [k][n] of the second operand: stored row by row, or column by column.
static inline float emulated_second(unsigned long long b, int k, int n, bool rows) {
  return rows ? emulated_minor(b, k, n) : emulated_major(b, n, k);
}

template <int COLUMNS, bool ROWS = false>
static inline void wgmm_shared_f16(float* d, unsigned long long a, unsigned long long b, bool add) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  for (int i = 0; i < COLUMNS / 2; ++i) {
    const int row = 16 * warp + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    double sum = add ? d[i] : 0;
    for (int k = 0; k < 16; ++k) sum += double(emulated_major(a, row, k)) * emulated_second(b, k, column, ROWS);
    d[i] = float(sum);
  }
}

template <int COLUMNS, bool ROWS = false>
static inline void wgmm_registers_f16(float* d, const unsigned* a, unsigned long long b, bool add) {
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
      sum += double(rows[i / 2 % 2][k]) * emulated_second(b, k, i / 4 * 8 + lane % 4 * 2 + i % 2, ROWS);
    d[i] = float(sum);
  }
}
template <int COLUMNS>
static inline void wgmm_rows_f16(float* d, const unsigned* a, unsigned long long b, bool add = true) {
  wgmm_registers_f16<COLUMNS, true>(d, a, b, add);
}

template <int COLUMNS>
static inline void wgmm_shared_rows_f16(float* d, unsigned long long a, unsigned long long b) {
  wgmm_shared_f16<COLUMNS, true>(d, a, b, true);
}

// A box of a matrix, as a map given as {rows, columns, rows and columns of a box} with the matrix behind; done at once, so
// nobody has to wait for bytes.
static inline void tmm_copy_box(void* shared, const long long* map, int column, int row, unsigned long long*) {
  const unsigned short* const from = (const unsigned short*)(map + 4);
  const unsigned place = unsigned((char*)shared - emulated_base);
  for (int r = 0; r < map[2]; ++r)
    for (int c = 0; c < map[3]; ++c) {
      const unsigned address = place + r * 128 + c * 2;
      const bool inside = row + r < map[0] && column + c < map[1];
      *(unsigned short*)(emulated_base + (address ^ (address >> 7 & 7) << 4)) =
          inside ? from[(row + r) * map[1] + column + c] : 0;
    }
}
// A box of three dimensions, as a map given as {dimensions, slowest first; those of a box} with the array behind.
static inline void tmm_copy_box_3d(void* shared, const long long* map, int x, int y, int z, unsigned long long*) {
  const unsigned short* const from = (const unsigned short*)(map + 6);
  const unsigned place = unsigned((char*)shared - emulated_base);
  for (int i = 0; i < map[3]; ++i)
    for (int j = 0; j < map[4]; ++j)
      for (int c = 0; c < map[5]; ++c) {
        const unsigned address = place + (i * map[4] + j) * 128 + c * 2;
        const bool inside = z + i < map[0] && y + j < map[1] && x + c < map[2];
        *(unsigned short*)(emulated_base + (address ^ (address >> 7 & 7) << 4)) =
            inside ? from[((z + i) * map[1] + y + j) * map[2] + x + c] : 0;
      }
}
static inline void mbar_expect(unsigned long long*, unsigned) {}

// The phase above 32 bits, arrivals a phase above 16, arrivals still to come below.
static inline void mbar_init(unsigned long long* barrier, unsigned arrivals) { *barrier = arrivals << 16 | arrivals; }
static inline void mbar_arrive(unsigned long long* barrier) {
  for (unsigned long long seen = atomicAdd(barrier, 0ull);;) {
    unsigned long long next = seen - 1;
    if ((next & 0xffff) == 0) next = ((next >> 32) + 1) << 32 | (next & 0xffff0000) | (next >> 16 & 0xffff);
    const unsigned long long found = atomicCAS(barrier, seen, next);
    if (found == seen) return;
    seen = found;
  }
}
static inline void mbar_wait(unsigned long long* barrier, unsigned parity) {
  while ((atomicAdd(barrier, 0ull) >> 32 & 1) == parity) __nanosleep(100);
}

// Named barriers: who waits goes on when the phase that he came to has ended.
static unsigned long long emulated_turns_of[64][16];
#define emulated_turns emulated_turns_of[blockIdx.x % 64]
static inline unsigned long long wgm_pass_turn(int id, int threads) {
  unsigned long long* const barrier = emulated_turns + id;
  atomicCAS(barrier, 0ull, (unsigned long long)threads << 16 | threads);
  const unsigned long long phase = atomicAdd(barrier, 0ull) >> 32;
  mbar_arrive(barrier);
  return phase;
}
static inline void wgm_wait_turn(int id, int threads) {
  const unsigned long long phase = wgm_pass_turn(id, threads);
  while (atomicAdd(emulated_turns + id, 0ull) >> 32 == phase) __nanosleep(100);
}

// At the start of a block.
static inline void emulate(void* shared) {
  emulated_base = (char*)shared;
  if (threadIdx.x == 0)
    for (unsigned long long& each : emulated_turns) each = 0;
}
