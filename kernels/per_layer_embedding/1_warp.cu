// per_layer_embedding 1, warp: every layer's input of a token: the layer's own embedding of it plus the normalised projection of
// the token's embedding.
//
// Purpose  a model with per-layer embeddings has a second table with a short row a layer and token; with the projection it
//          becomes the layers' inputs, all at once, before the first layer.
// Shapes   projected [n][layers][width] half; weights [width] half, the norm's; table [vocab][layers][width] half, or with
//          FORMAT 1 int8 with scales [vocab][layers][width / 32] half; tokens [..] and place as in embedding_scaled; out as
//          projected: (norm(projected) weights + factor table) / sqrt(2). width a multiple of 32, 256 at most.
// Bytes    n layers width (2 + 2 + 2), with FORMAT 1 n layers width (17 / 16 + 2 + 2).
// Launch   THREADS threads a block, a warp a layer, grid n x blocks to cover the layers.
// Macros   THREADS = 128: threads a block;
//          FORMAT = 0: of the table: 0 FP16, 1 Q8_0 in planes.
// Below    nothing: torch's operators.
#include "common/reduce.cuh"
#include "common/rows.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    per_layer_embedding_warp(const uint4* __restrict__ projected, const uint4* __restrict__ weights, const void* __restrict__ table,
                    const __half* __restrict__ scales, const int* __restrict__ tokens, const int* __restrict__ place,
                    uint4* __restrict__ out, int layers, int eighths, float factor, float epsilon) {
    const int layer = (blockIdx.y * THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (layer >= layers) return;
    const size_t row = blockIdx.x, at = (row * layers + layer) * eighths + lane;
    const bool there = lane < eighths;
    Eight v = {}, own = {};
    if (there) {
        v = eight_from(projected[at]);
        own = eight_of_table<FORMAT == 1>(table, scales, ((size_t)tokens[*place + row] * layers + layer) * eighths + lane);
    }
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += v.at[j] * v.at[j];
    const float by = rsqrtf(warp_sum(squares) / (8 * eighths) + epsilon);
    if (!there) return;
    const Eight w = eight_from(weights[lane]);
#pragma unroll
    for (int j = 0; j < 8; ++j) v.at[j] = (v.at[j] * by * w.at[j] + factor * own.at[j]) * 0.70710678f;
    out[at] = eight_halves(v);
}
