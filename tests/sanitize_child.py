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
    all_reduce,
    attention,
    gemv,
    int4,
    mmq,
    probes,
    q8_0,
    stream,
    stream_k,
    tensor_parallel,
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
        how = {"TALL": 1, "TOKENS": 64, "BLOCKS": 3, "SHARERS": 2 * parts - 2, "STAGES": 2}
        int4.matmul(many, tiles, rung="13_stream_k", **how)


def every_row() -> None:
    from gemma4 import rows_right

    rows_right(cupy.asarray, lambda array: array.get(), "gpu")


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


def every_between() -> None:
    from rooflab.ops import decoder_ops

    rng = np.random.default_rng(10)

    def values(*shape, dtype=np.float16):
        return cupy.asarray(rng.standard_normal(shape).astype(dtype))

    def room(*shape, dtype=np.float16):
        return cupy.asarray(np.zeros(shape, dtype))

    where = cupy.asarray(np.array([2], np.int32))
    for n, width in ((1, 64), (5, 520 // 32 * 32)):
        table, tokens = values(33, width), cupy.asarray(rng.integers(0, 33, n).astype(np.int32))
        history = cupy.asarray(rng.integers(0, 33, (4, n)).astype(np.int32))
        for kind in (table, q8_0.quantise(table) if width % 128 == 0 else table):
            decoder_ops.embedding(kind, tokens, out=room(n, width, dtype=np.float32))
            decoder_ops.embedding(kind, tokens, out=room(n, width, dtype=np.float32), first=n - 1, count=1)
            decoder_ops.embedding(kind, history, out=room(n, width, dtype=np.float32), position=where)
        for rung in ("1_block", "2_in_registers"):
            sums = values(n, width, dtype=np.float32)
            decoder_ops.rmsnorm(sums, values(width), out=room(n, width), rung=rung)
            decoder_ops.rmsnorm(sums, values(width), out=room(n, width), branch=values(n, width), rung=rung)
        rows, turns = values(n, 8 * 32), cupy.asarray(rotary.rotations(16, 32, 1e4))
        queries, biases = room(n, 4, 32), values(8 * 32)
        decoder_ops.rope(rows, biases, turns, queries, room(n, 2, 32), room(n, 2, 32), start=7)
        caches = room(6, n, 2, 32), room(6, n, 2, 32)
        decoder_ops.rope(rows, biases, turns, queries, *caches, position=where)
        decoder_ops.silu_mul(values(n, 2 * 40), out=room(n, 40))
        for inverse_temperature in (0.0, 1.0):
            decoder_ops.sample(values(n, 72), history, where, inverse_temperature=inverse_temperature)
    words = map(cupy.asarray, quant.quantise_int4(rng.standard_normal((128, 256)).astype(np.float32)))
    decoder_ops.dequantise_tiles(int4.repack(*words), out=room(128, 256))
    if cupy.cuda.Device().compute_capability == "90":
        for n, k, batch in ((144, 128, 5), (272, 256, 70), (256, 256, 300)):
            w, x = q8_0.quantise(values(n, k)), values(batch, k)
            for tokens in (64, 176, 232):
                decoder_ops.prompt_product(x, w, out=room(batch, n), TOKENS=tokens)
                decoder_ops.prompt_product(x, w, out=room(batch, n // 2), gate=True, TOKENS=tokens)


def every_batch() -> None:
    from rooflab.ops import attention, batch_choice, batch_ops, decoder

    rng = np.random.default_rng(12)

    def values(*shape, dtype=np.float16):
        return cupy.asarray(rng.standard_normal(shape).astype(dtype))

    def room(*shape, dtype=np.float16):
        return cupy.asarray(np.zeros(shape, dtype))

    for n, k, batch in ((128, 384, 3), (256, 1024, 12), (192, 512, 31)):
        codes = map(cupy.asarray, quant.quantise_int4(rng.standard_normal((n, k)).astype(np.float32)))
        places, x = cupy.asarray(np.array([3, 4], np.int32)), values(batch, k)
        turns = cupy.asarray(rotary.rotations(8, 16, 1e4))
        for w in (values(n, k), q8_0.quantise(values(n, k)), int4.repack(*codes)):
            batch_ops.product(x, w, out=room(batch, n))
            batch_ops.product(x, w, out=room(batch, n // 2), then=batch_ops.GATE)
            splits = batch_ops.parts_of(n, k, batch, batch_ops.format_of(w), batch_ops.sms_of(x))
            parts = room(splits, batch, n, dtype=np.float32)
            batch_ops.product(x, w, out=parts, then=batch_ops.PARTS)
            batch_ops.rmsnorm(values(batch, n, dtype=np.float32), values(n), out=room(batch, n), parts=parts)
            caches = room(6, batch, 2, 16), room(6, batch, 2, 16)
            to = batch_ops.Heads(values(n), turns, places[:1], *caches)
            queries = room(batch, n // 16 - 4, 16)
            batch_ops.product(x, w, out=queries, then=batch_ops.ROPE, heads=to)
            one = to._replace(keys=room(3 + batch, 2, 16), values=room(3 + batch, 2, 16))
            one = one._replace(rotations=cupy.asarray(rotary.rotations(3 + batch, 16, 1e4)))
            batch_ops.product(x, w, out=queries, then=batch_ops.ROPE, heads=one)
        choice = batch_choice.choice_for(batch, 132, lambda shape, dtype: room(*shape, dtype=dtype))
        batch_choice.sample(values(batch, 4808), room(6, batch, dtype=np.int32), places, choice=choice)
    for heads, kv_heads, head_dim, length, splits in ((12, 2, 128, 301, 1), (18, 2, 64, 77, 3)):
        q, cache = values(heads, head_dim), values(320, kv_heads, head_dim)
        seen, workspace = cupy.asarray(np.array([length], np.int32)), attention.workspace_for(q, splits)
        batch_ops.attention(q, cache, cache, seen, out=room(heads, head_dim), workspace=workspace)
        drafts = values(7, heads, head_dim)
        workspace = attention.workspace_for(drafts.reshape(-1, head_dim), splits)
        batch_ops.attention(drafts, cache, cache, seen, out=room(*drafts.shape), workspace=workspace)
    shape = decoder.Shape(1, 64, 64, 1, 1, 64, 4808, 1e-6, 0.0)
    state = decoder.state_for(shape, 16, 132, lambda shape, dtype: room(*shape, dtype=dtype))
    drafts = cupy.zeros(4, np.int32)  # as the candidates, so that some hold
    held, arrived = room(2, dtype=np.int32), room(1, dtype=np.int32)
    chosen, places = cupy.asarray(np.array([0, 0, 5, 0], np.int32)), room(2, dtype=np.int32)
    batch_choice.accept(state, drafts, chosen, values(4, 4808), places, held=held, arrived=arrived)
    assert held.tolist() == [3, 5]


def every_group() -> None:
    """Kernels of several GPUs, whose parts one launch plays, against their sums."""
    rng = np.random.default_rng(12)

    def zeros(shape, dtype):
        return cupy.asarray(np.zeros(shape, dtype))

    for size, n, width in ((2, 3, 1096), (3, 1, 136), (4, 2, 4104)):
        for rung in all_reduce.LADDERS["all_reduce"]:
            group = all_reduce.together(rung.name, n * width, size, zeros)
            x = cupy.asarray(rng.standard_normal((size, n * width)).astype(np.float16))
            for _ in range(3):
                out = all_reduce.all_reduce(x, group, out=zeros((size, n * width), np.float16))
            assert float(cupy.abs(out - x.astype(np.float32).sum(0)).max()) < 0.01
        x = cupy.asarray(rng.standard_normal((size, n, width)).astype(np.float16))
        group = tensor_parallel.together(n, width, size, zeros)
        for _ in range(3):
            out = tensor_parallel.all_gather(x, group, out=zeros((size, n, size * width), np.float16))
        assert (out == cupy.concatenate(list(x), 1)).all()
        group = tensor_parallel.together(n, width, size, zeros)
        parts = cupy.asarray(rng.standard_normal((size, 2, n, width)).astype(np.float32))
        weights = cupy.asarray(np.ones(width, np.float16))
        for _ in range(3):
            residual = zeros((size, n, width), np.float32)
            out = zeros((size, n, width), np.float16)
            tensor_parallel.all_reduce_rmsnorm(residual, weights, group, out=out, parts=parts)
        assert (residual == residual[:1]).all() and (out == out[:1]).all() and not group.lost.any()
        assert float(cupy.abs(residual[0] - parts.sum((0, 1))).max()) < 0.02


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
        "rows": every_row,
        "decode_step": every_step,
        "between": every_between,
        "batch": every_batch,
        "several": every_group,
    }
    families.get(sys.argv[1], lambda: planted(sys.argv[1]))()
    cupy.cuda.runtime.deviceSynchronize()
