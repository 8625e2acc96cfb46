"""Run under compute-sanitizer by test_gpu.py: every rung on ragged shapes, or one planted fault, no pools.

Pools are off because a pool rounds allocations up and keeps freed ones: an overrun would land in memory that
is "allocated", and memcheck would stay silent.
"""

import ctypes
import sys

import cupy
import numpy as np
from rooflab.numerics import quant, rotary
from rooflab.ops import (
    attention,
    gemv,
    int4,
    mmq,
    probes,
    q8_0,
    stream,
    stream_k,
)
from rooflab.runtime import nvrtc

cupy.cuda.set_allocator(None)

FAULTS = {
    "overrun": """extern "C" __global__ void fault(float* x, int n) {
        if (threadIdx.x <= n) x[threadIdx.x] = 1.0f;
    }""",
    "race": """extern "C" __global__ void fault(float* x, int n) {
        __shared__ float s[64];
        s[threadIdx.x] = x[threadIdx.x % n];
        x[threadIdx.x % n] = s[(threadIdx.x + 33) % 64];
    }""",
    "divergent_barrier": """extern "C" __global__ void fault(float* x, int n) {
        if (threadIdx.x < 40) __syncthreads();
        x[threadIdx.x % n] = 1.0f;
    }""",
}


def every_rung() -> None:
    rng = np.random.default_rng(5)
    for operator, ladder in stream.LADDERS.items():
        for rung in ladder:
            for n in (4, 1020, 8 * 256 * 4 + 36, *((1, 1021, 8191) if rung.words == 1 else ())):
                floats = [cupy.asarray(rng.standard_normal(n).astype(np.float32)) for _ in range(2)]
                words = cupy.asarray(rng.integers(0, 1 << 32, n, dtype=np.uint32))
                if operator == "read":
                    stream.read(words, rung=rung.name)
                elif operator == "copy":
                    stream.copy(words, rung=rung.name)
                elif operator == "write":
                    stream.write(words, 3, rung=rung.name)
                elif operator == "triad":
                    stream.triad(*floats, 1.5, rung=rung.name)
                else:
                    stream.saxpy(1.5, *floats, rung=rung.name)
                    if rung.name == "1_scalar":
                        stream.saxpy(1.5, *floats, rung=rung.name, dependent=True)
    out = cupy.asarray(np.zeros(1, np.uint32))
    probes.touch(out, 7)
    probes.touch(out, 7, dependent=True)
    counter, mail, seen = (cupy.asarray(np.zeros(k, np.uint32)) for k in (1, 40, 40))
    probes.barrier(counter, mail, seen, 5)
    table = np.zeros((64, 32), np.uint32)
    table[:, 0] = np.roll(np.arange(64), -1)
    probes.chase(cupy.asarray(table.reshape(-1)), out, 0, 100)


def every_gemv() -> None:
    rng = np.random.default_rng(6)
    for operator, ladder in gemv.LADDERS.items():
        dtype = "float32" if operator == "gemv" else "float16"
        for rung in ladder:
            any_shape = rung.name in ("1_strided", "2_coalesced", "3_split_k", "1_warp")
            for n, k in (
                (4, 8),
                (132, 264),
                (516, 1032),
                *(((1, 1), (259, 77), (17, 4099)) if any_shape else ()),
            ):
                shape = (k, n) if operator == "gemv" else (n, k)
                matrix, x = (cupy.asarray(rng.standard_normal(s).astype(dtype)) for s in (shape, k))
                out = cupy.asarray(np.zeros(n, dtype))
                for _ in range(2):  # the counters of split sums must be back at zero
                    getattr(gemv, operator)(matrix, x, out=out, rung=rung.name)


