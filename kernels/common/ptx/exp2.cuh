// Powers of two by the special function unit (ex2.approx).
#pragma once

// 2 to the x by the special function unit: about two units in the last place; numbers below 2^-126 become 0.
__device__ inline float exp2_approx(float x) {
    float v;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
    return v;
}

// The same for the two halves in a word.
__device__ inline unsigned exp2_approx_f16x2(unsigned x) {
    unsigned v;
    asm("ex2.approx.f16x2 %0, %1;" : "=r"(v) : "r"(x));
    return v;
}
