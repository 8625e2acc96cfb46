// batch_product 2, norm inside: RMSNorm needs no kernel of its own between two products.
//
// Purpose  between two products a norm is a kernel with little to do: 2 us, most of which is waiting for the product before
//          and being waited for. But it is a factor for each element of a row and then one number for the whole row, which may
//          as well come after the next product: W (c x) = c (W x). So the product that completes a row of the residual
//          leaves it times the norm's weights, with sums of its squares; the next product scales its own sums.
// Shapes   as rung 1, but EPILOGUE 4 takes the place of 3: out is the residual [batch][n] float, to which the product is
//          added, and next_x [batch][n] half = residual gamma p, with gamma [n] half the next norm's weights and p a number
//          for each row that keeps halves in range: ROOM over the root mean square that the branch began with. Of a norm
//          `squares` [batch][places] float has p and then sums of squares, one a block: of the norm before in squares, of
//          next_x's in next_squares [batch][1 + gridDim.x SPLITS].
// Bytes    as rung 1; of EPILOGUE 4 besides the weights and x n batch (4 + 4 + 2).
// Launch   as rung 1; blocks of one x and SPLITS y are a cluster. With EPILOGUE 4 512 bytes more of dynamic shared memory for
//          each of a block's tiles and eight tokens.
// Macros   as rung 1, and
//          SPLITS = 1: parts of k.
// Changed  from rung 1: what warps, and then a cluster's blocks, have added up is added to the residual; squares of it are left
//          for the next product, which scales its sums by them.
#include "common/batch_heads.cuh"
#include "common/batch_weights.cuh"
#include "common/ptx/split_blocks.cuh"
#include "common/reduce.cuh"

// What becomes of a tile's sums of a token, in rows g and g + 8, where they complete no residual.
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
#endif
}

// A branch may make a row of the residual much larger, its smallest elements count for little: 2^-6 leaves halves 2^21 up.
constexpr float ROOM = 1.0f / 64;

// Of two tokens, `token` and the one after it, rows g and g + 8 of the residual, and the next norm's weights there.
struct Rows {
    float4 residual;  // row g of both tokens, row g + 8 of both
    float2 gamma;
};

__device__ inline Rows rows_of(const float* residual, const __half* gamma, unsigned tile, unsigned token, unsigned n,
                               unsigned batch) {
    const unsigned row = 16 * tile + threadIdx.x % 32 / 4;
    Rows found = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), make_float2(__half2float(gamma[row]), __half2float(gamma[row + 8]))};
    const float* from = residual + token * (size_t)n + row;
    if (token < batch) found.residual.x = __ldcg(from), found.residual.z = __ldcg(from + 8);
    if (token + 1 < batch) found.residual.y = __ldcg(from + n), found.residual.w = __ldcg(from + n + 8);
    return found;
}

// Add sums to these rows, leave them for the next product in the scale `p` of each token, and return their squares, by token.
__device__ inline float2 complete(float4 sums, const Rows& rows, float* residual, __half* next_x, float2 p, unsigned tile,
                                  unsigned token, unsigned n, unsigned batch) {
    const size_t at = token * (size_t)n + 16 * tile + threadIdx.x % 32 / 4;
    const float2 low = make_float2(sums.x + rows.residual.x, sums.y + rows.residual.y);
    const float2 high = make_float2(sums.z + rows.residual.z, sums.w + rows.residual.w);
    if (token < batch) {
        residual[at] = low.x, residual[at + 8] = high.x;
        next_x[at] = __float2half(low.x * rows.gamma.x * p.x);
        next_x[at + 8] = __float2half(high.x * rows.gamma.y * p.x);
    }
    if (token + 1 < batch) {
        residual[at + n] = low.y, residual[at + n + 8] = high.y;
        next_x[at + n] = __float2half(low.y * rows.gamma.x * p.y);
        next_x[at + n + 8] = __float2half(high.y * rows.gamma.y * p.y);
    }
    return make_float2(low.x * low.x + high.x * high.x, low.y * low.y + high.y * high.y);
}