def every_q8() -> None:
    from rooflab.studies.q8_0_operands import blocks_of

    rng = np.random.default_rng(7)
    hopper = cupy.cuda.Device().compute_capability == "90"
    for n, k, batch in ((1, 128, 1), (70, 256, 3), (37, 384, 9), (70, 1664, 40), (130, 256, 129)):
        w, x = (cupy.asarray(rng.standard_normal((rows, k)).astype(np.float16)) for rows in (n, batch))
        planes = q8_0.quantise(w)
        blocks = blocks_of(planes)
        given = {"half": x, "blocks": q8_0.quantise(x, rung="1_blocks"), "planes": q8_0.quantise(x)}
        ordered = {"planes": planes, "blocks": blocks, "tiles": q8_0.repack(planes)}
        for name, (w_kind, x_kind, most, _) in q8_0.TAKES.items():
            if batch <= most:
                q8_0.matvec(given[x_kind], ordered[w_kind], rung=name)
        for rung in mmq.LADDERS["mmq"]:
            if rung.archs != ("90a",) or hopper:
                mmq.product(
                    given["half" if rung.name in mmq.HALVES else "planes"],
                    ordered[mmq.order_of(rung.name)],
                    rung=rung.name,
                )
        if hopper:
            mmq.product(given["planes"], planes, rung="6_wgmma", NARROW=1)
        for rung in q8_0.LADDERS["dequantise"]:
            if rung.name != "3_shift" or not k & (k - 1):
                q8_0.dequantise(blocks, rung=rung.name)
        tokens = cupy.asarray(rng.integers(0, n, batch).astype(np.int32))
        q8_0.embedding_q8_0(blocks, tokens)
        q8_0.embedding_q8_0(blocks, tokens, index=batch - 1, rung="1_token")


