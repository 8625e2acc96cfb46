// Bitwise functions of three words (lop3).
#pragma once

// Any bitwise function of three words in one instruction: bit (4 a + 2 b + c) of TABLE is the result for bits a, b, c.
// So (a & b) | c is 0xea, (a & b) ^ c is 0x6a.
template <int TABLE>
__device__ inline unsigned bitwise(unsigned a, unsigned b, unsigned c) {
    unsigned v;
    asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(v) : "r"(a), "r"(b), "r"(c), "n"(TABLE));
    return v;
}
