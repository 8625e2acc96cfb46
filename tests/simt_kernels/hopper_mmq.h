// What MMQ's rung 6 needs beyond hopper.h: products of bytes, and boxes of them, from maps as tmm_copy_box takes them. A row
// of a box is 128 bytes. Memory is read 16 or 8 bytes at a time: the watcher keeps every access.
struct EmulatedBytes {
  signed char of[32];
};
static inline EmulatedBytes emulated_bytes(unsigned long long descriptor, int i) {
  const unsigned eight = (unsigned(descriptor >> 32) & 0x3fffu) * 16;
  const unsigned address = (unsigned(descriptor) & 0x3fffu) * 16 + i / 8 * eight + i % 8 * 128;
  uint4 found[2];
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned piece = address + half * 16;
    found[half] = *(const uint4*)(emulated_base + (piece ^ (piece >> 7 & 7) << 4));
  }
  return *(const EmulatedBytes*)found;
}

static inline void wgmm_m64n64k32_s8(int* d, unsigned long long a, unsigned long long b, bool add) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const EmulatedBytes rows[2] = {emulated_bytes(a, 16 * warp + lane / 4), emulated_bytes(a, 16 * warp + lane / 4 + 8)};
  for (int p = 0; p < 8; ++p)
    for (int e = 0; e < 2; ++e) {
      const EmulatedBytes column = emulated_bytes(b, p * 8 + lane % 4 * 2 + e);
      for (int h = 0; h < 2; ++h) {
        int sum = add ? d[4 * p + 2 * h + e] : 0;
        for (int k = 0; k < 32; ++k) sum += rows[h].of[k] * column.of[k];
        d[4 * p + 2 * h + e] = sum;
      }
    }
}

static inline void byte_box(void* shared, const long long* map, int column, int row, unsigned long long*) {
  const unsigned place = unsigned((char*)shared - emulated_base);
  for (int r = 0; r < map[2]; ++r)
    for (int c = 0; c < map[3]; c += 8) {
      const unsigned address = place + r * 128 + c;
      const bool inside = row + r < map[0] && column + c < map[1];
      *(long long*)(emulated_base + (address ^ (address >> 7 & 7) << 4)) =
          inside ? map[4 + ((row + r) * map[1] + column + c) / 8] : 0;
    }
}
