// Give each warp a ring whose last slots of a phase it fills again when the phase has ended: HELD_BACK of them, FIRST_HELD
// of the first warp's.
#pragma once
#include "common/decoder/model.cuh"

constexpr bool PRODUCERS_FILL = false;
constexpr int BARRIERS = 0, DEFERRED = HELD_BACK, DEFERRED_BY_FIRST = FIRST_HELD;
static_assert(DEFERRED < STAGES && DEFERRED_BY_FIRST <= STAGES, "a warp leaves no more slots empty than its ring has");
#include "common/decoder/ring_own.cuh"