def every_int4() -> None:
    rng = np.random.default_rng(8)
    hopper = cupy.cuda.Device().compute_capability == "90"
    for n, k, batch in ((1, 128, 1), (70, 256, 3), (130, 1152, 8)):
        q = quant.quantise_int4(rng.standard_normal((n, k)).astype(np.float32))
        x, rows = (
            cupy.asarray(rng.standard_normal((batch, k)).astype(np.float16)),
            int4.Rows(*map(cupy.asarray, q)),
        )
        tiles = int4.repack(*rows)
        int4.dequantise(rows)
        for rung in int4.LADDERS["int4"]:
            if rung.archs != ("90a",) or hopper:
                how = (
                    stream_k.options_for("int4/13_stream_k", n, k, len(x))
                    if rung.name == "13_stream_k"
                    else {}
                )
                int4.matmul(x, tiles if rung in int4.TILED else rows, rung=rung.name, **how)
        if hopper:
            int4.matmul(x, tiles, rung="10_wgmma", TOKENS=16, CLUSTER=2, TALL=2, K_GROUPS=2)
            for tokens in (16, 32):
                dealt = {"UNITS": 3, "ROW_GROUPS": 2, "CLUSTER": 2, "STAGES": 2, "TOKENS": tokens}
                int4.matmul(x, tiles, rung="11_tma", **dealt)
    many = cupy.asarray(rng.standard_normal((70, k)).astype(np.float16))  # more tokens than a tile
    int4.matmul(many, tiles, rung="9_shared_x", TOKENS=64, K_WARPS=1)
    for parts in (1, 2) if hopper else ():
        how = {"TALL": parts, "TOKENS": 64, "CLUSTER": parts, "STAGES": 2}
        int4.matmul(many, tiles, rung="12_token_tiles", **how)
        how = {"UNITS": parts, "ROW_GROUPS": parts, "TOKENS": 16 * parts, "CLUSTER": parts, "STAGES": 2}
        int4.matmul(many, tiles, rung="11_tma", **how)
        how = {"UNITS": 1, "ROW_GROUPS": 1, "TOKENS": 72, "CLUSTER": 3 - parts, "STAGES": 2}
        int4.matmul(many, tiles, rung="11_tma", **how)
        how = {"SHARE": 2 * parts, "TOKENS": 64, "CLUSTER": 3 - parts, "STAGES": 2}
        int4.matmul(many, tiles, rung="14_multicast", **how)
        how = {"TALL": 1, "TOKENS": 64, "BLOCKS": 3, "SHARERS": 2 * parts - 2, "STAGES": 2}
        int4.matmul(many, tiles, rung="13_stream_k", **how)
        how = {"TALL": parts, "TOKENS": 64, "BLOCKS": 8 // parts, "SHARERS": 0, "PARTS": 2, "STAGES": 2}
        int4.matmul(many, tiles, rung="13_stream_k", **how)  # 4 and 2 tiles, in two parts each


def every_trial() -> None:
    """Small kernels with the contestants that they declare, which the gate judges too."""
    from rooflab import ops
    from rooflab.bench import gate
    from rooflab.verify.subjects import subjects

    for operator, rung in ops.rungs():
        if hasattr(ops.module_of(operator), "trials"):
            for subject in subjects(operator, rung.name, "gpu"):
                gate.admit(subject.work)


def every_attention() -> None:
    rng = np.random.default_rng(9)
    hopper = cupy.cuda.Device().compute_capability == "90"

    def values(*shape):
        return cupy.asarray(rng.standard_normal(shape).astype(np.float16))

    for head_dim in (64, 80, 128, 256, 512):
        q, k, v = values(70, 2, head_dim), values(90, 1, head_dim), values(90, 1, head_dim)
        for rung in attention.LADDERS["attention"]:
            widths = attention.HOPPER.get(rung.name, range(attention.WIDEST.get(rung.name, 512) + 1))
            if head_dim not in widths or (rung.name == "8_head_dim_slices" and head_dim % 64):
                continue
            if rung.archs != ("90a",) or hopper:
                attention.attention(q, k, v, rung=rung.name, start=20)
                attention.attention(q, k, k, rung=rung.name, start=20, context=77, window=33)
        length = cupy.asarray(np.array([77], np.int32))
        for rung in attention.decode_rungs(head_dim):
            attention.decode_attention(q[0], k, v, length, rung=rung.name, splits=3)


def every_step() -> None:
    from rooflab import engine, ops
    from rooflab.engine.spec import Spec
    from rooflab.engine.weights import random_tensors
    from rooflab.ops import decoder

    hopper = cupy.cuda.Device().compute_capability == "90"

    def there(matrix):
        if isinstance(matrix, quant.Planes):
            return quant.Planes(*map(cupy.asarray, matrix))
        return cupy.asarray(matrix)

    shape = decoder.Shape(2, 256, 512, 4, 2, 64, 320)
    spec = Spec("tiny", shape, 1e4, True, True)
    for format, head_format in (("fp16", "fp16"), ("q8_0", "q8_0"), ("int4_g128", "fp16")):
        with ops.on("cpu"):
            packed = engine.pack(spec, random_tensors(spec, on="cpu"), format, head_format, capacity=64)
        weights = decoder.Weights(*packed[:2], *map(there, packed[2:]))
        for rung in decoder.LADDERS["decode_step"]:
            if rung.archs == ("90a",) and not hopper:
                continue
            state = decoder.state_for(shape, 64, 5, lambda size, dtype: cupy.zeros(size, dtype))
            state.candidates[...] = cupy.asarray(decoder.candidates(3, 5))
            state.position[...] = 40  # of a cache in parts
            for _ in range(2):  # STAGES: synccheck follows only so many barriers
                decoder.step(shape, weights, state, steps=2, rung=rung.name, WARPS=4, STAGES=3)
            assert int(state.position[0]) == 44


def every_prompt() -> None:
    from rooflab.ops import prompt_products

    rng = np.random.default_rng(10)
    for n, k, batch in ((144, 128, 5), (272, 256, 70), (256, 256, 300)):
        values = (rng.standard_normal(s).astype(np.float16) for s in ((n, k), (batch, k)))
        halves, x = map(cupy.asarray, values)
        for w in (q8_0.quantise(halves), halves):
            many = prompt_products.TOKENS[prompt_products.rung_for(w).name]
            for tokens in many[::3] if cupy.cuda.Device().compute_capability == "90" else ():
                for width, gated in ((n, False), (n // 2, True)):
                    out = cupy.asarray(np.zeros((batch, width), np.float16))
                    prompt_products.prompt_product(x, w, out=out, gate=gated, TOKENS=tokens)


def every_draft() -> None:
    from rooflab.ops import batch_ops

    rng = np.random.default_rng(12)

    def values(*shape):
        return cupy.asarray(rng.standard_normal(shape).astype(np.float16))

    turns, places = (cupy.asarray(a) for a in (rotary.rotations(40, 16, 1e4), np.array([3], np.int32)))
    for n, k, batch in ((128, 384, 3), (256, 1024, 12), (192, 512, 31)):
        caches = [cupy.asarray(np.zeros((3 + batch, 2, 16), np.float16)) for _ in range(2)]
        to = batch_ops.Heads(values(n), turns, places, *caches)
        codes = map(cupy.asarray, quant.quantise_int4(rng.standard_normal((n, k)).astype(np.float32)))
        for w in (values(n, k), q8_0.quantise(values(n, k)), int4.repack(*codes)):
            queries = values(batch, n // 16 - 4, 16)
            batch_ops.product(values(batch, k), w, out=queries, then=batch_ops.ROPE, heads=to)
            every_norm(n, k, batch, w, values)
    for heads, kv_heads, head_dim, length, splits in ((12, 2, 128, 301, 1), (18, 2, 64, 77, 3)):
        q, cache = values(7, heads, head_dim), values(320, kv_heads, head_dim)
        seen = cupy.asarray(np.array([length], np.int32))
        workspace = attention.workspace_for(q.reshape(-1, head_dim), splits)
        batch_ops.attention(q, cache, cache, seen, out=values(*q.shape), workspace=workspace)


def every_norm(n: int, k: int, batch: int, w, values) -> None:
    """A product that completes the residual, alone and in clusters."""
    from rooflab.ops import batch_ops, stream_k

    known = dict(stream_k.CLUSTERS)
    for splits in (1, 2, 4):
        stream_k.CLUSTERS.clear()
        stream_k.CLUSTERS[splits] = known[splits]
        batch_ops.plan_for.cache_clear()
        residual, x = cupy.asarray(values(batch, n), np.float32), cupy.empty((batch, n), np.float16)
        roots = cupy.empty((batch, 2), np.float32)
        batch_ops.rmsnorm(residual, values(n), out=x, left=roots)
        places = batch_ops.left_by(n, k, batch, batch_ops.format_of(w), "90", batch_ops.sms_of(x))
        left = cupy.empty((batch, places), np.float32)
        norm = batch_ops.Norm(1e-6, roots, values(n), x, left)
        batch_ops.product(values(batch, k), w, out=residual, then=batch_ops.RESIDUAL, norm=norm)
        if n % 128 == 0:
            head = values(64, n)
            out = cupy.empty((batch, 64), np.float16)
            batch_ops.product(x, head, out=out, norm=batch_ops.Norm(1e-6, left))
    stream_k.CLUSTERS.clear()
    stream_k.CLUSTERS.update(known)
    batch_ops.plan_for.cache_clear()


def planted(name: str) -> None:
    function = nvrtc.Function(nvrtc.compile_source(FAULTS[name], arch="90"), "fault")
    n = 33 if name == "overrun" else 64
    x = cupy.asarray(np.zeros(n, np.float32))
    function.launch(1, 64, [x, ctypes.c_int(n)])


if __name__ == "__main__":
    families = {
        "stream": every_rung,
        "gemv": every_gemv,
        "q8_0": every_q8,
        "int4": every_int4,
        "attention": every_attention,
        "trials": every_trial,
        "decode_step": every_step,
        "prompt": every_prompt,
        "drafts": every_draft,
    }
    families.get(sys.argv[1], lambda: planted(sys.argv[1]))()
    cupy.cuda.runtime.deviceSynchronize()
