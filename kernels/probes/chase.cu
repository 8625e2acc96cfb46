// probe chase: one thread follows a chain of indices, each load needing the one before.
//
// Purpose  latency: with one load in flight, time per step is the time of a load from wherever the chain lies.
// Shapes   next [lines x STRIDE] uint32, next[i STRIDE] the line after line i in one cycle through all lines;
//          end [1] uint32, the line reached after `steps` steps from line `start`.
// Launch   1 block of 1 thread. Loads go past L1 (ld.global.cg), which later lessons' streams don't use either.
// Macros   STRIDE = 32: words from line to line.
extern "C" __global__ void chase(const unsigned* __restrict__ next, unsigned* end, unsigned start, unsigned steps) {
    unsigned long long line = start;
#pragma unroll 8
    for (unsigned s = 0; s < steps; ++s) line = __ldcg(next + line * STRIDE);
    *end = (unsigned)line;
}
