"""Checkers of lesson 05's exercises: blocks, words, rows, fragments, issue slots, a dispatcher."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rooflab.exercises import Wrong, called, checker
from rooflab.exercises import build_05 as build_05  # registers the guided build, 05.a to 05.e
from rooflab.exercises.kernels import Trial, kernel_task, most_sectors
from rooflab.exercises.worth import gain
from rooflab.hardware import device
from rooflab.numerics import quant
from rooflab.studies import mmq, q8_0


def _matrix(n: int, k: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)


@checker("05.1")
def _element(element: Callable[..., Any]) -> str:
    """element(row, i): the i-th number of a row of Q8_0 blocks, given as bytes."""
    row = quant.quantise_q8_0(_matrix(1, 4 * 32, 5) * np.repeat([1, 30, 0.01, 1], 32))[0]
    raw, values = quant.to_bytes(row), quant.dequantise_q8(row)
    for i in (0, 1, 31, 32, 77, 95, 96, 127):
        got, right = float(called(element, raw.copy(), i)), float(values[i])
        if math.isclose(got, right, rel_tol=1e-6):
            continue
        block, place = divmod(i, 32)
        scale, byte = float(row["d"][block]), int(raw[34 * block + 2 + place])
        turned = float(row["d"][block : block + 1].view("u2").byteswap().view("f2")[0])
        if math.isclose(got, scale * byte, rel_tol=1e-6):
            raise Wrong(f"element {i} is {right:.4g}, not {got:.4g}: a quant is signed, its byte is {byte}.")
        if math.isclose(got, byte - 256 * (byte > 127), rel_tol=1e-6):
            raise Wrong(f"element {i} is {right:.4g}; {got:g} is its quant, not yet scaled.")
        if math.isclose(abs(got), abs(turned * (byte - 256 * (byte > 127))), rel_tol=1e-3):
            raise Wrong(f"element {i} is {right:.4g}, not {got:.4g}: the lower byte of a scale comes first.")
        if block and math.isclose(got, float(values[place]), rel_tol=1e-6):
            raise Wrong(f"element {i} is {right:.4g}; {got:.4g} is element {place}, of the first block.")
        raise Wrong(f"element {i} is {right:.4g}, not {got:.4g}. Where does block {block} start?")
    return "34 bytes a block: its scale, then 32 quants."


MISALIGNED = """\
extern "C" __global__ void dots(const unsigned char* w, const unsigned char* x, int* out, int blocks) {
    const int b = blockIdx.x * 64 + threadIdx.x;
    if (b >= blocks) return;
    const int* wq = (const int*)(w + 34 * b + 2);  // the quants of a Q8_0 block
    const int* xq = (const int*)(x + 36 * b + 4);  // the quants of a Q8_1 block
    int dot = 0;
    for (int i = 0; i < 8; ++i) dot = __dp4a(wq[i], xq[i], dot);
    out[b] = dot;
}
"""


@kernel_task(
    "05.2",
    entry="dots",
    starter=MISALIGNED,
    right="whole numbers, exact, and every load starts where a load of its width may.",
)
def _dots() -> Iterator[Trial]:
    """The integer dot products of Q8_0 and Q8_1 blocks, a thread a block."""
    for count in (64, 77):
        w = quant.quantise_q8_0(_matrix(count, 32, count))[:, 0]
        x = quant.quantise_q8_1(_matrix(count, 32, count + 1))[:, 0]
        right = (w["q"].astype(np.int32) * x["q"]).sum(axis=1, dtype=np.int32)
        arguments = [quant.to_bytes(w), quant.to_bytes(x), np.empty(count, np.int32), ctypes.c_int(count)]
        yield Trial(f"{count} blocks", -(-count // 64), 64, arguments, {2: right})


@kernel_task(
    "05.3",
    entry="embed",
    targets=[most_sectors("out", 4, "store")],
    right="every token's row by one launch.",
    worth=lambda: gain(
        "q8_0", [case for case in q8_0.embeddings() if case.clock == "graph"], "1_token", "2_batched"
    ),
)
def _embed() -> Iterator[Trial]:
    """Rows of a Q8_0 table for several tokens: blocks (tokens, tiles of 64 numbers)."""
    for k, tokens in ((128, (3, 0, 3, 8)), (96, (8, 1)), (32, (5,))):
        table = quant.quantise_q8_0(_matrix(9, k, k))
        out = np.empty((len(tokens), k), np.float32)
        chosen = np.array(tokens, np.int32)
        arguments = [quant.to_bytes(table), chosen, out, ctypes.c_int(k)]
        grid = (len(tokens), -(-k // 64))
        yield Trial(
            f"{len(tokens)} tokens, k = {k}", grid, 64, arguments, {2: quant.dequantise_q8(table)[chosen]}
        )


@checker("05.4")
def _blocks(blocks: Callable[..., Any]) -> str:
    """blocks(n, k): thread blocks of 256 that cover n k elements, None beyond what 31 bits count."""
    for n, k in (
        (8192, 8192),
        (1, 32),
        (3, 33),
        (32768, 65536),
        (65535, 32768),
        (65536, 65536),
        (32769, 65536),
    ):
        fits = n * k <= 2**31 - 1
        right = -(-n * k // 256) if fits else None
        got = blocks(n, k)
        if got is ...:
            raise NotImplementedError  # `called` would take None, an answer here, for an open one too
        if got == right:
            continue
        if fits:
            raise Wrong(f"{n} × {k} elements fit and need {right} blocks, not {got}.")
        wrapped = (n * k + 2**31) % 2**32 - 2**31
        if got == -(-wrapped // 256):
            raise Wrong(
                f"{n} × {k} elements are {n * k:,}, which an int turns into {wrapped:,}: you launch {got:,} "
                "blocks. Look before the cast; afterwards there is nothing left to see."
            )
        raise Wrong(f"{n} × {k} elements are {n * k:,}, more than 2^31 - 1; the answer is None, not {got:,}.")
    return "the product is looked at while it is still whole."


@checker("05.5")
def _owner(owner: Callable[..., Any]) -> str:
    """owner(row, token): lane and register that hold a result of mma.m16n8k32."""
    for row in range(16):
        for token in range(8):
            right = (row % 8 * 4 + token // 2, row // 8 * 2 + token % 2)
            got = tuple(int(part) for part in called(owner, row, token))
            if got == right:
                continue
            where = f"row {row}, token {token}"
            if got == (right[0], right[1] % 2 * 2 + right[1] // 2):
                raise Wrong(f"{where}: the lane is right, but a register's neighbour is the next token.")
            if got[0] == right[0]:
                raise Wrong(f"{where} is in lane {right[0]}, as you say, but not in register {got[1]}.")
            raise Wrong(f"{where} is not in lane {got[0]}; the first eight rows take four lanes each.")
    return "four results a lane, and each needs two scales."


@checker("05.6")
def _bound(bound: Callable[..., Any]) -> str:
    """bound(int8_tops, sums, lanes, instructions): TOP/s of an int8 product whose blocks of 32 are scaled."""
    for name, instructions in (("h200", 3), ("h200", 2), ("rtx-4090", 3), ("rtx-4090", 2), ("t4", 3)):
        chip = device.get(name)
        lanes, sums = mmq.per_cycle(chip)
        right = mmq.issue_bound(chip, instructions)
        got = float(called(bound, chip.int8_tensor, sums, lanes, instructions))
        if math.isclose(got, right, rel_tol=1e-6):
            continue
        where = f"the {chip.name} with {instructions} instructions"
        if got > chip.int8_tensor:
            raise Wrong(
                f"for {where} you get {got:,.0f} TOP/s, more than its tensor cores' {chip.int8_tensor:,.0f}."
            )
        if math.isclose(got, chip.int8_tensor / instructions, rel_tol=1e-6):
            raise Wrong(f"for {where} you get {got:,.0f}: how many lanes are there for each sum?")
        raise Wrong(f"for {where} you get {got:,.1f} TOP/s, not {right:,.0f}.")
    return "one line of arithmetic says which unit a chip should use."


@checker("05.7")
def _choose(choose: Callable[..., Any]) -> str:
    """choose(times): from {name: {tokens: us}} the list of (first number of tokens, fastest name)."""
    cases: list[tuple[dict[str, dict[int, float]], list[tuple[int, str]]]] = [
        ({"a": {1: 2.0, 8: 2.0, 32: 9.0}, "b": {1: 5.0, 8: 5.0, 32: 5.0}}, [(1, "a"), (32, "b")]),
        ({"a": {8: 2.0, 1: 1.0}, "b": {32: 5.0, 8: 5.0}}, [(1, "a"), (32, "b")]),
        ({"b": {1: 9.0, 2: 1.0, 4: 9.0}, "a": {1: 3.0, 2: 3.0, 4: 3.0}}, [(1, "a"), (2, "b"), (4, "a")]),
        ({"only": {16: 4.0, 64: 8.0}}, [(16, "only")]),
    ]
    for times, right in cases:
        got = [tuple(pair) for pair in called(choose, {name: dict(us) for name, us in times.items()})]
        if got == right:
            continue
        changes = [got[0], *(b for a, b in itertools.pairwise(got) if a[1] != b[1])] if got else []
        if len(got) > len(right) and changes == right:
            raise Wrong(f"for {times} you name {len(got)} ranges; neighbours with one choice are one range.")
        if sorted(got) == right:
            raise Wrong(f"for {times} the ranges are right and out of order: fewest tokens first.")
        raise Wrong(f"for {times} you choose {got}.")
    return "a dispatcher is a table, and the table comes from the clock."
