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

// An L2 policy that evicts a load's line first. Create it once a thread and pass it to each load. Below sm_80 it has no
// effect.
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

// The same with a policy for L2, and the whole line of 128 bytes comes there: its other pieces will be asked for soon.
__device__ inline void copy_async_16_of_line(void* shared, const void* global, unsigned long long policy) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(shared)),
                 "l"(global), "l"(policy)
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

// The same pointer, in a register: the compiler can't work it out anew at every use, as it does with addresses of shared
// memory (on Hopper by way of a slow special register).
template <typename T>
__device__ inline T* kept(T* p) {
    asm("mov.b64 %0, %0;" : "+l"(p));
    return p;
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

// --- thread block clusters (sm_90 and up) ---
//
// Blocks of a cluster run at the same time and can read each other's shared memory, at the address that the same
// variable has in every block of the kernel.
#if __CUDA_ARCH__ >= 900
__device__ inline unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// All threads of all the cluster's blocks wait here; what each wrote into shared memory before, all see after.
__device__ inline void cluster_wait() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The four floats at `shared` in the shared memory of the cluster's block `rank`.
__device__ inline float4 cluster_load(const float4* shared, unsigned rank) {
    float4 v;
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(there)
        : "r"((unsigned)__cvta_generic_to_shared(shared)), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(there));
    return v;
}
#endif

// --- warpgroup matrix products (wgmma, sm_90a alone) ---
//
// Four neighbouring warps multiply 64 rows at once: warp w holds rows 16 w to 16 w + 15 of the first operand in the
// registers of mma_m16n8k16_f16 and gets their sums, d[4 p + e] being element e of columns 8 p to 8 p + 7. The second
// operand lies in shared memory, which a descriptor names. Products run on their own: between warpgroup_arrive and a
// warpgroup_wait that covers them no thread may touch their registers.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ inline void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ inline void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// What ordinary stores and asynchronous copies of this thread put into shared memory, wgmma may read after this.
__device__ inline void warpgroup_shared_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Descriptor of columns of 64 halves (128 bytes) each, column after column from a multiple of 1024 bytes on, with
// 16-byte piece c of column n at place c ^ n % 8 (128-byte swizzle). A product takes 16 of the 64: add 2 for the next.
__device__ inline unsigned long long wgmma_columns(const void* shared) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(shared);
    return 1ull << 62 | 64ull << 32 | 1ull << 16 | (address & 0x3ffffu) >> 4;
}

template <int TOKENS_AT_ONCE>
__device__ inline void wgmma_m64k16_f16(float* d, const unsigned* a, unsigned long long b) {
    static_assert(TOKENS_AT_ONCE == 16 || TOKENS_AT_ONCE == 32 || TOKENS_AT_ONCE == 48 || TOKENS_AT_ONCE == 64);
    if constexpr (TOKENS_AT_ONCE == 16) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, "
            "1, 1, 1, 0;"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    } else if constexpr (TOKENS_AT_ONCE == 32) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,"
            "%15}, {%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
              "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    } else if constexpr (TOKENS_AT_ONCE == 48) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,"
            "%15,%16,%17,%18,%19,%20,%21,%22,%23}, {%24,%25,%26,%27}, %28, 1, 1, 1, 0;"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
              "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
              "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    } else {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,"
            "%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
              "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
              "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
              "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    }
}

// The same for few tokens; the sums begin anew unless `add`.
template <int COLUMNS>
__device__ inline void wgmma_few_f16(float* d, const unsigned* a, unsigned long long b, bool add) {
    static_assert(COLUMNS == 8 || COLUMNS == 16);
    if constexpr (COLUMNS == 8) {
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %9, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, "
            "{%4,%5,%6,%7}, %8, p, 1, 1, 0; }"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
    } else {
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %13, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0,%1,%2,%3,"
            "%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, p, 1, 1, 0; }"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
    }
}
#endif

// --- barriers that count arrivals (mbarrier, sm_80 and up) ---
//
// A barrier's phase ends when so many have arrived; phases are told apart by their parity, the first one's being 0.
// arrivals_wait waits for the end of the current phase, or returns at once if the phase before was that parity's.
// sync_some is a __syncthreads for `threads` threads of a block, whole warps (named barrier `id`, 1 to 15); its barrier
// was begun with as many arrivals, which only the CPU counts.
#if __CUDA_ARCH__ >= 800
__device__ inline void arrivals_init(unsigned long long* barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(arrivals)
                 : "memory");
}

