"""Square matrix products by torch (cuBLAS, cuBLASLt): the measured peaks of FP32 and of the tensor cores.

Random data: on zeros the same product runs over a tenth faster, because the chip stays under its power limit.
"""

from __future__ import annotations

from typing import Any

from rooflab.bench import gate
from rooflab.hardware import roofline
from rooflab.records.case import Case
from rooflab.studies.base import Count
from rooflab.studies.buffers import SEED

PRODUCTS = {
    "float32": "torch.matmul",
    "tf32": "torch.matmul",
    "float16": "torch.matmul",
    "bfloat16": "torch.matmul",
    "int8": "torch._int_mm",
    "float8_e4m3fn": "torch._scaled_mm",
}
# The least compute capability that multiplies the format on its matrix units (FP32: any).
CAPABILITY = {"float32": 0, "tf32": 80, "float16": 70, "bfloat16": 80, "int8": 75, "float8_e4m3fn": 89}
_ROOF = {
    "float32": "fp32",
    "tf32": "tf32_tensor",
    "float16": "fp16_tensor",
    "bfloat16": "bf16_tensor",
    "int8": "int8_tensor",
    "float8_e4m3fn": "fp8_tensor",
}
_SIZE = {"float32": (4, 4), "tf32": (4, 4), "float16": (2, 2), "bfloat16": (2, 2), "int8": (1, 4)}


def _sizes(form: str) -> tuple[int, int]:
    """Bytes of an operand's and of a result's element."""
    return _SIZE.get(form, (1, 2))


def memory_bytes(case: Case) -> int:
    """Operands, result, and the float64 copies the oracle takes."""
    n = case.n or 0
    operand, result = _sizes(case.format)
    return n * n * (2 * operand + result + 4 * 8)


def count(case: Case) -> Count:
    """2 n^3 operations; every matrix moved once."""
    n, k, m = case.matrix
    operand, result = _sizes(case.format)
    moved = roofline.gemm_bytes(m, n, k, operand, operand, result)
    return Count(int(moved), roofline.gemm_flops(m, n, k), _ROOF[case.format])


def contestant(case: Case) -> gate.Work:
    """out [m, n] = a [m, k] b [n, k]^T on random data, judged against the float64 product of the same
    operands.
    """
    import torch

    n, k, m = case.matrix
    generator = torch.Generator("cuda").manual_seed(SEED)
    a, b = (_operand(case.format, rows, k, generator) for rows in (m, n))
    out = torch.empty((m, n), device="cuda", dtype=_result_type(case.format))
    exact = _as_float64(a) @ _as_float64(b).T
    # The baseline of the error budget: the same product summed in the opposite order of k, for TF32 and FP8
    # on the tensor cores too, whose accumulators are narrower than float32. Integers have no error.
    baseline = _product(case.format, _reversed(a), _reversed(b)).to(out.dtype)
    budget = 0.0
    if case.format != "int8":
        error = float((baseline.double() - exact).abs().max())
        ulp = torch.finfo(out.dtype).eps * float(exact.abs().max())
        budget = max(2 * error, ulp)
    expected = _native(exact.to(torch.int32) if case.format == "int8" else exact)
    del baseline, exact
    one = torch.ones((), device="cuda")

    def launch(_: int) -> None:
        if case.format == "int8":
            torch._int_mm(a, b.t(), out=out)
        elif case.format == "float8_e4m3fn":
            torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, out=out)
        else:
            torch.backends.cuda.matmul.allow_tf32 = case.format == "tf32"
            torch.matmul(a, b.t(), out=out)
            torch.backends.cuda.matmul.allow_tf32 = False

    inputs = [a.view(torch.uint8), b.view(torch.uint8)] if case.format == "float8_e4m3fn" else [a, b]
    return gate.Work(case.id, launch, [inputs], [[out]], lambda: expected, budget)


def _reversed(x: Any) -> Any:
    """x with its columns in opposite order; FP8, which torch cannot flip, by way of its bytes."""
    import torch

    return x.view(torch.uint8).flip(1).view(x.dtype) if x.element_size() == 1 else x.flip(1)


def _product(form: str, a: Any, b: Any) -> Any:
    """a b^T in float32: by the tensor cores for TF32 and FP8, by float32 arithmetic for the others."""
    import torch

    if form == "float8_e4m3fn":
        one = torch.ones((), device="cuda")
        a, b = a.contiguous(), b.contiguous()
        return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = form == "tf32"
    product = a.to(torch.float32) @ b.to(torch.float32).T
    torch.backends.cuda.matmul.allow_tf32 = False
    return product


def _operand(form: str, rows: int, k: int, generator: Any) -> Any:
    import torch

    if form == "int8":
        return torch.randint(-127, 128, (rows, k), device="cuda", dtype=torch.int8, generator=generator)
    values = torch.randn((rows, k), device="cuda", generator=generator)
    if form == "tf32":  # rounded to what the tensor core keeps, so that the oracle sees the same operands
        return (values.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return values.to(torch.float32 if form == "float32" else getattr(torch, form))


def _result_type(form: str) -> Any:
    import torch

    named = {"tf32": torch.float32, "int8": torch.int32, "float8_e4m3fn": torch.bfloat16}
    return named.get(form) or getattr(torch, form)


def _as_float64(x: Any) -> Any:
    import torch

    return x.to(torch.float32).double()  # by way of float32, which every type converts to


def _native(x: Any) -> Any:
    import cupy

    return cupy.from_dlpack(x)
