// The only place with inline PTX: each instruction under a name that says what it does.
#pragma once

// 16-byte load that reads through the read-only path and asks L1 not to keep the line: data used once.
__device__ inline uint4 load_streaming(const uint4* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

// 16-byte store marked evict-first: the line is not read again soon.
__device__ inline void store_streaming(uint4* p, uint4 v) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// Programmatic dependent launch (sm_90 and up): wait until the kernels this one depends on have finished and their
// writes are visible; and say that dependents may start. On older chips the chain is an ordinary serial one.
__device__ inline void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void let_successor_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Atomic add with release order and load with acquire order at GPU scope: what a barrier across blocks is made of.
__device__ inline unsigned add_release(unsigned* p, unsigned v) {
    unsigned old;
    asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}

__device__ inline unsigned load_acquire(const unsigned* p) {
    unsigned v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// --- streaming loads of other widths, and with a word about L2 ---

__device__ inline uint2 load_streaming(const uint2* p) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}

__device__ inline unsigned load_streaming(const unsigned* p) {
    unsigned v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

// What a load may tell L2: that its line goes first when room is needed. Made once a thread, given to each load.
// Below sm_80 it says nothing.
__device__ inline unsigned long long evict_first_policy() {
    unsigned long long policy = 0;
#if __CUDA_ARCH__ >= 800
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

__device__ inline uint4 load_streaming(const uint4* p, unsigned long long policy) {
#if __CUDA_ARCH__ >= 800
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p), "l"(policy));
    return v;
#else
    return load_streaming(p);
#endif
}

// Bring the line at p into L2, and go on at once.
__device__ inline void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// --- asynchronous copies from global to shared memory (cp.async, sm_80 and up) ---
//
// A copy is started, and done no sooner than copy_async_wait says so: until then neither its shared bytes may be read
// nor its global ones be written. Copies started since the last copy_async_commit form a group of this thread;
// copy_async_wait<N> returns when all but its latest N groups are done. What other threads copied is theirs to wait
// for: a barrier between their wait and this thread's read. Both addresses are multiples of the size. Below sm_80 a
// copy is an ordinary load and store, and waiting is free.

// 16 bytes through L2 alone (cp.async.cg): data of which L1 need not keep a copy.
__device__ inline void copy_async_16(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
                 "l"(global)
                 : "memory");
#else
    *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
#endif
}

// 16 bytes, or 16 zeros where `take` is false: then nothing is read, so `global` may lie outside its array.
__device__ inline void copy_async_16_or_zero(void* shared, const void* global, bool take) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
                 "l"(global), "r"(take ? 16 : 0)
                 : "memory");
#else
    *static_cast<uint4*>(shared) = take ? *static_cast<const uint4*>(global) : make_uint4(0, 0, 0, 0);
#endif
}

// 8 and 4 bytes, which go through L1 (cp.async.ca).
__device__ inline void copy_async_8(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
                 "l"(global)
                 : "memory");
#else
    *static_cast<uint2*>(shared) = *static_cast<const uint2*>(global);
#endif
}

__device__ inline void copy_async_4(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
                 "l"(global)
                 : "memory");
#else
    *static_cast<unsigned*>(shared) = *static_cast<const unsigned*>(global);
#endif
}

__device__ inline void copy_async_8_or_zero(void* shared, const void* global, bool take) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
                 "l"(global), "r"(take ? 8 : 0)
                 : "memory");
#else
    *static_cast<uint2*>(shared) = take ? *static_cast<const uint2*>(global) : make_uint2(0, 0);
#endif
}

__device__ inline void copy_async_4_or_zero(void* shared, const void* global, bool take) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
                 "l"(global), "r"(take ? 4 : 0)
                 : "memory");
#else
    *static_cast<unsigned*>(shared) = take ? *static_cast<const unsigned*>(global) : 0;
#endif
}

__device__ inline void copy_async_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int PENDING>
__device__ inline void copy_async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// --- matrices of 8 x 8 16-bit elements from shared memory (ldmatrix) ---
//
// Lane l gives the address of a row of 16 bytes, a multiple of 16: lanes 0-7 the rows of the first matrix, 8-15 of the
// second, 16-23 of the third, 24-31 of the fourth (of lanes beyond the last matrix the address is not used). Lane l
// gets in r[m] two neighbours of matrix m: row l / 4, columns 2 (l % 4) and the next, the first in the low half.
// `_transposed` hands out columns instead: column l / 4, rows 2 (l % 4) and the next. All 32 lanes must call it.

