// What a whole warp does with matrices, once all its lanes have come: mma.sync and ldmatrix. Which lane holds what is
// said in kernels/common/ptx.cuh.
#include "matrices.h"

#include "simt/small_floats.h"

namespace {

struct Shape {
  int m, n, k, bits, pairs;  // bits of an element of a and b; two sums in a register
};
const Shape shapes[] = {{16, 8, 16, 16, 0}, {16, 8, 8, 16, 0}, {16, 8, 16, 16, 1}, {16, 8, 8, 16, 1},
                        {16, 8, 16, 16, 0}, {16, 8, 32, 8, 0}, {8, 8, 16, 8, 0}};

// Element [row][column] of an operand whose rows are spread over the lanes: each lane has `each` neighbours in a
// register, a quad of lanes a row of 8 rows, and further registers hold the next 8 rows, then the next columns.
double element(const Product* const* lanes, bool of_b, int row, int column, int rows, const Shape& shape, int kind) {
  const int each = 32 / shape.bits, width = 4 * each;
  const Product& lane = *lanes[row % 8 * 4 + column % width / each];
  const unsigned* registers = of_b ? lane.b : lane.a;
  const unsigned bits = registers[column / width * (rows / 8) + row / 8] >> column % each * shape.bits;
  if (shape.bits == 8) return double(int8_t(bits));
  if (kind == SIMT_M16N8K16_BF16) return float(__nv_bfloat16::of_bits(uint16_t(bits)));
  return float(__half::of_bits(uint16_t(bits)));
}

}  // namespace

void multiply(const Product* const* lanes, int kind) {
  const Shape& shape = shapes[kind];
  double a[16][32], b[8][32];
  for (int k = 0; k < shape.k; ++k) {
    for (int row = 0; row < shape.m; ++row) a[row][k] = element(lanes, false, row, k, shape.m, shape, kind);
    for (int column = 0; column < shape.n; ++column) b[column][k] = element(lanes, true, column, k, 8, shape, kind);
  }
  for (int row = 0; row < shape.m; ++row)
    for (int column = 0; column < shape.n; ++column) {
      void* d = lanes[row % 8 * 4 + column / 2]->d;
      const int place = row / 8 * 2 + column % 2;
      // Products are exact in a double, and their sum is rounded once at the end.
      double sum = 0;
      for (int k = 0; k < shape.k; ++k) sum += a[row][k] * b[column][k];
      if (shape.bits == 8) {
        int* whole = static_cast<int*>(d) + place;
        *whole = int(unsigned(*whole) + unsigned(int(sum)));
      } else if (shape.pairs) {
        uint16_t* half_sum = static_cast<uint16_t*>(d) + place;
        *half_sum = __half::rounded(double(float(__half::of_bits(*half_sum))) + sum).bits;
      } else {
        float* single = static_cast<float*>(d) + place;
        *single = float(double(*single) + sum);
      }
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
