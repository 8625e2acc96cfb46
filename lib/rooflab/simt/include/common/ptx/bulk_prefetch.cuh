// kernels/common/ptx/bulk_prefetch.cuh on the CPU: there are no caches.
#pragma once
#include "rooflab_simt.h"

static inline void prefetch_bytes_l2(const void*, unsigned) {}
