// kernels/common/acquire/ptx.cuh on the CPU.
#pragma once
#include "rooflab_simt.h"

static inline unsigned add_acquire_release(unsigned* p, unsigned v) { return atomicAdd(p, v); }
