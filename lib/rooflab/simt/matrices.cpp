// What a whole warp does with matrices, once all its lanes have come: mma.sync and ldmatrix. Which lane holds what is
// said in kernels/common/ptx/mma.cuh and ldmatrix.cuh.
#include "matrices.h"

#include "simt/small_floats.h"

namespace {

float half_of(uint16_t bits) { return float(__half::of_bits(bits)); }
float bfloat16_of(uint16_t bits) { return float(__nv_bfloat16::of_bits(bits)); }

// The rows of an operand, which are spread over the lanes: each lane has the neighbours of a register, a quad of lanes a
// row of 8 rows, and further registers hold the next 8 rows, then the next columns.
template <int ROWS, int K, int BITS, typename Of>
void gather(double out[ROWS][K], const Product* const* lanes, const unsigned* Product::*registers, Of of) {
  constexpr int each = 32 / BITS, width = 4 * each;
  for (int lane = 0; lane < 32; ++lane)
    for (int r = 0; r < K / width * (ROWS / 8); ++r) {
      const unsigned bits = (lanes[lane]->*registers)[r];
      double* at = &out[r % (ROWS / 8) * 8 + lane / 4][r / (ROWS / 8) * width + lane % 4 * each];
      for (int k = 0; k < each; ++k) at[k] = of(bits >> k * BITS);
    }
}

// `add(d, place, sum)` adds the sum of exact products to a lane's element: it is rounded once, there.
template <int M, int K, int BITS, typename Of, typename Add>
void product(const Product* const* lanes, Of of, Add add) {
  double a[M][K], b[8][K];
  gather<M, K, BITS>(a, lanes, &Product::a, of);
  gather<8, K, BITS>(b, lanes, &Product::b, of);
  for (int row = 0; row < M; ++row)
    for (int column = 0; column < 8; ++column) {
      double sum = 0;
      for (int k = 0; k < K; ++k) sum += a[row][k] * b[column][k];
      add(lanes[row % 8 * 4 + column / 2]->d, row / 8 * 2 + column % 2, sum);
    }
}

void add_float(void* d, int place, double sum) {
  float* single = static_cast<float*>(d) + place;
  *single = float(double(*single) + sum);
}
void add_half(void* d, int place, double sum) {
  uint16_t* half_sum = static_cast<uint16_t*>(d) + place;
  *half_sum = __half::rounded(double(half_of(*half_sum)) + sum).bits;
}
void add_whole(void* d, int place, double sum) {
  int* whole = static_cast<int*>(d) + place;
  *whole = int(unsigned(*whole) + unsigned(int(sum)));
}

}  // namespace

void multiply(const Product* const* lanes, int kind) {
  const auto half = [](unsigned bits) { return half_of(uint16_t(bits)); };
  const auto bfloat16 = [](unsigned bits) { return bfloat16_of(uint16_t(bits)); };
  const auto byte = [](unsigned bits) { return int8_t(bits); };
  switch (kind) {
    case SIMT_M16N8K16_F16: return product<16, 16, 16>(lanes, half, add_float);
    case SIMT_M16N8K8_F16: return product<16, 8, 16>(lanes, half, add_float);
    case SIMT_M16N8K16_F16_SUM_F16: return product<16, 16, 16>(lanes, half, add_half);
    case SIMT_M16N8K8_F16_SUM_F16: return product<16, 8, 16>(lanes, half, add_half);
    case SIMT_M16N8K16_BF16: return product<16, 16, 16>(lanes, bfloat16, add_float);
    case SIMT_M16N8K32_S8: return product<16, 32, 8>(lanes, byte, add_whole);
    case SIMT_M8N8K16_S8: return product<8, 16, 8>(lanes, byte, add_whole);
  }
}

void hand_out(const Rows* const* lanes, int count) {
  const bool transposed = count < 0;
  for (int matrix = 0; matrix < abs(count); ++matrix) {
    uint16_t elements[8][8];
    for (int row = 0; row < 8; ++row) memcpy(elements[row], lanes[matrix * 8 + row]->row, 16);
    for (int lane = 0; lane < 32; ++lane) {
      const int major = lane / 4, minor = lane % 4 * 2;
      const unsigned low = transposed ? elements[minor][major] : elements[major][minor];
      const unsigned high = transposed ? elements[minor + 1][major] : elements[major][minor + 1];
      lanes[lane]->registers[matrix] = low | high << 16;
    }
  }
}
