// kernels/common/ptx/mma.cuh on the CPU.
#pragma once
#include "rooflab_simt.h"

static inline void mma_m16n8k8_f16(float* d, const unsigned* a, const unsigned* b, SIMT_HERE) {
  simt_product(SIMT_M16N8K8_F16, d, a, b, file, line);
}
static inline void mma_m16n8k16_f16(float* d, const unsigned* a, const unsigned* b, SIMT_HERE) {
  simt_product(SIMT_M16N8K16_F16, d, a, b, file, line);
}
static inline void mma_m16n8k8_f16_sum_f16(unsigned* d, const unsigned* a, const unsigned* b, SIMT_HERE) {
  simt_product(SIMT_M16N8K8_F16_SUM_F16, d, a, b, file, line);
}
static inline void mma_m16n8k16_f16_sum_f16(unsigned* d, const unsigned* a, const unsigned* b, SIMT_HERE) {
  simt_product(SIMT_M16N8K16_F16_SUM_F16, d, a, b, file, line);
}
static inline void mma_m16n8k16_bf16(float* d, const unsigned* a, const unsigned* b, SIMT_HERE) {
  simt_product(SIMT_M16N8K16_BF16, d, a, b, file, line);
}
static inline void mma_m8n8k16_s8(int* d, const unsigned* a, const unsigned* b, SIMT_HERE) {
  simt_product(SIMT_M8N8K16_S8, d, a, b, file, line);
}
static inline void mma_m16n8k32_s8(int* d, const unsigned* a, const unsigned* b, SIMT_HERE) {
  simt_product(SIMT_M16N8K32_S8, d, a, b, file, line);
}
