// What a kernel asks of the runtime: where its thread stands, and to wait for others.
#pragma once
#include "simt/vectors.h"

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

enum SimtWarp {  // operations of a warp
  SIMT_SYNC, SIMT_SHFL, SIMT_SHFL_UP, SIMT_SHFL_DOWN, SIMT_SHFL_XOR, SIMT_ALL, SIMT_ANY, SIMT_BALLOT,
  SIMT_MATCH_ANY, SIMT_MATCH_ALL, SIMT_ADD, SIMT_MIN_S, SIMT_MIN_U, SIMT_MAX_S, SIMT_MAX_U, SIMT_AND, SIMT_OR, SIMT_XOR,
  SIMT_ACTIVE, SIMT_PRODUCT, SIMT_LOAD_MATRIX
};
enum SimtProduct {  // mma.sync by shape and kinds of numbers
  SIMT_M16N8K16_F16, SIMT_M16N8K8_F16, SIMT_M16N8K16_F16_SUM_F16, SIMT_M16N8K8_F16_SUM_F16, SIMT_M16N8K16_BF16,
  SIMT_M16N8K32_S8, SIMT_M8N8K16_S8
};
enum SimtCounted {  // instructions that are counted: the products, then these
  SIMT_DP4A = SIMT_M8N8K16_S8 + 1, SIMT_TO_SMALL, SIMT_COUNTED
};
enum SimtBarrier { SIMT_PLAIN, SIMT_BARRIER_AND, SIMT_BARRIER_OR, SIMT_BARRIER_COUNT };

extern "C" {
// Wait until every thread of the block is here.
int simt_barrier(int kind, int predicate, const char* file, int line);
// Wait until every lane of `mask` that has not ended is here; `value` (`size` bytes) is given and becomes the result.
// For SIMT_MATCH_ALL the return value says whether all were equal.
int simt_warp(int operation, unsigned mask, void* value, int size, int argument, int width, const char* file, int line);
// One atomic access: what it reads is acquired, what it writes is released. A read that finds an unchanged value may
// be a wait, so other threads run first.
void simt_atomic_read(void* to, const void* from, int size, int wait);
void simt_atomic_write(void* to, const void* from, int size);
void simt_yield(void);  // let other threads run first
void simt_trap(const char* file, int line);
void simt_count(int what);  // this thread executes one of SimtCounted
// d += a b by a whole warp: each lane's registers, see common/ptx/mma.cuh.
void simt_product(int kind, void* d, const unsigned* a, const unsigned* b, const char* file, int line);
// `count` matrices of 8 x 8 16-bit elements from the rows whose addresses the lanes give; -count transposes them.
void simt_load_matrix(int count, unsigned* registers, const void* row, const char* file, int line);
// Start a copy of `size` bytes to shared memory (zeros unless `take`); close this thread's group of copies; do those
// that belong to all but its latest `pending` groups.
void simt_copy_async(void* to, const void* from, int size, int take);
void simt_copy_commit(void);
void simt_copy_wait(int pending);
}

#ifdef ROOFLAB_WATCHED
#define SIMT_COUNT(WHAT) simt_count(WHAT)
#else
#define SIMT_COUNT(WHAT) ((void)0)
#endif
// Within it the compiler sees whether a caller's argument is a constant.
#define SIMT_INLINE inline __attribute__((always_inline))
#define SIMT_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
