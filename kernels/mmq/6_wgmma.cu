// mmq 6, wgmma: Hopper's own int8 products, four warps at once, both operands read from shared memory.
//
// Purpose  rung 5's warps load fragments, copy tiles and turn scales into floats between the scaling; here they scale.
// Shapes   quants [n][k] int8 and scales [n][k / 32] half, xq [batch][k] int8 and xs [batch][k / 32] half,
//          y [batch][n] half; all 16-byte aligned, k a multiple of 128. sm_90a.
// Bytes    34/32 n k and 34/32 batch k read + 2 batch n written.
// Launch   five warpgroups a block: one copies, four multiply and scale 64 tokens by 64 rows each; (ceil(batch / 128),
//          ceil(n / 128)) blocks. With NARROW the last batch % 128 tokens, which are 1 to 64, go to blocks of 64 rows, whose
//          four warpgroups divide k: first (batch / 128) ceil(n / 128) blocks of the other kind, in one row, then,
//          a quarter as long, ceil(n / 64) of these, to fill what the last wave leaves. Every wide block pays for the longer
//          code, so it is a choice. Quants and xq come as maps of boxes of 128 rows, with NARROW of 64. Dynamic shared
//          memory: STAGES wide tiles of 37376 bytes, which are 2 STAGES narrow ones.
// Macros   STAGES = 5: tiles in the ring of shared memory;
//          NARROW = 0: 1 to give the last batch % 128 tokens to blocks of 64 rows.
// Branch   from rung 5: wgmma, and while one warpgroup waits for its product, three scale theirs; tiles come by the
//          tensor memory accelerator, which one thread starts; the warpgroup around it lays the scales of a block side
//          by side as floats.
#include "common/ptx/kept.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/warpgroup.cuh"
#include "common/ptx/wgmma/bytes.cuh"
#include "common/q8.cuh"

constexpr int APART = 20;  // floats from the scales of a lane's 16 rows to the next lane's: all banks
constexpr int BOX_ROWS = NARROW ? 64 : 128;  // rows or tokens that one copy brings, 128 of k

// Tiles of SIDE tokens and as many rows in the ring: quants of tokens, then of rows; behind all tiles' quants their scales,
// rows' [block of k][64 rows][lane], then tokens' [block of k]. So half the side is half the bytes.
template <int SIDE_>
struct Tiles {
    static constexpr int SIDE = SIDE_, PLACES = STAGES * 128 / SIDE, QUANTS = SIDE * 2 * 128;
    static constexpr int ROWS = SIDE / 64 * 4 * APART, SCALES = 4 * (ROWS + SIDE);  // floats: of a block's rows, of a tile
    static constexpr int AHEAD = SIDE == 128 ? 1 : 4;  // loads of scales under way: a narrow tile takes a quarter of the time
};