__device__ inline void arrivals_add(unsigned long long* barrier) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(
                     (unsigned)__cvta_generic_to_shared(barrier))
                 : "memory");
}

// An arrival that comes by itself, once all copies that this thread has started (cp.async) are done.
__device__ inline void arrivals_add_when_copied(unsigned long long* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"((unsigned)__cvta_generic_to_shared(barrier))
                 : "memory");
}

__device__ inline void sync_some(unsigned long long*, int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Would arrivals_wait return at once?
__device__ inline bool arrivals_over(unsigned long long* barrier, unsigned parity) {
    unsigned over;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(over)
                 : "r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(parity)
                 : "memory");
    return over;
}

__device__ inline void arrivals_wait(unsigned long long* barrier, unsigned parity) {
    unsigned done = 0;
    while (!done)
#if __CUDA_ARCH__ >= 900
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#else
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#endif
                     : "=r"(done)
                     : "r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(parity)
                     : "memory");
}
#endif

// --- products of bytes by a warpgroup: 64 rows by 64 columns, 32 of k (sm_90a alone) ---
//
// Both operands come from shared memory: rows or columns of 128 bytes, laid out as wgmma_columns says, of which it takes 32
// (add 2 for the next). Products add to their sums or, unless `add`, overwrite them: the registers then
// need no zeros before.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SUMS_4(c, d, i) c((d)[i]), c((d)[i + 1]), c((d)[i + 2]), c((d)[i + 3])
#define SUMS_16(c, d, i) SUMS_4(c, d, i), SUMS_4(c, d, i + 4), SUMS_4(c, d, i + 8), SUMS_4(c, d, i + 12)

__device__ inline void wgmma_m64n64k32_s8(int* d, unsigned long long a, unsigned long long b, bool add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %34, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {%0,%1,%2,"
        "%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,"
        "%29,%30,%31}, %32, %33, p; }"
        : SUMS_16("+r", d, 0), SUMS_16("+r", d, 16)
        : "l"(a), "l"(b), "r"((int)add));
}

#undef SUMS_4
#undef PRODUCT
#undef FROM_SHARED
#undef FROM_REGISTERS
#undef ALL_WIDTHS
#endif

// --- barriers that count arrivals (mbarrier), and registers handed from warpgroup to warpgroup (sm_90a) ---
//
// An mbarrier's phase ends when `arrivals` have come; phases are told apart by their parity, the first one's being 0.
// Waiting for a parity waits for the end of the current phase of it.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ inline void mbarrier_init(unsigned long long* barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(arrivals)
                 : "memory");
}

__device__ inline void mbarrier_arrive(unsigned long long* barrier) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(
                     (unsigned)__cvta_generic_to_shared(barrier))
                 : "memory");
}

// An arrival that comes by itself, once all copies that this thread has started (cp.async) are done.
__device__ inline void mbarrier_arrive_when_copied(unsigned long long* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"((unsigned)__cvta_generic_to_shared(barrier))
                 : "memory");
}

__device__ inline void mbarrier_wait(unsigned long long* barrier, unsigned parity) {
    unsigned done = 0;
    while (!done)
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(parity)
            : "memory");
}

// From here on a thread of this warpgroup may have REGISTERS (a multiple of 8): more than the launch gave it, or fewer.
template <int REGISTERS>
__device__ inline void setmaxnreg_more() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ inline void setmaxnreg_fewer() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
#endif

// --- products of a warpgroup by widths, in either 16-bit format (sm_90a) ---
//
// wgmma_shared: 64 rows and COLUMNS columns from shared memory, both laid out as wgmma_columns says. wgmma_rows: rows from
// registers, second operand stored [k][n] as values are: blocks of 64 columns, row after row of 128 bytes, each row's
// 16-byte pieces swizzled alike; the descriptor wgmma_rows names it, `apart` bytes being from a block to the next, and 16
// rows on add 128. wgmma_registers: rows from registers, columns as wgmma_columns says.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SUMS_4(d, i) "+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3])
#define SUMS_OF_64(d) SUMS_4(d, 0), SUMS_4(d, 4), SUMS_4(d, 8), SUMS_4(d, 12), SUMS_4(d, 16), SUMS_4(d, 20), SUMS_4(d, 24), SUMS_4(d, 28)
#define NAMES_OF_64 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
    "%25,%26,%27,%28,%29,%30,%31"
