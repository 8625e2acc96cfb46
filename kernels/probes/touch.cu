// probe touch: one thread writes one word, so that a launch of it costs nothing but the launch.
//
// Shapes   out [1] uint32; token a word.
// Launch   1 block of 32 threads. Built with -DDEPENDENT=1 it lets its successor start at once and waits for its
//          predecessor before it writes: what is left of the hand-over is the programmatic edge.
// Macros   DEPENDENT = 0: 1 for a programmatic dependent launch.
#include "common/ptx/dependent_launch.cuh"

extern "C" __global__ void touch(unsigned* out, unsigned token) {
#if DEPENDENT
    let_successor_start();
    wait_for_predecessor();
#endif
    if (threadIdx.x == 0) *out = token;
}
