// One fault a kernel, planted on purpose: what watching a kernel must find, and where.
#include "common/reduce.cuh"

extern "C" __global__ void overrun(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) y[i] = 1.0f;  // FAULT overrun
}

extern "C" __global__ void underrun(const float* x, float* y, int n) {
  const int i = threadIdx.x;
  y[i] = x[i] - x[i - 1];  // FAULT underrun
}

extern "C" __global__ void far_away(const float* x, float* y, int n) {
  if (threadIdx.x == 7) y[0] = x[1ll << 40];  // FAULT far_away
}

extern "C" __global__ void vector_overrun(const float4* x, float4* y, int n) {
  if (threadIdx.x <= n / 4) y[threadIdx.x] = x[threadIdx.x];  // FAULT vector_overrun
}

extern "C" __global__ void shared_overrun(const float* x, float* y, int n) {
  __shared__ float tile[32];
  tile[threadIdx.x + n] = 1.0f;  // FAULT shared_overrun
  __syncthreads();
  y[threadIdx.x] = tile[0];
}

extern "C" __global__ void dynamic_overrun(const float* x, float* y, int n) {
  extern __shared__ float room[];
  room[threadIdx.x] = 1.0f;  // FAULT dynamic_overrun
  __syncthreads();
  y[threadIdx.x] = room[threadIdx.x];
}

extern "C" __global__ void misaligned(const float* x, float* y, int n) {
  const float2 v = *reinterpret_cast<const float2*>(x + threadIdx.x);  // FAULT misaligned
  y[threadIdx.x] = v.x + v.y;
}

extern "C" __global__ void shared_race(const float* x, float* y, int n) {
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = s[(threadIdx.x + 63) % 64];  // FAULT shared_race
}

extern "C" __global__ void write_after_read(const float* x, float* y, int n) {
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  const float v = s[(threadIdx.x + 1) % 64];
  s[threadIdx.x] = v;  // FAULT write_after_read
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}

extern "C" __global__ void warp_race(const float* x, float* y, int n) {
  __shared__ float s[32];
  s[threadIdx.x] = x[threadIdx.x];
  if (n < 0) __syncwarp();  // not taken: lanes are in step by luck alone
  y[threadIdx.x] = s[threadIdx.x ^ 1];  // FAULT warp_race
}

extern "C" __global__ void global_race(const float* x, float* y, int n) {
  y[threadIdx.x] = 1.0f;  // FAULT global_race
}

extern "C" __global__ void lost_update(const float* x, float* y, int n) {
  y[0] += 1.0f;  // FAULT lost_update
}

extern "C" __global__ void byte_race(const unsigned char* x, unsigned char* y, int n) {
  y[threadIdx.x / 2] = 1;  // FAULT byte_race
}

extern "C" __global__ void uninitialised(const float* x, float* y, int n) {
  __shared__ float s[64];
  if (threadIdx.x < 48) s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];  // FAULT uninitialised
}

extern "C" __global__ void early_arrival(const float* x, float* y, int n) {
  __shared__ unsigned count;
  if (threadIdx.x == 0) count = 0;
  atomicAdd(&count, 1);  // FAULT early_arrival
  __syncthreads();
  y[threadIdx.x] = count;
}

extern "C" __global__ void never_set(const float* x, float* y, int n) {
  float most[4];
  for (int r = 0; r < 3; ++r) most[r] = x[threadIdx.x];
  y[threadIdx.x] = most[n];
}

extern "C" __global__ void some_do_not_come(const float* x, float* y, int n) {
  if (threadIdx.x < 40) __syncthreads();  // FAULT some_do_not_come
  y[threadIdx.x] = 1.0f;
}

extern "C" __global__ void two_barriers(const float* x, float* y, int n) {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncthreads();  // FAULT two_barriers
  y[threadIdx.x] = 1.0f;
}

extern "C" __global__ void half_a_warp(const float* x, float* y, int n) {
  if (threadIdx.x < 16) y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);  // FAULT half_a_warp
  __syncthreads();
}

extern "C" __global__ void not_in_the_mask(const float* x, float* y, int n) {
  y[threadIdx.x] = __shfl_sync(0x0000ffffu, x[threadIdx.x], 0);  // FAULT not_in_the_mask
}

extern "C" __global__ void inactive_lane(const float* x, float* y, int n) {
  if (threadIdx.x < 16) y[threadIdx.x] = __shfl_down_sync(0xffffu, x[threadIdx.x], 8);  // FAULT inactive_lane
}

extern "C" __global__ void lane_has_ended(const float* x, float* y, int n) {
  if (threadIdx.x >= 20) return;
  y[threadIdx.x] = __shfl_sync(0xffffffffu, x[threadIdx.x], 25);  // FAULT lane_has_ended
}

extern "C" __global__ void no_such_lane(const float* x, float* y, int n) {
  y[threadIdx.x] = warp_sum(x[threadIdx.x]);  // of a block of 40 threads: the second warp has 8 lanes
}

extern "C" __global__ void waits_for_ever(const float* x, volatile float* y, int n) {
  while (atomicAdd(reinterpret_cast<unsigned*>(const_cast<float*>(y)), 0u) == 0u) {  // FAULT waits_for_ever
  }
}

extern "C" __global__ void trapped(const float* x, float* y, int n) {
  if (threadIdx.x == 9) __trap();  // FAULT trapped
}

extern "C" __global__ void too_deep(const float* x, float* y, int n) {
  volatile char room[80000];
  for (int i = 0; i < 80000; i += 64) room[i] = 1;
  __syncthreads();
  y[threadIdx.x] = room[n];
}

// --- and what must raise no alarm ------------------------------------------------------------------------------------

// Blocks hand in partial sums; the last one to come adds them up.
extern "C" __global__ void last_block_adds(const float* x, float* y, float* partial, unsigned* ticket) {
  __shared__ bool last;
  const float sum = block_sum<64>(x[blockIdx.x * 64 + threadIdx.x]);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    __threadfence();
    last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float total = 0;
    for (unsigned b = 0; b < gridDim.x; ++b) total += partial[b];
    *y = total;
  }
}

// Lanes that are kept in step, bytes that share a word, shared memory used again after a barrier.
extern "C" __global__ void in_order(const float* x, float* y, unsigned char* bytes) {
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  const float neighbour = s[threadIdx.x ^ 1];
  __syncwarp();
  s[threadIdx.x] = neighbour;
  __syncthreads();
  const float other = s[63 - threadIdx.x];
  __syncthreads();
  s[threadIdx.x] = other;
  bytes[threadIdx.x] = (unsigned char)threadIdx.x;
  y[threadIdx.x] = s[threadIdx.x];
}
