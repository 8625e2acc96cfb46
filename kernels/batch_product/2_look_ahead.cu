// batch_product 2, look ahead: L2 brings the weights of a later product while the ones before it wait for each other.
//
// Purpose  between the products of a few tokens stand kernels that hardly read anything: memory rests for half of a layer. A
//          ring of shared memory takes the beginning of the next product's weights, L2 takes all of them.
// Shapes   as rung 1; of the matrix that comes later `ahead_bytes` bytes at `ahead`, of which this launch asks for the last
//          ahead_each of every of ahead_parts parts. 16-byte aligned; ahead_each a multiple of PIECE.
// Bytes    as rung 1, and ahead_each ahead_parts, which the later product then reads from L2.
// Launch   as rung 1.
// Macros   as rung 1.
// Changed  from rung 1: when a block's own copies are on their way, it asks for its share of the later product's weights.
#include "common/batch_heads.cuh"
#include "common/batch_weights.cuh"
#include "common/ptx/bulk_prefetch.cuh"
#include "common/ptx/dependent_launch.cuh"

// What becomes of a tile's sums of a token, in rows g and g + 8.
__device__ inline void finish(float low, float high, void* out, unsigned tile, unsigned token, unsigned n, unsigned batch,
                              const Heads& to, int position, const Turn& turn) {
    const unsigned g = threadIdx.x % 32 / 4;
#if EPILOGUE == 0
    __half* const y = static_cast<__half*>(out) + token * (size_t)n + 16 * tile + g;
    y[0] = __float2half(low);
    y[8] = __float2half(high);
#elif EPILOGUE == 1
    const int each = to.head_dim / 16, head = tile / each, i = tile % each * 8 + g, kv_head = head - to.heads;
    low += turn.low;
    high += turn.high;
    __half* y = static_cast<__half*>(out) + (token * (size_t)to.heads + head) * to.head_dim;
    const size_t cached = (DRAFTS ? position + token : position * (size_t)batch + token) * to.kv_heads;
    const float2 cos_sin = turn.cos_sin[DRAFTS ? token % 2 : 0];
    if (kv_head >= 0) y = to.keys + (cached + kv_head) * to.head_dim;
    if (kv_head >= to.kv_heads) y = to.values + (cached + kv_head - to.kv_heads) * to.head_dim;
    y[i] = __float2half(low * cos_sin.x - high * cos_sin.y);
    y[i + to.head_dim / 2] = __float2half(high * cos_sin.x + low * cos_sin.y);
#elif EPILOGUE == 2
    static_cast<__half*>(out)[token * (size_t)(n / 2) + 8 * tile + g] = __float2half(low / (1.0f + __expf(-low)) * high);
#else
    float* const y = static_cast<float*>(out) + (blockIdx.y * (size_t)batch + token) * n + 16 * tile + g;
    y[0] = low;
    y[8] = high;
#endif
}

constexpr unsigned PIECE = 2048;  // bytes that a thread asks for at a time

