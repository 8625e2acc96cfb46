"""Contestants that stream memory: shared by the studies of lessons 00 and 01."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rooflab import ops
from rooflab.bench import gate
from rooflab.ops import stream
from rooflab.records.case import Case
from rooflab.studies import buffers
from rooflab.studies.base import Described, macros_of, tunables
from rooflab.studies.buffers import SEED

# (inputs, outputs)
ARRAYS = {"read": (1, 0), "write": (0, 1), "copy": (1, 1), "triad": (2, 1), "saxpy": (2, 1)}
SCALE = 1.5  # a and s of saxpy and triad


def copies(case: Case) -> int:
    """How many copies of the operands the case rotates over."""
    return buffers.copies(case, 4 * (case.n or 0) * sum(ARRAYS[case.operator]))


def shared_bytes(case: Case) -> int:
    """Bytes that contestants of the case's group share: inputs, and the float64 temporaries of the oracle."""
    n, (inputs, _) = case.n or 0, ARRAYS[case.operator]
    floats = case.operator in ("triad", "saxpy")
    return 4 * n * inputs * copies(case) + (32 * n if floats else 4 * n)


def own_rung(case: Case) -> Described:
    """Rung, macros and launch rule of an own streaming case."""
    rung = ops.rung_of(stream.LADDERS[case.operator], case.impl, "")
    macros = macros_of(case, "blocks")
    if case.operator == "saxpy" and case.clock == "graph_pdl":
        macros.setdefault("DEPENDENT", 1)
    return rung, rung.with_defaults(macros), stream.launch_rule(rung)


def contestants(cases: Sequence[Case]) -> list[gate.Work]:
    """Contestants of one operator and one length, on shared inputs; outputs are each contestant's own."""
    cupy = ops.arrays()
    first = cases[0]
    n, count = first.n or 0, copies(first)
    floats = first.operator in ("triad", "saxpy")
    inputs_each, outputs_each = ARRAYS[first.operator]
    generator = cupy.random.default_rng(SEED)

    def fresh() -> Any:
        if floats:  # non-zero mean, so that a dropped element shows
            return generator.standard_normal(n, dtype=cupy.float32) + cupy.float32(0.5)
        return generator.integers(0, 1 << 32, n, dtype=cupy.uint32)

    originals = [fresh() for _ in range(inputs_each)]
    inputs = [originals, *([array.copy() for array in originals] for _ in range(count - 1))]
    works = []
    for case in cases:
        dtype = cupy.float32 if floats else cupy.uint32
        # A contestant of `read` brings its own outputs (its partial sums); the others write n elements.
        outputs = [[cupy.empty(n, dtype) for _ in range(outputs_each)] for _ in range(count)]
        works.append(_work(case, inputs, outputs))
    return works


def _work(case: Case, inputs: list[list[Any]], outputs: list[list[Any]]) -> gate.Work:
    launch, result = _launcher(case, inputs, outputs)
    return gate.Work(
        name=case.id,
        launch=launch,
        inputs=inputs,
        outputs=outputs,
        oracle=lambda: _oracle(case, inputs[0]),
        budget=_budget(case, inputs[0]),
        result=result or (lambda arrays: arrays[0]),
    )


def _oracle(case: Case, operands: list[Any]) -> Any:
    """Expected result: exact integers, or float64 for the two with arithmetic."""
    cupy = ops.arrays()
    if case.operator == "read":
        return cupy.asarray([int(operands[0].sum(dtype=cupy.uint64)) % (1 << 32)], dtype=cupy.uint64)
    if case.operator == "copy":
        return operands[0]
    if case.operator == "write":
        return cupy.arange(case.n, dtype=cupy.uint32) ^ cupy.uint32(SEED)
    x, y = (array.astype(cupy.float64) for array in _terms(case, operands))
    return SCALE * x + y


def _terms(case: Case, operands: list[Any]) -> tuple[Any, Any]:
    """(scaled, added) operand: saxpy is a x + y, triad is b + s c."""
    return (operands[0], operands[1]) if case.operator == "saxpy" else (operands[1], operands[0])


def _budget(case: Case, operands: list[Any]) -> float:
    cupy = ops.arrays()
    if case.operator not in ("saxpy", "triad"):
        return 0.0
    expected = _oracle(case, operands)
    x, y = _terms(case, operands)
    baseline = cupy.float32(SCALE) * x + y  # the same dtype, two roundings
    return gate.error_budget(float(cupy.abs(baseline - expected).max()), expected, "float32")


def _wrapped_sum(arrays: Sequence[Any]) -> Any:
    """Partial sums to the one number that `read` is judged by, modulo 2^32."""
    cupy = ops.arrays()
    total = arrays[0].astype(cupy.uint64).sum(keepdims=True) if arrays[0].ndim else arrays[0].reshape(1)
    return total.astype(cupy.uint64) % cupy.uint64(1 << 32)


