// kernels/common/ptx/ldmatrix.cuh on the CPU.
#pragma once
#include "rooflab_simt.h"

static inline void load_matrix_x1(unsigned* r, const void* row, SIMT_HERE) {
  simt_load_matrix(1, r, row, file, line);
}
static inline void load_matrix_x2(unsigned* r, const void* row, SIMT_HERE) {
  simt_load_matrix(2, r, row, file, line);
}
static inline void load_matrix_x4(unsigned* r, const void* row, SIMT_HERE) {
  simt_load_matrix(4, r, row, file, line);
}
static inline void load_matrix_x1_transposed(unsigned* r, const void* row, SIMT_HERE) {
  simt_load_matrix(-1, r, row, file, line);
}
static inline void load_matrix_x2_transposed(unsigned* r, const void* row, SIMT_HERE) {
  simt_load_matrix(-2, r, row, file, line);
}
static inline void load_matrix_x4_transposed(unsigned* r, const void* row, SIMT_HERE) {
  simt_load_matrix(-4, r, row, file, line);
}
