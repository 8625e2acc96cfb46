"""Put marks into a copy of lib and kernels: python trials/mark_kernels.py COPY, then chain_marks.py with COPY/lib."""
import sys
from pathlib import Path

ROOT = Path(sys.argv[1])
MARK = '''
__device__ inline void mark(unsigned long long* marks, int i) {
    if (threadIdx.x != 0 || !marks) return;
    unsigned long long* const to = marks + (blockIdx.y * gridDim.x + blockIdx.x) * 8ull;
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    to[i] = clock64();
    to[7] = sm + 1;
}
'''


def edit(path, *pairs):
    text = (ROOT / path).read_text().replace('extern "C" __global__', MARK + 'extern "C" __global__', 1)
    for old, new in pairs:
        assert old in text, (path, old)
        text = text.replace(old, new, 1)
    return text


s = edit(
    "kernels/batch_product/1_pdl.cu",
    ("int kv_heads, int head_dim) {", "int kv_heads, int head_dim, unsigned long long* marks) {"),
    ("    extern __shared__ __align__(16) uint4 shared[];", "    mark(marks, 0);\n    extern __shared__ __align__(16) uint4 shared[];"),
    ("    if (COLUMNS <= 2) let_successor_start();\n    wait_for_predecessor();", "    mark(marks, 1);\n    if (COLUMNS <= 2) let_successor_start();\n    wait_for_predecessor();\n    mark(marks, 2);"),
    ("        float4* const here = sums_of_warps", "        if (tile == first) mark(marks, 3);\n        if (tile + 1 == last) mark(marks, 4);\n        float4* const here = sums_of_warps"),
)
i = s.rindex("    }\n}")
(ROOT / "kernels/batch_product/1_pdl.cu").write_text(s[:i] + "    }\n    mark(marks, 5);\n}\n")
s = edit(
    "kernels/batch_rmsnorm/1_pdl.cu",
    ("float epsilon) {", "float epsilon, unsigned long long* marks) {"),
    ("    let_successor_start();\n", "    mark(marks, 0);\n    let_successor_start();\n"),
    ("    wait_for_predecessor();\n", "    mark(marks, 1);\n    wait_for_predecessor();\n    mark(marks, 2);\n"),
    ("    squares = block_sum<THREADS>(squares);", "    squares = block_sum<THREADS>(squares);\n    mark(marks, 3);"),
)
i = s.rindex("}")
(ROOT / "kernels/batch_rmsnorm/1_pdl.cu").write_text(s[:i] + "    mark(marks, 5);\n}\n")
s = edit(
    "kernels/batch_attention/1_pdl.cu",
    ("unsigned* arrived) {", "unsigned* arrived, unsigned long long* marks) {"),
    ("    let_successor_start();\n", "    mark(marks, 0);\n    let_successor_start();\n"),
    ("    wait_for_predecessor();\n", "    mark(marks, 1);\n    wait_for_predecessor();\n    mark(marks, 2);\n"),
    ("    __syncthreads();  // queries have arrived, and what every warp has in its ring", "    __syncthreads();  // queries have arrived, and what every warp has in its ring\n    mark(marks, 3);"),
    ("    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 1);\n", "    mark(marks, 4);\n    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 1);\n"),
    ("    if (gridDim.x == 1 || !arrives_last", "    mark(marks, 5);\n    if (gridDim.x == 1 || !arrives_last"),
)
(ROOT / "kernels/batch_attention/1_pdl.cu").write_text(s)
p = ROOT / "lib/rooflab/ops/batch_ops.py"
s = p.read_text()
for old, new in (
    ("PLACE = 8.5", "MARKS = None\ndef _marks(name):\n    if MARKS is None: return [ctypes.c_ulonglong(0)]\n    place = len(MARKS[1]); MARKS[1].append(name)\n    return [ctypes.c_ulonglong(MARKS[0] + place * 160 * 64)]\n\nPLACE = 8.5"),
    ("    function = loaded(rung, tuple(sorted(macros.items())))\n    grid, dependent", "    arguments += _marks(f'product{then}')\n    function = loaded(rung, tuple(sorted(macros.items())))\n    grid, dependent"),
    ("        [*arguments, ctypes.c_float(epsilon)],", "        [*arguments, ctypes.c_float(epsilon), *_marks('norm')],"),
    ("[*arguments, workspace.outputs, workspace.parts, workspace.arrived],", "[*arguments, workspace.outputs, workspace.parts, workspace.arrived, *_marks('attention')],"),
):
    assert old in s, old
    s = s.replace(old, new, 1)
p.write_text(s)