__device__ inline void load_matrix_x1(unsigned* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ inline void load_matrix_x2(unsigned* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ inline void load_matrix_x4(unsigned* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ inline void load_matrix_x1_transposed(unsigned* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ inline void load_matrix_x2_transposed(unsigned* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ inline void load_matrix_x4_transposed(unsigned* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

// --- products of small matrices by a warp (mma.sync): d [m][n] += a [m][k] b [k][n] ---
//
// All 32 lanes must call it, each with its part of the three matrices. With g = lane / 4 and t = lane % 4:
//
// m16n8k16, 16-bit elements, two to a register (the lower column or row in the low half):
//   a[0] row g,     columns 2t, 2t + 1          a[2] row g,     columns 2t + 8, 2t + 9
//   a[1] row g + 8, columns 2t, 2t + 1          a[3] row g + 8, columns 2t + 8, 2t + 9
//   b[0] column g,  rows 2t, 2t + 1             b[1] column g,  rows 2t + 8, 2t + 9
//   d[0], d[1] row g, columns 2t, 2t + 1        d[2], d[3] row g + 8, columns 2t, 2t + 1
// so load_matrix_x4 of a 16 x 16 tile [m][k], lane l giving row l % 16 and column 8 (l / 16), fills a;
// load_matrix_x2 of [n][k] storage, row l % 8 and column 8 (l / 8 % 2), fills b; of [k][n] storage,
// load_matrix_x2_transposed of row l % 16 does.
// m16n8k8 is its first half: a[0], a[1], b[0].
//
// m16n8k32, bytes, four to a register (the lowest column or row in the lowest byte):
//   a[0] row g,     columns 4t ... 4t + 3       a[2] row g,     columns 4t + 16 ... 4t + 19
//   a[1] row g + 8, columns 4t ... 4t + 3       a[3] row g + 8, columns 4t + 16 ... 4t + 19
//   b[0] column g,  rows 4t ... 4t + 3          b[1] column g,  rows 4t + 16 ... 4t + 19
//   d as above, 32-bit integers that wrap
// so with bytes taken in pairs the ldmatrix of 16-bit elements fills a and b here too.
// m8n8k16: a[0] row g, columns 4t ...; b[0] column g, rows 4t ...; d[0], d[1] row g, columns 2t, 2t + 1.
//
// Below sm_80 the larger shapes are made of the smaller ones; bfloat16 does not exist there.

__device__ inline void mma_m16n8k8_f16(float* d, const unsigned* a, const unsigned* b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

__device__ inline void mma_m16n8k16_f16(float* d, const unsigned* a, const unsigned* b) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    mma_m16n8k8_f16(d, a, b);
    mma_m16n8k8_f16(d, a + 2, b + 1);
#endif
}

// Sums in half too, two to a register: d[0] row g, d[1] row g + 8, columns 2t, 2t + 1.
__device__ inline void mma_m16n8k8_f16_sum_f16(unsigned* d, const unsigned* a, const unsigned* b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3}, {%4}, {%0,%1};"
                 : "+r"(d[0]), "+r"(d[1])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

__device__ inline void mma_m16n8k16_f16_sum_f16(unsigned* d, const unsigned* a, const unsigned* b) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
                 : "+r"(d[0]), "+r"(d[1])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    mma_m16n8k8_f16_sum_f16(d, a, b);
    mma_m16n8k8_f16_sum_f16(d, a + 2, b + 1);
#endif
}

#if __CUDA_ARCH__ >= 800
__device__ inline void mma_m16n8k16_bf16(float* d, const unsigned* a, const unsigned* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

__device__ inline void mma_m8n8k16_s8(int* d, const unsigned* a, const unsigned* b) {
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+r"(d[0]), "+r"(d[1])
                 : "r"(a[0]), "r"(b[0]));
}

__device__ inline void mma_m16n8k32_s8(int* d, const unsigned* a, const unsigned* b) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    mma_m8n8k16_s8(d, a, b);
    mma_m8n8k16_s8(d, a + 2, b + 1);
    mma_m8n8k16_s8(d + 2, a + 1, b);
    mma_m8n8k16_s8(d + 2, a + 3, b + 1);
#endif
}

// --- single instructions that C++ has no word for ---

// Any bitwise function of three words in one instruction: bit (4 a + 2 b + c) of TABLE is the result for bits a, b, c.
// So (a & b) | c is 0xea, (a & b) ^ c is 0x6a.
template <int TABLE>
__device__ inline unsigned bitwise(unsigned a, unsigned b, unsigned c) {
    unsigned v;
    asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(v) : "r"(a), "r"(b), "r"(c), "n"(TABLE));
    return v;
}

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
