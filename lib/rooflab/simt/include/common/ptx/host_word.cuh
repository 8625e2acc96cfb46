// kernels/common/ptx/host_word.cuh on the CPU.
#pragma once
#include "rooflab_simt.h"

static inline void store_for_host(unsigned long long* p, unsigned long long v) { simt_write_word(p, v); }