#define SUMS_OF_72(d) SUMS_OF_64(d), SUMS_4(d, 32)
#define NAMES_OF_72 NAMES_OF_64 ",%32,%33,%34,%35"
#define SUMS_OF_80(d) SUMS_OF_72(d), SUMS_4(d, 36)
#define NAMES_OF_80 NAMES_OF_72 ",%36,%37,%38,%39"
#define SUMS_OF_88(d) SUMS_OF_80(d), SUMS_4(d, 40)
#define NAMES_OF_88 NAMES_OF_80 ",%40,%41,%42,%43"
#define SUMS_OF_96(d) SUMS_OF_88(d), SUMS_4(d, 44)
#define NAMES_OF_96 NAMES_OF_88 ",%44,%45,%46,%47"
#define SUMS_OF_104(d) SUMS_OF_96(d), SUMS_4(d, 48)
#define NAMES_OF_104 NAMES_OF_96 ",%48,%49,%50,%51"
#define SUMS_OF_112(d) SUMS_OF_104(d), SUMS_4(d, 52)
#define NAMES_OF_112 NAMES_OF_104 ",%52,%53,%54,%55"
#define SUMS_OF_120(d) SUMS_OF_112(d), SUMS_4(d, 56)
#define NAMES_OF_120 NAMES_OF_112 ",%56,%57,%58,%59"
#define SUMS_OF_128(d) SUMS_OF_120(d), SUMS_4(d, 60)
#define NAMES_OF_128 NAMES_OF_120 ",%60,%61,%62,%63"
#define SUMS_OF_136(d) SUMS_OF_128(d), SUMS_4(d, 64)
#define NAMES_OF_136 NAMES_OF_128 ",%64,%65,%66,%67"
#define SUMS_OF_144(d) SUMS_OF_136(d), SUMS_4(d, 68)
#define NAMES_OF_144 NAMES_OF_136 ",%68,%69,%70,%71"
#define SUMS_OF_152(d) SUMS_OF_144(d), SUMS_4(d, 72)
#define NAMES_OF_152 NAMES_OF_144 ",%72,%73,%74,%75"
#define SUMS_OF_160(d) SUMS_OF_152(d), SUMS_4(d, 76)
#define NAMES_OF_160 NAMES_OF_152 ",%76,%77,%78,%79"
#define SUMS_OF_168(d) SUMS_OF_160(d), SUMS_4(d, 80)
#define NAMES_OF_168 NAMES_OF_160 ",%80,%81,%82,%83"
#define SUMS_OF_176(d) SUMS_OF_168(d), SUMS_4(d, 84)
#define NAMES_OF_176 NAMES_OF_168 ",%84,%85,%86,%87"
#define SUMS_OF_184(d) SUMS_OF_176(d), SUMS_4(d, 88)
#define NAMES_OF_184 NAMES_OF_176 ",%88,%89,%90,%91"
#define SUMS_OF_192(d) SUMS_OF_184(d), SUMS_4(d, 92)
#define NAMES_OF_192 NAMES_OF_184 ",%92,%93,%94,%95"
#define SUMS_OF_200(d) SUMS_OF_192(d), SUMS_4(d, 96)
#define NAMES_OF_200 NAMES_OF_192 ",%96,%97,%98,%99"
#define SUMS_OF_208(d) SUMS_OF_200(d), SUMS_4(d, 100)
#define NAMES_OF_208 NAMES_OF_200 ",%100,%101,%102,%103"
#define SUMS_OF_216(d) SUMS_OF_208(d), SUMS_4(d, 104)
#define NAMES_OF_216 NAMES_OF_208 ",%104,%105,%106,%107"
#define SUMS_OF_224(d) SUMS_OF_216(d), SUMS_4(d, 108)
#define NAMES_OF_224 NAMES_OF_216 ",%108,%109,%110,%111"
#define SUMS_OF_232(d) SUMS_OF_224(d), SUMS_4(d, 112)
#define NAMES_OF_232 NAMES_OF_224 ",%112,%113,%114,%115"
#define SUMS_OF_240(d) SUMS_OF_232(d), SUMS_4(d, 116)
#define NAMES_OF_240 NAMES_OF_232 ",%116,%117,%118,%119"
#define SUMS_OF_248(d) SUMS_OF_240(d), SUMS_4(d, 120)
#define NAMES_OF_248 NAMES_OF_240 ",%120,%121,%122,%123"
#define SUMS_OF_256(d) SUMS_OF_248(d), SUMS_4(d, 124)
#define NAMES_OF_256 NAMES_OF_248 ",%124,%125,%126,%127"

