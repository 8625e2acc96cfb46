// Give each warp a ring whose slots it fills again as soon as it has read them.
#pragma once
#include "common/decoder/model.cuh"

constexpr bool PRODUCERS_FILL = false;
constexpr int BARRIERS = 0, DEFERRED = 0, DEFERRED_BY_FIRST = 0;
#include "common/decoder/ring_own.cuh"
