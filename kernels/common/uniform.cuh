// Random numbers without a state: for every seed, token and place the same.
#pragma once

// A number in (0, 1) for every token at every place: the bits of the three well mixed.
__device__ inline float uniform(unsigned seed, unsigned place, unsigned index) {
    unsigned v = seed ^ place * 0x9e3779b9u;
    v = (v ^ v >> 16) * 0x85ebca6bu + index;
    v = (v ^ v >> 13) * 0xc2b2ae35u;
    v = (v ^ v >> 16) * 0x7feb352du;
    v ^= v >> 15;
    return ((v >> 9) + 0.5f) * (1.0f / (1u << 23));
}
