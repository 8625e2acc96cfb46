// Functions of cuda_fp16.h and cuda_bf16.h, results row by row: bits of pairs, or words.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename P>
__device__ void of_pairs(const P* a, const P* b, const P* c, unsigned* out, int i, int n) {
    const P x = a[i], y = b[i], z = c[i];
    const P results[] = {__hadd2_sat(x, y), __hsub2_sat(x, y), __hmul2_sat(x, y), __hfma2_sat(x, y, z),
                         __hfma2_relu(x, y, z), __hmin2(x, y), __hmax2(x, y), __hmin2_nan(x, y), __hmax2_nan(x, y),
                         __hne2(x, y), __hneu2(x, y), __hgt2(x, y), __hisnan2(x), __hcmadd(x, y, z)};
    int row = 0;
    for (; row < 14; ++row) reinterpret_cast<P*>(out)[row * n + i] = results[row];
    out[row++ * n + i] = __heq2_mask(x, y);
    out[row++ * n + i] = __hleu2_mask(x, y);
    out[row++ * n + i] = __hbge2(x, y) + 2 * __hbne2(x, y) + 4 * __hbltu2(x, y);
}
extern "C" __global__ void half_pairs(const half2* a, const half2* b, const half2* c, unsigned* out, int n) {
    of_pairs(a, b, c, out, threadIdx.x, n);
}
extern "C" __global__ void bfloat_pairs(const nv_bfloat162* a, const nv_bfloat162* b, const nv_bfloat162* c,
                                        unsigned* out, int n) {
    of_pairs(a, b, c, out, threadIdx.x, n);
}

extern "C" __global__ void to_half(const float* x, const long long* whole, unsigned short* out, int n) {
    const int i = threadIdx.x;
    const half results[] = {__float2half_rn(x[i]), __float2half_rz(x[i]), __float2half_ru(x[i]), __float2half_rd(x[i]),
                            __ll2half_rn(whole[i]), __ll2half_rz(whole[i]), __int2half_rd(int(whole[i])),
                            __ushort2half_ru((unsigned short)(whole[i]))};
    for (int k = 0; k < 8; ++k) out[k * n + i] = __half_as_ushort(results[k]);
}

extern "C" __global__ void from_half(const half* x, long long* out, int n) {
    const int i = threadIdx.x;
    const half v = x[i];
    const long long results[] = {__half2int_rn(v), __half2int_rz(v), __half2int_ru(v), __half2int_rd(v),
                                 __half2uint_rn(v), __half2short_rd(v), __half2ushort_ru(v), __half2char_rz(v),
                                 __half2ll_rn(v), (long long)__half2ull_rz(v)};
    for (int k = 0; k < 10; ++k) out[k * n + i] = results[k];
}

extern "C" __global__ void bytes(const int* a, const int* b, int* out, int n) {
    const int i = threadIdx.x;
    const int x = a[i], y = b[i];
    out[i] = __dp2a_lo(x, y, 3);
    out[n + i] = __dp2a_hi(x, y, 3);
    out[2 * n + i] = int(__vabsdiffu4(unsigned(x), unsigned(y)));
    out[3 * n + i] = int(__vmaxs4(unsigned(x), unsigned(y)));
    out[4 * n + i] = int(__vabs4(unsigned(x)));
}

// The functions that a GPU approximates: out [15][n] bits.
template <typename T>
__device__ void functions(const T* x, T* out, int n) {
    const int i = threadIdx.x;
    const T v = x[i], positive = __habs(v);
    const T results[] = {hexp(v),    hexp2(v),       hexp10(v), hlog(positive), hlog2(positive), hlog10(positive),
                         hsqrt(positive), hrsqrt(positive), hrcp(v), hsin(v), hcos(v), htanh(v), hfloor(v), hrint(v),
                         htrunc(v)};
    for (int k = 0; k < 15; ++k) out[k * n + i] = results[k];
}
extern "C" __global__ void half_functions(const half* x, half* out, int n) { functions(x, out, n); }
extern "C" __global__ void bfloat_functions(const nv_bfloat16* x, nv_bfloat16* out, int n) { functions(x, out, n); }
