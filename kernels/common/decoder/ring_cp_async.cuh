// A ring for each warp: a slot is filled again as soon as it has been read.
#pragma once
#include "common/decoder/model.cuh"

constexpr bool OTHERS_FILL = false;
constexpr int BARRIERS = 0, HELD = 0, HELD_BY_FIRST = 0;
#include "common/decoder/ring_own.cuh"
