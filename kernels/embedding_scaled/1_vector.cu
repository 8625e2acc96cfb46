// embedding_scaled 1, vector: the embeddings of tokens whose numbers are on the device, as residuals and as operands.
//
// Purpose  a row of the table is read once: times a factor it starts the residual, unchanged it is the operand of the
//          projection into all layers' embeddings.
// Shapes   table [vocab][width] half, or with FORMAT 1 int8 with scales [vocab][width / 32] half; tokens [..] and place, one
//          int: row i is of token tokens[place + i]. residual [n][width] float, x [n][width] half. width a multiple of 32.
// Bytes    n width (2 + 4 + 2), with FORMAT 1 n width (17 / 16 + 4 + 2).
// Launch   THREADS threads a block, a thread for 8 numbers, grid n x blocks to cover a row.
// Macros   THREADS = 128: threads a block;
//          FORMAT = 0: of the table: 0 FP16, 1 Q8_0 in planes.
// Below    nothing: lesson 05's embed, one result and its own format.
#include "common/rows.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    embedding_scaled_vector(const void* __restrict__ table, const __half* __restrict__ scales, const int* __restrict__ tokens,
                      const int* __restrict__ place, float4* __restrict__ residual, uint4* __restrict__ x, int eighths,
                      float factor) {
    const int i = blockIdx.y * THREADS + threadIdx.x;
    if (i >= eighths) return;
    const size_t row = blockIdx.x, to = row * eighths + i;
    const Eight v = eight_of_table<FORMAT == 1>(table, scales, (size_t)tokens[*place + row] * eighths + i);
    x[to] = eight_halves(v);
    residual[2 * to] = make_float4(factor * v.at[0], factor * v.at[1], factor * v.at[2], factor * v.at[3]);
    residual[2 * to + 1] = make_float4(factor * v.at[4], factor * v.at[5], factor * v.at[6], factor * v.at[7]);
}