// One product: COLUMN_ and ADD are the numbers of the operands that name the columns and say whether to add.
#define PRODUCT(WIDTH_, FORMAT, ROWS_, COLUMNS_, ADD, TURNED)                                              \
    "{ .reg .pred p; setp.ne.b32 p, %" #ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #WIDTH_ "k16.f32." FORMAT \
    "." FORMAT " {" NAMES_OF_##WIDTH_ "}, " ROWS_ ", %" #COLUMNS_ ", p, 1, 1" TURNED "; }"
#define FROM_SHARED(FORMAT, TURNED, WIDTH_, A, B, ADD, ...)                                    \
    if constexpr (COLUMNS == WIDTH_)                                                           \
    asm volatile(PRODUCT(WIDTH_, FORMAT, "%" #A, B, ADD, ", 0" TURNED) : SUMS_OF_##WIDTH_(d) \
                 : "l"(a), "l"(b), "r"((int)add))
#define FROM_REGISTERS(FORMAT, TURNED, WIDTH_, A, B, C, D, COLUMN, ADD)                                                      \
    if constexpr (COLUMNS == WIDTH_)                                                                                         \
    asm volatile(PRODUCT(WIDTH_, FORMAT, "{%" #A ",%" #B ",%" #C ",%" #D "}", COLUMN, ADD, TURNED) : SUMS_OF_##WIDTH_(d) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add))

// `USE` for every width, with the numbers of the operands behind its sums.
#define ALL_WIDTHS(USE, FORMAT, TURNED) \
    USE(FORMAT, TURNED, 64, 32, 33, 34, 35, 36, 37); \
    USE(FORMAT, TURNED, 72, 36, 37, 38, 39, 40, 41); \
    USE(FORMAT, TURNED, 80, 40, 41, 42, 43, 44, 45); \
    USE(FORMAT, TURNED, 88, 44, 45, 46, 47, 48, 49); \
    USE(FORMAT, TURNED, 96, 48, 49, 50, 51, 52, 53); \
    USE(FORMAT, TURNED, 104, 52, 53, 54, 55, 56, 57); \
    USE(FORMAT, TURNED, 112, 56, 57, 58, 59, 60, 61); \
    USE(FORMAT, TURNED, 120, 60, 61, 62, 63, 64, 65); \
    USE(FORMAT, TURNED, 128, 64, 65, 66, 67, 68, 69); \
    USE(FORMAT, TURNED, 136, 68, 69, 70, 71, 72, 73); \
    USE(FORMAT, TURNED, 144, 72, 73, 74, 75, 76, 77); \
    USE(FORMAT, TURNED, 152, 76, 77, 78, 79, 80, 81); \
    USE(FORMAT, TURNED, 160, 80, 81, 82, 83, 84, 85); \
    USE(FORMAT, TURNED, 168, 84, 85, 86, 87, 88, 89); \
    USE(FORMAT, TURNED, 176, 88, 89, 90, 91, 92, 93); \
    USE(FORMAT, TURNED, 184, 92, 93, 94, 95, 96, 97); \
    USE(FORMAT, TURNED, 192, 96, 97, 98, 99, 100, 101); \
    USE(FORMAT, TURNED, 200, 100, 101, 102, 103, 104, 105); \
    USE(FORMAT, TURNED, 208, 104, 105, 106, 107, 108, 109); \
    USE(FORMAT, TURNED, 216, 108, 109, 110, 111, 112, 113); \
    USE(FORMAT, TURNED, 224, 112, 113, 114, 115, 116, 117); \
    USE(FORMAT, TURNED, 232, 116, 117, 118, 119, 120, 121); \
    USE(FORMAT, TURNED, 240, 120, 121, 122, 123, 124, 125); \
    USE(FORMAT, TURNED, 248, 124, 125, 126, 127, 128, 129); \
    USE(FORMAT, TURNED, 256, 128, 129, 130, 131, 132, 133); \
    static_assert(COLUMNS % 8 == 0 && 64 <= COLUMNS && COLUMNS <= 256)

__device__ inline unsigned long long wgmma_rows(const void* shared, unsigned apart) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(shared);
    return 1ull << 62 | 64ull << 32 | (unsigned long long)(apart >> 4) << 16 | (address & 0x3ffffu) >> 4;
}

template <int COLUMNS>
__device__ inline void wgmma_shared_f16(float* d, unsigned long long a, unsigned long long b, bool add) {
    ALL_WIDTHS(FROM_SHARED, "f16", ", 0");
}

template <int COLUMNS>
__device__ inline void wgmma_shared_bf16(float* d, unsigned long long a, unsigned long long b, bool add) {
    ALL_WIDTHS(FROM_SHARED, "bf16", ", 0");
}

template <int COLUMNS>
__device__ inline void wgmma_shared_rows_f16(float* d, unsigned long long a, unsigned long long b, bool add = true) {
    ALL_WIDTHS(FROM_SHARED, "f16", ", 1");
}

template <int COLUMNS>
__device__ inline void wgmma_shared_rows_bf16(float* d, unsigned long long a, unsigned long long b, bool add = true) {
    ALL_WIDTHS(FROM_SHARED, "bf16", ", 1");
}

template <int COLUMNS>
__device__ inline void wgmma_registers_f16(float* d, const unsigned* a, unsigned long long b, bool add) {
    ALL_WIDTHS(FROM_REGISTERS, "f16", ", 0");
}

template <int COLUMNS>
__device__ inline void wgmma_registers_bf16(float* d, const unsigned* a, unsigned long long b, bool add) {
    ALL_WIDTHS(FROM_REGISTERS, "bf16", ", 0");
}

template <int COLUMNS>
__device__ inline void wgmma_rows_f16(float* d, const unsigned* a, unsigned long long b, bool add = true) {
    ALL_WIDTHS(FROM_REGISTERS, "f16", ", 1");
}

template <int COLUMNS>
__device__ inline void wgmma_rows_bf16(float* d, const unsigned* a, unsigned long long b, bool add = true) {
    ALL_WIDTHS(FROM_REGISTERS, "bf16", ", 1");
}

#undef SUMS_4
#undef SUMS_8
#undef SUMS_32
#undef PRODUCT
#undef FROM_SHARED
#undef FROM_REGISTERS
#undef SHARED_PRODUCTS
#undef SHARED_ROWS_PRODUCTS
#undef REGISTER_PRODUCTS
#undef ROWS_PRODUCTS
#endif

// --- tiles copied by the tensor memory accelerator (sm_90a) ---
//
// A map describes a matrix in global memory and the box of it that one copy brings, as the host's encoder made it; it
// is a kernel argument, `const __grid_constant__ TensorMap`. One thread starts a copy and says how many bytes the
// mbarrier has to wait for besides its arrivals; what lies outside the matrix arrives as zeros.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
struct __align__(64) TensorMap {
    unsigned char bytes[128];
};

__device__ inline void mbarrier_expect(unsigned long long* barrier, unsigned bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(barrier)),
                 "r"(bytes)
                 : "memory");
}

