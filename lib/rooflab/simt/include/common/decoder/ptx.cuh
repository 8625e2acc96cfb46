// Instructions that the decoder alone uses, as the CPU has them; its timeline needs a GPU's clocks.
#pragma once

static inline int recomputed(int v) { return v; }