extern "C" __global__ void OF_SPLITS __launch_bounds__(THREADS, 1)
    batch_product_norm_inside(const uint4* __restrict__ weights, const unsigned* __restrict__ scales, const uint4* x, void* out,
                              unsigned n, unsigned k, unsigned batch, const __half* __restrict__ biases,
                              const float2* __restrict__ rotary, const int* position, __half* keys, __half* values, int heads,
                              int kv_heads, int head_dim, const float* squares, unsigned places,
                              const __half* __restrict__ gamma, __half* next_x, float* next_squares, float epsilon) {
    extern __shared__ __align__(16) uint4 shared[];
    __shared__ float by[TOKENS];  // what x's rows still lack of their norm; EPILOGUE 4: what they are left in
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, tiles = n / 16;
    uint4* const ring = shared + warp * STAGES * SLOT;
    float4* const sums_of_warps = reinterpret_cast<float4*>(shared + WARPS * STAGES * SLOT);
    const unsigned first = tiles * blockIdx.x / gridDim.x, last = tiles * (blockIdx.x + 1) / gridDim.x;
    const unsigned chunk = blockIdx.y * (WARPS * CHUNKS) + warp;  // the warp's first: the others follow WARPS apart
    const unsigned long long policy = evict_first_policy();
    const Heads to = {biases, rotary, keys, values, heads, kv_heads, head_dim};
    float4* const sums_of_block = sums_of_warps + 2 * TILES * WARPS * COLUMNS * 32;  // EPILOGUE 4: of every tile and column
    // The same all through a step, so that it is read before x is there, like what the warp's first columns are rotated with.
    const int position_now = EPILOGUE == 1 ? __ldcg(position) : 0;
    Turn rotation = {};
    if (EPILOGUE == 1 && first < last)
        rotation = turn_of(min(first + warp / COLUMNS, last - 1), 8 * (warp % COLUMNS) + lane % 4 * 2, batch, position_now, to);

    unsigned tile_ahead = first, c_ahead = 0, slot = 0;
    const auto next = [&](unsigned place) {
        if (tile_ahead < last) start(ring + place * SLOT, weights, scales, tile_ahead, chunk + c_ahead * WARPS, k, policy);
        copy_async_commit();
        if (++c_ahead == CHUNKS) c_ahead = 0, ++tile_ahead;
    };
#pragma unroll 1
    for (int s = 0; s < STAGES; ++s) next(s);
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
    // Which tile and column the warp completes first, of those that the blocks of its splits share out.
    const unsigned items = (last - first) * COLUMNS, item = blockIdx.y * WARPS + warp;
    const auto tile_of = [&](unsigned i) { return first + i / COLUMNS; };
    const auto token_of = [&](unsigned i) { return 8 * (i % COLUMNS) + lane % 4 * 2; };
    Rows rows = {};
    if (EPILOGUE == 4 && item < items) rows = rows_of(static_cast<float*>(out), gamma, tile_of(item), token_of(item), n, batch);
#pragma unroll 1
    for (unsigned token = warp; token < TOKENS; token += WARPS) {
        float sum = 0.0f;
        const float* const of = squares + min(token, batch - 1) * (size_t)places;
        for (unsigned i = 1 + lane; i < places; i += 32) sum += __ldcg(of + i);
        const float root = rsqrtf(warp_sum(sum) / (EPILOGUE == 4 ? n : k) + epsilon);
        if (lane == 0) by[token] = EPILOGUE == 4 ? ROOM * root : root / __ldcg(of);
    }
#pragma unroll 1
    for (unsigned tile = first, places = 0; tile < last; ++tile) {
        float sums[CHAINS][COLUMNS][4] = {};
#pragma unroll
        for (int c = 0; c < CHUNKS; c += PACE) {
            copy_async_wait<STAGES - PACE>();
#pragma unroll
            for (int p = 0; p < PACE; ++p) multiply(sums + 2 * p % CHAINS, ring + (slot + p) * SLOT, own[c + p]);
#pragma unroll
            for (int p = 0; p < PACE; ++p) next(slot + p);
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
            if (EPILOGUE == 4) {
                sums_of_block[((of - first) * COLUMNS + j) * 32 + lane] = all;
                continue;
            }
            const unsigned token = 8 * j + lane % 4 * 2;
            all.x *= by[token], all.z *= by[token], all.y *= by[token + 1], all.w *= by[token + 1];
            if (EPILOGUE == 1 && (of != rotation.tile || (DRAFTS && token != rotation.token)))
                rotation = turn_of(of, token, batch, position_now, to);
            if (token < batch) finish(all.x, all.z, out, of, token, n, batch, to, position_now, rotation);
            if (token + 1 < batch) finish(all.y, all.w, out, of, token + 1, n, batch, to, position_now, rotation);
        }
    }
#if EPILOGUE == 4
    wait_for_splits();
    float* const squares_of_warps = reinterpret_cast<float*>(sums_of_warps);  // [WARPS][TOKENS]
    for (unsigned token = lane; token < TOKENS; token += 32) squares_of_warps[warp * TOKENS + token] = 0.0f;
    __syncwarp();
#pragma unroll 1
    for (unsigned i = item; i < items; i += SPLITS * WARPS) {
        const unsigned tile = tile_of(i), token = token_of(i);
        if (i != item) rows = rows_of(static_cast<float*>(out), gamma, tile, token, n, batch);
        float4 all = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int split = 0; split < SPLITS; ++split) {
            const float4 more = of_split(sums_of_block + i * 32 + lane, split);
            all.x += more.x, all.y += more.y, all.z += more.z, all.w += more.w;
        }
        const float2 p = make_float2(by[token], by[token + 1]);
        float2 found = complete(all, rows, static_cast<float*>(out), next_x, p, tile, token, n, batch);
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) {
            found.x += __shfl_xor_sync(0xffffffffu, found.x, offset);
            found.y += __shfl_xor_sync(0xffffffffu, found.y, offset);
        }
        float* const own = squares_of_warps + warp * TOKENS + token;
        if (lane < 4) own[0] += found.x, own[1] += found.y;
    }
    __syncthreads();
    const unsigned left = gridDim.x * SPLITS + 1;
    if (threadIdx.x < batch) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += squares_of_warps[w * TOKENS + threadIdx.x];
        float* const to_place = next_squares + threadIdx.x * (size_t)left;
        to_place[1 + blockIdx.x * SPLITS + blockIdx.y] = sum;
        if (blockIdx.x + blockIdx.y == 0) to_place[0] = by[threadIdx.x];
    }
    if (SPLITS > 1) wait_for_splits();  // a block whose sums are still read must not leave
#endif
}