extern "C" __global__ void __launch_bounds__(THREADS, SHARES_SM ? 2 : 1)
    batch_product_look_ahead(const uint4* __restrict__ weights, const unsigned* __restrict__ scales, const uint4* x, void* out,
                             unsigned n, unsigned k, unsigned batch, const __half* __restrict__ biases,
                             const float2* __restrict__ rotary, const int* position, __half* keys, __half* values, int heads,
                             int kv_heads, int head_dim, const char* ahead, unsigned long long ahead_bytes,
                             unsigned ahead_parts, unsigned ahead_each) {
    extern __shared__ __align__(16) uint4 shared[];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, tiles = n / 16;
    uint4* const ring = shared + warp * STAGES * SLOT;
    float4* const sums_of_warps = reinterpret_cast<float4*>(shared + WARPS * STAGES * SLOT);
    const unsigned first = tiles * blockIdx.x / gridDim.x, last = tiles * (blockIdx.x + 1) / gridDim.x;
    const unsigned chunk = blockIdx.y * (WARPS * CHUNKS) + warp;  // the warp's first: the others follow WARPS apart
    const unsigned long long policy = evict_first_policy();
    const Heads to = {biases, rotary, keys, values, heads, kv_heads, head_dim};
    // The same all through a step, so that it is read before x is there, like what the warp's first columns are rotated with.
    const int position_now = EPILOGUE == 1 ? __ldcg(position) : 0;
    Turn rotation = {};
    if (EPILOGUE == 1 && first < last)
        rotation = turn_of(min(first + warp / COLUMNS, last - 1), 8 * (warp % COLUMNS) + lane % 4 * 2, batch, position_now, to);

    Source from = source_of(weights, scales, first, chunk, k);
    unsigned tile_ahead = first, slot = 0;
    const auto next = [&](unsigned place, int c) {
        if (tile_ahead < last) start(ring + place * SLOT, from, c, chunk, k, policy);
        copy_async_commit();
        if (c + 1 == CHUNKS) next_tile(from, tile_ahead++, k);
    };
#pragma unroll 1
    for (int s = 0, c = 0; s < STAGES; ++s, c = c + 1 == CHUNKS ? 0 : c + 1) next(s, c);
    // Threads of all blocks take pieces in turn, neighbours those of other blocks.
    const unsigned blocks = gridDim.x * gridDim.y, pieces = ahead_each / PIECE;
    for (unsigned i = threadIdx.x * blocks + blockIdx.y * gridDim.x + blockIdx.x; i < pieces * ahead_parts; i += THREADS * blocks) {
        const unsigned long long end = ahead_bytes * (i / pieces + 1) / ahead_parts / 16 * 16;
        prefetch_bytes_l2(ahead + end - (i % pieces + 1) * PIECE, PIECE);
    }
    // What starts now has its own weights brought, which should not come before those above, nor before many tokens' x.
    if (COLUMNS <= 2) let_successor_start();
    wait_for_predecessor();
    if (COLUMNS > 2) let_successor_start();

    unsigned own[CHUNKS][COLUMNS][8];
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j)
            load_x(own[c][j], x + (8 * j + g) * (size_t)(k / 8), chunk + c * WARPS, 8 * j + g < batch);
    float offsets[CHUNKS][OFFSETS][4] = {};
    if (FOLDED) {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) offsets_of(offsets[c], own[c][0]);
    }
#pragma unroll 1
    for (unsigned tile = first, places = 0; tile < last; ++tile) {
        float sums[CHAINS][COLUMNS][4] = {};
#pragma unroll
        for (int c = 0; c < CHUNKS; c += PACE) {
            copy_async_wait<STAGES - PACE>();
            if (FORMAT == 1) __syncwarp();  // the other lanes' copies have arrived too
#pragma unroll
            for (int p = 0; p < PACE; ++p)
                multiply(sums + SUMS * p % CHAINS, ring + (slot + p) * SLOT, own[c + p], offsets[c + p]);
            if (FORMAT == 1) __syncwarp();  // all lanes have read the slots
#pragma unroll
            for (int p = 0; p < PACE; ++p) next(slot + p, (STAGES + c + p) % CHUNKS);
            slot = slot + PACE == STAGES ? 0 : slot + PACE;
        }
        float4* const here = sums_of_warps + places % (2 * TILES) * (WARPS * COLUMNS * 32);
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
            for (int chain = 1; chain < CHAINS; ++chain)
#pragma unroll
                for (int e = 0; e < 4; ++e) sums[0][j][e] += sums[chain][j][e];
            here[(warp * COLUMNS + j) * 32 + lane] = make_float4(sums[0][j][0], sums[0][j][1], sums[0][j][2], sums[0][j][3]);
        }
        if (++places % TILES && tile + 1 < last) continue;
        // Sums of all warps have met in half of the places: who adds them up is done before the next barrier but one.
        __syncthreads();
        const unsigned there = (places - 1) % TILES + 1, turn = places - there;
#pragma unroll 1
        for (unsigned i = (warp + WARPS - turn * COLUMNS % WARPS) % WARPS; i < there * COLUMNS; i += WARPS) {
            const unsigned j = i % COLUMNS, of = tile + 1 - there + i / COLUMNS;
            const float4* const from = sums_of_warps + (turn + i / COLUMNS) % (2 * TILES) * (WARPS * COLUMNS * 32) + j * 32 + lane;
            float4 all = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                const float4 more = from[w * COLUMNS * 32];
                all.x += more.x, all.y += more.y, all.z += more.z, all.w += more.w;
            }
            const unsigned token = 8 * j + lane % 4 * 2;
            if (EPILOGUE == 1 && (of != rotation.tile || (DRAFTS && token != rotation.token)))
                rotation = turn_of(of, token, batch, position_now, to);
            if (token < batch) finish(all.x, all.z, out, of, token, n, batch, to, position_now, rotation);
            if (token + 1 < batch) finish(all.y, all.w, out, of, token + 1, n, batch, to, position_now, rotation);
        }
    }
}
