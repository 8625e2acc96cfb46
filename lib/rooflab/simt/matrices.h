// What the lanes of a warp bring to a matrix instruction, for the runtime to hand over when all have come.
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "simt/runtime.h"

struct Product {
  void* d;
  const unsigned *a, *b;
};
struct Rows {
  unsigned* registers;
  const void* row;
};
void multiply(const Product* const* lanes, int kind);    // of SimtProduct
void hand_out(const Rows* const* lanes, int count);  // count as for simt_load_matrix