def _launcher(
    case: Case, inputs: list[list[Any]], outputs: list[list[Any]]
) -> tuple[Callable[[int], None], Callable[[Sequence[Any]], Any] | None]:
    if case.kind == "own":
        return _own_launcher(case, inputs, outputs)
    return _PEERS[case.impl](case, inputs, outputs)


def _own_launcher(
    case: Case, inputs: list[list[Any]], outputs: list[list[Any]]
) -> tuple[Callable[[int], None], Callable[[Sequence[Any]], Any] | None]:
    rung, macros, _ = own_rung(case)
    more: dict[str, Any] = {"rung": rung.name, "blocks": tunables(case).get("blocks"), **macros}
    if case.operator == "read":
        grid = stream.blocks_of(rung, case.n or 0, macros, more["blocks"])
        for arrays in outputs:
            arrays.append(ops.arrays().empty(grid, "uint32"))
        return lambda i: stream.read(inputs[i][0], partial=outputs[i][0], **more), _wrapped_sum
    if case.operator == "copy":
        return lambda i: stream.copy(inputs[i][0], out=outputs[i][0], **more), None
    if case.operator == "write":
        return lambda i: stream.write(outputs[i][0], SEED, **more), None
    if case.operator == "triad":
        return lambda i: stream.triad(inputs[i][0], inputs[i][1], SCALE, out=outputs[i][0], **more), None
    # The launch attribute; the macro alone only compiles the instructions in.
    more |= {"dependent": case.clock == "graph_pdl"}
    del more["blocks"]
    return lambda i: stream.saxpy(SCALE, inputs[i][0], inputs[i][1], out=outputs[i][0], **more), None


# --- peers and baselines ------------------------------------------------------------------------------------


def _runtime_memcpy(case: Case, inputs: list[list[Any]], outputs: list[list[Any]]) -> tuple:
    import cupy

    size, to_device = 4 * (case.n or 0), cupy.cuda.runtime.memcpyDeviceToDevice

    def launch(i: int) -> None:
        cupy.cuda.runtime.memcpyAsync(
            outputs[i][0].data.ptr, inputs[i][0].data.ptr, size, to_device, ops.nvrtc.current_stream()
        )

    return launch, None


def _torch_copy(case: Case, inputs: list[list[Any]], outputs: list[list[Any]]) -> tuple:
    import torch

    dtype = getattr(torch, case.format)
    pairs = [
        (torch.from_dlpack(x[0].view("int32")).view(dtype), torch.from_dlpack(y[0].view("int32")).view(dtype))
        for x, y in zip(inputs, outputs, strict=True)
    ]
    return lambda i: pairs[i][1].copy_(pairs[i][0]), None


def _torch_sum(case: Case, inputs: list[list[Any]], outputs: list[list[Any]]) -> tuple:
    import cupy
    import torch

    sources = [torch.from_dlpack(x[0].view("int32")) for x in inputs]
    for arrays in outputs:
        arrays.append(cupy.empty((), cupy.int64))
    totals = [torch.from_dlpack(arrays[0]) for arrays in outputs]

    def launch(i: int) -> None:
        torch.sum(sources[i], dim=0, dtype=torch.int64, out=totals[i])

    def result(arrays: Sequence[Any]) -> Any:
        return (arrays[0].reshape(1) % (1 << 32)).astype(cupy.uint64)

    return launch, result


def _torch_fill(case: Case, inputs: list[list[Any]], outputs: list[list[Any]]) -> tuple:
    import cupy
    import torch

    targets = [torch.from_dlpack(arrays[0].view("int32")) for arrays in outputs]
    ramp = cupy.arange(case.n, dtype=cupy.uint32) ^ cupy.uint32(SEED)

    def result(arrays: Sequence[Any]) -> Any:
        # fill_ writes one value; adding the ramp makes it the operator's expected output, word for word.
        return (arrays[0] ^ cupy.uint32(SEED & 0x7FFFFFFF)) ^ ramp

    return lambda i: targets[i].fill_(SEED & 0x7FFFFFFF), result


def _torch_saxpy(case: Case, inputs: list[list[Any]], outputs: list[list[Any]]) -> tuple:
    import torch

    x, y = ([torch.from_dlpack(arrays[k]) for arrays in inputs] for k in (0, 1))
    z = [torch.from_dlpack(arrays[0]) for arrays in outputs]
    if case.operator == "triad":
        x, y = y, x
    return lambda i: torch.add(y[i], x[i], alpha=SCALE, out=z[i]), None


_PEERS: dict[str, Callable[..., tuple]] = {
    "cudaMemcpyAsync": _runtime_memcpy,
    "torch.copy_": _torch_copy,
    "torch.sum": _torch_sum,
    "torch.fill_": _torch_fill,
    "torch.add": _torch_saxpy,
}
