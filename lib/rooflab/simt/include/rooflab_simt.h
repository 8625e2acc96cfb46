// CUDA C++ as the course uses it, for the host's C++ compiler: everything that NVRTC offers without an #include.
// Names and meanings are CUDA's; see simt/__init__.py for what differs.
#pragma once
#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <limits>

#include "simt/runtime.h"
#include "simt/vectors.h"

#include "simt/arithmetic.h"
#include "simt/memory.h"
#include "simt/warp.h"

// Last, because the host's own headers use some of these words for themselves.
#ifdef ROOFLAB_WATCHED
// g++ calls no hook where a struct goes by value from memory into a call, or from a call into memory: so all calls of
// a kernel are inlined.
#define __global__ __attribute__((flatten))
#define __noinline__
#else
#define __global__
#define __noinline__ __attribute__((noinline))
#endif
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __managed__
#define __shared__ thread_local  // a block's threads share one OS thread, and the runtime refills it for each block
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __forceinline__ inline
