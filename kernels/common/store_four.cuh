// Sums of one token's outputs to memory, four rows at a time.
#pragma once
#include <cuda_fp16.h>

// Four neighbouring sums to rows row to row + 3 of a token's n outputs, at once where n lets their addresses be whole.
__device__ inline void store_four(__half* y, unsigned row, unsigned n, float4 sums) {
    const __half2 low = __floats2half2_rn(sums.x, sums.y), high = __floats2half2_rn(sums.z, sums.w);
    if (n % 4 == 0) {
        if (row < n) *reinterpret_cast<uint2*>(y + row) = make_uint2(*reinterpret_cast<const unsigned*>(&low), *reinterpret_cast<const unsigned*>(&high));
    } else {
        if (row < n) y[row] = __low2half(low);
        if (row + 1 < n) y[row + 1] = __high2half(low);
        if (row + 2 < n) y[row + 2] = __low2half(high);
        if (row + 3 < n) y[row + 3] = __high2half(high);
    }
}
