// kernels/common/ptx/dependent_launch.cuh on the CPU.
#pragma once
#include "rooflab_simt.h"

// Launches run one after another: the one before has finished.
static inline void wait_for_predecessor() {}
static inline void let_successor_start() {}
