// Several GPUs as a kernel sees them: their mailboxes, how it waits for them, and the sum of what they hold.
//
// Macros   WORLD = 2: GPUs that take part, 2 to 8;
//          LIMIT = 4194304: looks at a word that does not come, some seconds, before a wait is given up.
#pragma once
#include "common/ptx/system.cuh"
#include "common/rows.cuh"

// GPU r's mailbox for every r below WORLD, in registers: loops over it are unrolled.
struct Mailboxes {
    char* of[8];
};

// Whether a word that counts rounds stands at `round` or beyond: it wraps after 2^32.
__device__ inline bool reached(unsigned word, unsigned round) { return (int)(word - round) >= 0; }

// Wait until a flag in this GPU's own memory reaches a round. After LIMIT looks *lost becomes 1 and the wait ends, as
// does every later one at its first look: a GPU that is gone stops the others within seconds.
__device__ inline void wait_for(const unsigned* flag, unsigned round, volatile unsigned* lost) {
    for (int looks = 0; !reached(load_acquire_system(flag), round); ++looks) {
        if (looks == LIMIT || *lost) {
            *lost = 1;
            return;
        }
    }
}

// The eight bytes of a packet whose two halves both carry the round; waits as wait_for does.
__device__ inline uint2 arrived(const ulonglong2* packet, unsigned round, volatile unsigned* lost) {
    ulonglong2 v = load_pair_system(packet);
    for (int looks = 0; v.x >> 32 != round || v.y >> 32 != round; ++looks) {
        if (looks == LIMIT || *lost) {
            *lost = 1;
            break;
        }
        v = load_pair_system(packet);
    }
    return make_uint2((unsigned)v.x, (unsigned)v.y);
}

// The sum of eight halves of each GPU, in the order of the GPUs, so that all of them round to the same bits.
__device__ inline uint4 sum_in_order(const uint4 (&parts)[WORLD]) {
    Eight sum = eight_from(parts[0]);
#pragma unroll
    for (int r = 1; r < WORLD; ++r) {
        const Eight v = eight_from(parts[r]);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum.at[j] += v.at[j];
    }
    return eight_halves(sum);
}
