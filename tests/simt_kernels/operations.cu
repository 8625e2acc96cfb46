// Every operation that has a meaning between threads, one kernel each, for tests to compare with NumPy.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void where_am_i(unsigned* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] =
      blockIdx.x | blockIdx.y << 4 | blockIdx.z << 8 | threadIdx.x << 12 | threadIdx.y << 16 | threadIdx.z << 20;
}

// out [8][32]: what each lane gets.
extern "C" __global__ void shuffles(const int* in, int* out, int width) {
  const int lane = threadIdx.x, v = in[lane];
  out[lane] = __shfl_sync(0xffffffffu, v, lane * 7 + 3, width);
  out[32 + lane] = __shfl_up_sync(0xffffffffu, v, 3, width);
  out[64 + lane] = __shfl_down_sync(0xffffffffu, v, 5, width);
  out[96 + lane] = __shfl_xor_sync(0xffffffffu, v, 9, width);
  if (lane % 2) out[128 + lane] = __shfl_sync(0xaaaaaaaau, v, lane ^ 2);
  const double d = __shfl_xor_sync(0xffffffffu, v + 0.5, 1);
  out[160 + lane] = int(2 * d);
  const half h = __shfl_down_sync(0xffffffffu, __float2half(float(lane)), 1);
  out[192 + lane] = int(__half2float(h));
  const long long wide = __shfl_xor_sync(0xffffffffu, (1ll << 40) + lane, 31);
  out[224 + lane] = int(wide - (1ll << 40));
}

extern "C" __global__ void votes(const unsigned* in, unsigned* out) {
  const unsigned lane = threadIdx.x, v = in[lane];
  out[lane] = __ballot_sync(0xffffffffu, v & 1);
  out[32 + lane] = __all_sync(0xffffffffu, v < 1000) + 2 * __any_sync(0xffffffffu, v == in[5]);
  out[64 + lane] = __match_any_sync(0xffffffffu, v % 4);
  int same;
  const unsigned mask = __match_all_sync(lane < 16 ? 0xffffu : 0xffff0000u, lane < 16 ? 7u : v, &same);
  out[96 + lane] = mask + unsigned(same);
  out[128 + lane] = __reduce_add_sync(0xffffffffu, v);
  out[160 + lane] = __reduce_max_sync(0xffffffffu, v);
  out[192 + lane] = unsigned(__reduce_min_sync(0xffffffffu, int(v) - 50));
  out[224 + lane] = __activemask();
  if (lane % 3 == 0) out[256 + lane] = __activemask();
}

// Sums of neighbours through shared memory, statically and dynamically sized; out[n ..]: counting barriers.
extern "C" __global__ void barriers(const int* in, int* out, int n) {
  extern __shared__ int whole[];
  __shared__ int half_of_it[64];
  const int t = threadIdx.x;
  whole[t] = in[t];
  if (t % 2 == 0) half_of_it[t / 2] = in[t];
  __syncthreads();
  out[t] = whole[(t + 1) % n] + half_of_it[t / 2];
  out[n + t] = __syncthreads_count(in[t] > 0) + 10000 * __syncthreads_and(in[t] >= -5) +
               100000 * __syncthreads_or(in[t] == in[3]);
}

extern "C" __global__ void atomics(int* ints, float* f, unsigned* u, unsigned long long* wide) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(&ints[0], i);
  atomicSub(&ints[1], i);
  atomicMin(&ints[2], (i * 37) % 101 - 50);
  atomicMax(&ints[3], (i * 37) % 101 - 50);
  atomicOr(&ints[4], 1 << i % 31);
  atomicAnd(&ints[5], ~(1 << i % 5));
  atomicXor(&ints[6], i);
  atomicAdd(f, 1);
  atomicInc(&u[0], 6u);
  atomicDec(&u[1], 4u);
  atomicAdd(wide, 1ull << 33);
  unsigned old = u[2], seen;  // the usual loop around a compare-and-swap
  do {
    seen = old;
    old = atomicCAS(&u[2], seen, seen + 3);
  } while (old != seen);
}

// Threads queue for a lock: each adds its number to a plain word.
extern "C" __global__ void locked(int* lock, int* total) {
  while (atomicExch(lock, 1) != 0) {
  }
  *total += int(threadIdx.x);
  __threadfence();
  atomicExch(lock, 0);
}

// Bits of the 16-bit floats: conversions and arithmetic, pairs [n] of each operand. (No memcpy of two bytes here: NVRTC
// 13.0 makes a conversion by value of it.)
template <typename T>
__device__ void small(const float* a, const float* b, const float* c, unsigned short* out, int i, int n) {
  const T x(a[i]), y(b[i]), z(c[i]);
  const T results[6] = {x, x + y, x * y, x / y, __hfma(x, y, z), hsqrt(__habs(x))};
  for (int k = 0; k < 6; ++k) reinterpret_cast<T*>(out)[k * n + i] = results[k];
}
extern "C" __global__ void halves(const float* a, const float* b, const float* c, unsigned short* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) small<half>(a, b, c, out, i, n);
}
extern "C" __global__ void bfloats(const float* a, const float* b, const float* c, unsigned short* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) small<nv_bfloat16>(a, b, c, out, i, n);
}
extern "C" __global__ void half_pairs(const half2* x, const half2* y, half2* out) {
  const int i = threadIdx.x;
  out[i] = __hfma2(x[i], y[i], __float2half2_rn(0.5f));
}

extern "C" __global__ void bits(const int* a, const int* b, int* out, int n) {
  const int i = threadIdx.x, x = a[i], y = b[i];
  const unsigned u = unsigned(x), v = unsigned(y);
  out[i] = __dp4a(x, y, 5);
  out[n + i] = int(__dp4a(u, v, 5u));
  out[2 * n + i] = __popc(u);
  out[3 * n + i] = __clz(x);
  out[4 * n + i] = __ffs(x);
  out[5 * n + i] = int(__brev(u));
  out[6 * n + i] = int(__umulhi(u, v));
  out[7 * n + i] = int(__byte_perm(u, v, 0x5140));
  out[8 * n + i] = int(__funnelshift_r(u, v, 9));
  out[9 * n + i] = __float2int_rn(__int_as_float(x));
  out[10 * n + i] = min(x, y) ^ max(x, 0);
  out[11 * n + i] = int(__vsubss4(u, v));
}

__constant__ float table[4] = {1.0f, 2.0f, 4.0f, 8.0f};
extern "C" __global__ void constants(float* out) { out[threadIdx.x] = table[threadIdx.x % 4] * rsqrtf(4.0f); }

extern "C" __global__ void hints(const float4* in, float4* out) {
  __stcs(&out[threadIdx.x], __ldg(&in[threadIdx.x]));
  if (threadIdx.x == 0) __stcg(&out[32], __ldcs(&in[0]));
}

// Barriers between blocks by a flag: only with all blocks alive.
extern "C" __global__ void relay(int* turn, int* order) {
  if (threadIdx.x == 0) {
    while (atomicAdd(turn, 0) != int(gridDim.x - 1 - blockIdx.x)) {
    }
    order[atomicAdd(turn, 1)] = int(blockIdx.x);
  }
}
