// A ring for each warp: the last slots of a phase are filled again when the phase is over.
#pragma once
#include "common/decoder/model.cuh"

constexpr bool OTHERS_FILL = false;
constexpr int BARRIERS = 0, HELD = HELD_BACK, HELD_BY_FIRST = FIRST_HELD;
static_assert(HELD < STAGES && HELD_BY_FIRST <= STAGES, "a warp holds back no more than its ring");
#include "common/decoder/ring_own.cuh"