extern "C" __global__ void __launch_bounds__(640, 1)
    mmq_wgmma(const __grid_constant__ TensorMap quants, const uint2* __restrict__ scales,
              const __grid_constant__ TensorMap xq, const uint2* __restrict__ xs, __half* __restrict__ y, int n, int k,
              int batch) {
    static_assert(STAGES > 1);  // the sums of a narrow block's warpgroups take 64 KiB of the ring
    extern __shared__ __align__(1024) unsigned char ring[];
    __shared__ unsigned long long full[2 * STAGES], empty[2 * STAGES];
    float* const ring_scales = reinterpret_cast<float*>(ring + STAGES * Tiles<128>::QUANTS);
    const int thread = threadIdx.x % 128, lane = thread % 32, group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    const int chunks = k / 128;
#if NARROW
    const int block = blockIdx.x, across = batch / 128, wide_blocks = across * ((n + 127) / 128);
    const bool wide = block < wide_blocks;
    const int row0 = wide ? block / across * 128 : (block - wide_blocks) * 64;
    const int token0 = (wide ? block % across : across) * 128;
    constexpr int halves = 2;
#else
    constexpr bool wide = true;
    const int row0 = blockIdx.y * 128, token0 = blockIdx.x * 128;
    const int halves = batch - token0 > 64 ? 2 : 1;  // of the tile's tokens, that there are any of
#endif
    if (threadIdx.x < 2 * STAGES) {
        mbarrier_init(full + threadIdx.x, 128);
        mbarrier_init(empty + threadIdx.x, wide ? 256 * halves : 128);  // of a narrow block's warpgroups one reads a tile
    }
    __syncthreads();

    const auto copy = [&](auto tiles) {  // rows and tokens beyond the last are zeros, or repeat it, and are not stored
        using T = decltype(tiles);
        constexpr int EACH = T::SIDE / 64;  // rows and tokens whose scales are a thread's
        const uint2* from[EACH];
        float* to[EACH];
        int apart[EACH];
        uint2 ahead[T::AHEAD][EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int at = (thread + 128 * i) % T::SIDE;
            const bool row = thread + 128 * i < T::SIDE;
            from[i] = kept(row ? scales + (size_t)min(row0 + at, n - 1) * chunks
                               : xs + (size_t)min(token0 + at, batch - 1) * chunks);
            to[i] = ring_scales + (row ? (at / 64 * 4 + at % 8 / 2) * APART + at % 64 / 8 * 2 + at % 2 : 4 * T::ROWS + at);
            apart[i] = row ? T::ROWS : T::SIDE;
        }
#pragma unroll
        for (int a = 0; a < T::AHEAD; ++a)
#pragma unroll
            for (int i = 0; i < EACH; ++i)
                if (a < chunks) ahead[a][i] = *from[i]++;
        for (int first = 0; first < chunks; first += T::AHEAD) {
#pragma unroll
            for (int a = 0; a < T::AHEAD; ++a) {
                const int c = first + a, s = c % T::PLACES;
                if (c >= chunks) break;
                if (c >= T::PLACES) mbarrier_wait(empty + s, (c / T::PLACES + 1) % 2);
                if (thread == 0) {
                    mbarrier_expect(full + s, T::QUANTS);
#pragma unroll
                    for (int first = 0; first < T::SIDE; first += BOX_ROWS) {
                        unsigned char* const box = ring + s * T::QUANTS + first * 128;
                        tma_copy_box(box, &xq, c * 128, token0 + first, full + s);
                        tma_copy_box(box + T::SIDE * 128, &quants, c * 128, row0 + first, full + s);
                    }
                }
#pragma unroll
                for (int i = 0; i < EACH; ++i) {
                    const uint2 raw = ahead[a][i];
                    const __half2 *low = reinterpret_cast<const __half2*>(&raw.x), *high = reinterpret_cast<const __half2*>(&raw.y);
                    float* const out = to[i] + s * T::SCALES;
                    out[0] = __low2float(*low);
                    out[apart[i]] = __high2float(*low);
                    out[2 * apart[i]] = __low2float(*high);
                    out[3 * apart[i]] = __high2float(*high);
                }
                mbarrier_arrive(full + s);
#pragma unroll
                for (int i = 0; i < EACH; ++i)
                    if (c + T::AHEAD < chunks) ahead[a][i] = *from[i]++;
            }
        }
    };

    // Adds to `sum` what a warpgroup multiplies: its 64 tokens and 64 rows of every tile, in narrow blocks of every fourth.
    const auto multiply = [&](auto tiles, float (&sum)[32]) {
        using T = decltype(tiles);
        constexpr int TURNS = T::SIDE == 128 ? 1 : 4;
        const int half_of_tokens = TURNS == 1 ? group / 2 : 0, half_of_rows = TURNS == 1 ? group % 2 : 0;
        const unsigned long long tokens = wgmma_columns(ring + half_of_tokens * 64 * 128);
        const unsigned long long rows = wgmma_columns(ring + (T::SIDE + half_of_rows * 64) * 128);
        const float* all_tokens = ring_scales + 4 * T::ROWS + half_of_tokens * 64 + thread / 32 * 16 + lane / 4;
        const float* all_rows = ring_scales + (half_of_rows * 4 + lane % 4) * APART;
        int dot[32];
        for (int c = TURNS == 1 ? 0 : group; c < chunks; c += TURNS) {
            const int s = c % T::PLACES;
            const float* of_tokens = all_tokens + s * T::SCALES;
            const float4* of_rows = reinterpret_cast<const float4*>(all_rows + s * T::SCALES);
            mbarrier_wait(full + s, c / T::PLACES % 2);
#pragma unroll
            for (int b = 0; b < 4; ++b) {  // blocks of 32 in the tile
                warpgroup_arrive();
                wgmma_m64n64k32_s8(dot, tokens + s * (T::QUANTS / 16) + 2 * b, rows + s * (T::QUANTS / 16) + 2 * b, false);
                warpgroup_commit();
                const float of_token[2] = {of_tokens[b * T::SIDE], of_tokens[b * T::SIDE + 8]};
                float4 four[4];
#pragma unroll
                for (int p = 0; p < 4; ++p) four[p] = of_rows[b * T::ROWS / 4 + p];
                warpgroup_wait<0>();
                if (b == 3) mbarrier_arrive(empty + s);  // every thread for what it has read
#pragma unroll
                for (int j = 0; j < 32; ++j) {
                    const float4 w = four[j / 8];
                    const float of_row = j / 4 % 2 ? (j % 2 ? w.w : w.z) : (j % 2 ? w.y : w.x);
                    sum[j] = fmaf(static_cast<float>(dot[j]) * of_token[j / 2 % 2], of_row, sum[j]);
                }
            }
        }
    };

    if (group == 4) {
        setmaxnreg_fewer<32>();
        if (wide)
            copy(Tiles<128>{});
        else
            copy(Tiles<64>{});
        return;
    }
    setmaxnreg_more<112>();
    if (group / 2 >= halves) return;  // nothing to multiply: the block's others have the multiprocessor to themselves

    // Sums j and j + 1 of a thread, where its warpgroup's first token and row are `token` and `row`.
    const auto store = [&](int token, int row, int j, float first, float second) {
        const int t = token + thread / 32 * 16 + lane / 4 + j / 2 % 2 * 8, r = row + j / 4 * 8 + lane % 4 * 2;
        __half* to = y + (size_t)t * n + r;
        if (t < batch && r + 1 < n && n % 2 == 0) {
            *reinterpret_cast<__half2*>(to) = __floats2half2_rn(first, second);
        } else if (t < batch && r < n) {
            to[0] = __float2half(first);
            if (r + 1 < n) to[1] = __float2half(second);
        }
    };
    float sum[32] = {};
    if (wide) {
        multiply(Tiles<128>{}, sum);
#pragma unroll
        for (int j = 0; j < 32; j += 2) store(token0 + group / 2 * 64, row0 + group % 2 * 64, j, sum[j], sum[j + 1]);
        return;
    }
    multiply(Tiles<64>{}, sum);
    float* const parts = reinterpret_cast<float*>(ring) + thread;  // [warpgroup][sum][thread]
    warpgroup_wait_turn(1, 512);  // all tiles have arrived and been multiplied
#pragma unroll
    for (int j = 0; j < 32; ++j) parts[(group * 32 + j) * 128] = sum[j];
    warpgroup_wait_turn(1, 512);
#pragma unroll
    for (int i = 0; i < 8; i += 2) {  // each warpgroup adds up and stores a quarter, in the same order every time
        const int j = group * 8 + i;
        float all[2] = {};
#pragma unroll
        for (int g = 0; g < 4; ++g)
#pragma unroll
            for (int e = 0; e < 2; ++e) all[e] += parts[(g * 32 + j + e) * 128];
        store(token0, row0, j, all[0], all[1]);
    }
}
