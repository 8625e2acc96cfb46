// mmq 7, fp16 wgmma: weights become halves on their way into the tensor cores, which then sum over all of k themselves.
//
// Purpose  scaling every block's product costs more than the product; here a weight is scaled once, before it is
//          multiplied, and only int8 is read. The activations need no quantising, the weights are rounded to FP16.
// Shapes   quants [n][k] int8 and scales [n][k / 32] half, x [batch][k] half, y [batch][n] half; all 16-byte aligned, k a
//          multiple of 128. sm_90a.
// Bytes    34/32 n k and 2 batch k read + 2 batch n written.
// Launch   three warpgroups a block: one copies, two multiply 64 ROW_TILES rows by all of the tile's TOKENS;
//          (ceil(batch / TOKENS), ceil(n / (128 ROW_TILES))) blocks. Dynamic shared memory: STAGES tiles of 68 bytes a row
//          and 128 a token, each rounded up to 1024.
// Macros   ROW_TILES = 1: tiles of 64 rows a warpgroup;
//          TOKENS = 256: tokens a tile;
//          STAGES = 5: tiles in the ring of shared memory.
// Branch   from rung 6: FP16 products with the weights in registers: the next 64 of k are made halves while the tensor
//          cores multiply the ones before. Tiles come by the tensor memory accelerator, which one thread starts: copies
//          by cp.async took more of the warps' time than they had.
#include "common/ptx/cp_async.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/warpgroup.cuh"
#include "common/ptx/wgmma/wide.cuh"
#include "common/q8.cuh"

constexpr int ROWS = 128 * ROW_TILES, SUMS = TOKENS / 2;
constexpr int SLOT = (TOKENS * 128 + ROWS * 68 + 1023) / 1024 * 1024;

// Two int8 as two halves, exact: the bytes' bits with the sign turned over are 1024 + 128 + q in FP16.
__device__ inline __half2 halves_of(unsigned pair) {
    const unsigned bits = __byte_perm(pair ^ 0x8080u, 0x64646464u, 0x4140);
    return __hsub2(*reinterpret_cast<const __half2*>(&bits), __float2half2_rn(1152.0f));
}

extern "C" __global__ void __launch_bounds__(384, 1)
    mmq_fp16_wgmma(const __grid_constant__ TensorMap quants, const __half* __restrict__ scales,
             const __grid_constant__ TensorMap x, __half* __restrict__ y, int n, int k, int batch) {
    extern __shared__ __align__(1024) unsigned char ring[];
    __shared__ unsigned long long full[STAGES], empty[STAGES];
    const int thread = threadIdx.x % 128, lane = thread % 32, group = threadIdx.x / 128, warp = thread / 32, chunks = k / 64;
    const int row0 = blockIdx.y * ROWS, token0 = blockIdx.x * TOKENS;
    if (threadIdx.x < STAGES) {
        mbarrier_init(full + threadIdx.x, 129);
        mbarrier_init(empty + threadIdx.x, 256);
    }
    __syncthreads();

    if (group == 2) {  // copies; rows and tokens beyond the last come as zeros, and are not stored
        setmaxnreg_fewer<40>();
        for (int c = 0; c < chunks; ++c) {
            unsigned char* tokens = ring + c % STAGES * SLOT;
            unsigned char* rows = tokens + TOKENS * 128;
            unsigned long long* barrier = full + c % STAGES;
            if (c >= STAGES) mbarrier_wait(empty + c % STAGES, (c / STAGES + 1) % 2);
            if (thread == 0) {
                mbarrier_expect(barrier, TOKENS * 128 + ROWS * 64);
                tma_copy_box(tokens, &x, c * 64, token0, barrier);
#pragma unroll
                for (int i = 0; i < ROW_TILES; ++i)
                    tma_copy_box(rows + i * 8192, &quants, c * 64, row0 + 128 * i, barrier);
                mbarrier_arrive(barrier);
            }
#pragma unroll
            for (int i = 0; i < ROW_TILES; ++i) {
                const int r = min(row0 + thread + 128 * i, n - 1);
                copy_async_4(rows + ROWS * 64 + (thread + 128 * i) * 4, scales + (size_t)r * (k / 32) + c * 2);
            }
            mbarrier_arrive_when_copied(barrier);
        }
        return;
    }
    setmaxnreg_more<232>();

    // The weights of tile c for the tensor cores: [64 rows][16 of k][registers].
    const auto load = [&](unsigned (&a)[ROW_TILES][4][4], int c) {
        const unsigned char* rows = ring + c % STAGES * SLOT + TOKENS * 128;
        const __half2* scale = reinterpret_cast<const __half2*>(rows + ROWS * 64);
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int r = (group * ROW_TILES + m) * 64 + warp * 16 + lane / 4 + 8 * i;
                const __half2 both = scale[r], s[2] = {__low2half2(both), __high2half2(both)};
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    // 16-byte pieces of rows are swizzled by the pair of rows (64-byte swizzle): eight rows, all banks.
                    const unsigned char* from = rows + r * 64 + (j / 2 ^ r / 2 % 4) * 16 + j % 2 * 8 + lane % 4 * 2;
                    const __half2 w = __hmul2(halves_of(*reinterpret_cast<const unsigned short*>(from)), s[j / 4]);
                    a[m][j / 2][i + j % 2 * 2] = *reinterpret_cast<const unsigned*>(&w);
                }
            }
    };
    float sum[ROW_TILES][SUMS];  // begun by the first product
    const auto step = [&](unsigned (&a)[ROW_TILES][4][4], int c) {
        mbarrier_wait(full + c % STAGES, c / STAGES % 2);
        load(a, c);
        const unsigned long long columns = wgmma_columns(ring + c % STAGES * SLOT);
        warpgroup_arrive();
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m) wgmma_registers_f16<TOKENS>(sum[m], a[m][j], columns + 2 * j, c + j > 0);
        warpgroup_commit();
        warpgroup_wait<1>();  // the product by tile c - 1 is done
        if (c > 0) mbarrier_arrive(empty + (c - 1) % STAGES);  // every thread for what it has read
    };
    unsigned even[ROW_TILES][4][4], odd[ROW_TILES][4][4];
    for (int c = 0; c < chunks; c += 2) {
        step(even, c);
        step(odd, c + 1);
    }
    warpgroup_wait<0>();
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            const int row = row0 + (group * ROW_TILES + m) * 64 + warp * 16 + lane / 4 + i / 2 % 2 * 8;
            const int token = token0 + i / 4 * 8 + lane % 4 * 2 + i % 2;
            if (row < n && token < batch) y[(size_t)token * n + row] = __float2half(sum[m][i]);
        }
}