// `bytes` that lie one after another, a multiple of 16 as both addresses are.
__device__ inline void tma_copy_bytes(void* shared, const void* global, unsigned bytes, unsigned long long* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            (unsigned)__cvta_generic_to_shared(shared)),
        "l"(global), "r"(bytes), "r"((unsigned)__cvta_generic_to_shared(barrier))
        : "memory");
}

__device__ inline void tma_copy_box(void* shared, const TensorMap* map, int column, int row, unsigned long long* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            (unsigned)__cvta_generic_to_shared(shared)),
        "l"(map), "r"(column), "r"(row), "r"((unsigned)__cvta_generic_to_shared(barrier))
        : "memory");
}

// The same into the shared memory of every block of the cluster whose bit `blocks` has, at the same place and with each
// one's own barrier.
__device__ inline void tma_copy_box_to(unsigned short blocks, void* shared, const TensorMap* map, int column, int row,
                                       unsigned long long* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
        "l"(map), "r"(column), "r"(row), "r"((unsigned)__cvta_generic_to_shared(barrier)), "h"(blocks)
        : "memory");
}

// The same barrier in block `rank` of the cluster: one more has arrived.
__device__ inline void mbarrier_arrive_at(unsigned long long* barrier, unsigned rank) {
    asm volatile(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
        "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(
            (unsigned)__cvta_generic_to_shared(barrier)),
        "r"(rank)
        : "memory");
}

// --- turns of warpgroups (named barriers; sm_90a's rungs) ---
//
// Barrier `id` (1 to 15) opens when `threads` have come to it, those that wait and those that only pass by.
__device__ inline void warpgroup_wait_turn(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ inline void warpgroup_pass_turn(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
#endif
