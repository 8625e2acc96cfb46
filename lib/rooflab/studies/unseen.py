"""Study `unseen` (lesson 07): shapes that are drawn, not listed, against the strongest peers.

A seed draws the shapes of a recording; the cases' options name it. Another seed gives other shapes, so
that a kernel or a dispatcher which holds only where it was tuned is found out. The shapes of the committed
recording are those of SEED, which no tuning had used when they were recorded (SINCE says what has since);
those of TUNED were tuned on. Products run every way of their format, so that a choice of the dispatcher that
was wrong can be told from a kernel that is slow.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rooflab.ops import attention as op
from rooflab.records.case import Case, options, parse_options
from rooflab.studies import attention, int4, regimes
from rooflab.studies.base import Sized, Study
from rooflab.studies.borrowing import Borrowing

# Seeds of shapes that kernels and laws were tuned on; of those from 9001 on products alone.
TUNED = (
    *(2611, 3089, 3359, 4157, 4733, 5417, 6173, 6367, 7451, 7583, 8807, 9241),
    *(*range(9001, 9005), *range(9101, 9108), *range(9120, 9128)),
)
SEED = 4893  # the seed of shapes that they are judged by
# What was changed after shapes of SEED were seen, until another seed is recorded; "" where nothing was.
SINCE = ""
# Shapes of each kind, by effort. The committed recording holds INT4 products alone, so "full" asks for those.
COUNTS = {
    "full": {"int4": 10, "product": 8, "attention": 14, "decode_attention": 8},
    "quick": {"int4": 2, "product": 2, "attention": 2, "decode_attention": 2},
}
_OWNERS: dict[str, Study] = {
    "int4": int4.Int4(),
    "product": regimes.Regimes(),
    **dict.fromkeys(("attention", "decode_attention"), attention.Attention()),
}
_MOST_WEIGHTS = 28672 * 8192
_MOST_SCORES = 16384**2 * 16 * 128  # queries x keys x heads x width that float64 judges within seconds
WIDTHS = (64, 80, 96, 128, 192, 256, 512)


def _between(draw: random.Random, low: float, high: float) -> float:
    """A number whose logarithm is as likely anywhere between the two."""
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def products(seed: int, count: int) -> Iterator[tuple[int, int, int]]:
    """Drawn (n, k, tokens): n and k multiples of 128 from 1k to 29k, 1 to 2048 tokens."""
    draw = random.Random(f"products {seed}")
    while count:
        n, k = (128 * round(_between(draw, 1024, 29696) / 128) for _ in range(2))
        tokens = round(_between(draw, 0.5, 2048.5))
        if n * k <= _MOST_WEIGHTS:
            yield n, k, max(1, tokens)
            count -= 1


def prompts(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Drawn shapes of attention: 500 to 20k queries, groups of 1 to 8 query heads, causal or not, with a
    window, or a chunk that starts behind others.
    """
    draw = random.Random(f"attention {seed}")
    while count:
        kv_heads, group = draw.choice((1, 2, 4, 8)), draw.randint(1, 8)
        seq, head_dim = round(_between(draw, 500, 20_000)), draw.choice(WIDTHS)
        kind = draw.choices(("causal", "all", "window", "chunk"), (5, 2, 3, 2))[0]
        window, start = round(_between(draw, 256, 4096)), round(_between(draw, 500, 8000))
        heads = kv_heads * group
        context = seq + start if kind == "chunk" else seq
        too_much = heads > 40 or seq * context * heads * head_dim > _MOST_SCORES
        if too_much or (head_dim > 256 and kind == "window"):
            continue
        count -= 1
        yield {
            "seq": seq,
            "head_dim": head_dim,
            "heads": heads,
            "kv_heads": kv_heads,
            "causal": kind != "all",
            "window": window if kind == "window" else None,
            "options": options(start=start) if kind == "chunk" else "",
        }


def caches(seed: int, count: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Drawn (keys, width, heads) of decode attention: 300 to 60k keys."""
    draw = random.Random(f"decode {seed}")
    for _ in range(count):
        kv_heads, group = draw.choice((2, 4, 8)), draw.randint(1, 8)
        keys, head_dim = round(_between(draw, 300, 60_000)), draw.choice((64, 96, 128, 256))
        yield keys, head_dim, (kv_heads * group, kv_heads)


def drawn(seed: int, counts: dict[str, int], device: Sized | None = None) -> list[Case]:
    """The cases of a seed, as their own studies have them."""
    found: list[Case] = []
    for n, k, tokens in products(seed, counts["int4"]):
        own = int4.chosen(n, k, tokens, device)
        peers = {case.impl: case for case in int4.batches(n, k, (1,), device) if case.kind != "own"}
        names = ("torch.matmul", "humming", int4.TWO_OP)
        found += [own, *(replace(peers[name], batch=tokens) for name in names)]
    for n, k, tokens in products(seed + 1, counts["product"]):
        ways = regimes.products_of((n, k), (tokens,), device)
        found += [case for case in ways if case.format != "int4_g128"]
    for sizes in prompts(seed, counts["attention"]):
        found += _attention(sizes, device)
    for keys, head_dim, heads in caches(seed, counts["decode_attention"]):
        cases = attention.decode(keys, head_dim, heads)
        usual = op.decode_default(head_dim, heads[0] // heads[1])
        own = next(case for case in cases if case.impl == usual)
        found += [own, *(case for case in cases if case.impl.startswith("torch."))]
    return list(dict.fromkeys(found))


def _attention(sizes: dict[str, Any], device: Sized | None) -> list[Case]:
    """The rung that attention takes for a shape, and the libraries' kernels that compute the same."""
    hopper = getattr(device, "has_hopper", True)
    first = op.default_rung(sizes["head_dim"], "90" if hopper else "89")
    common = {"format": "fp16", "state": "burst", **sizes}
    wide, plain = sizes["head_dim"] > 256, not sizes["window"] and not sizes["options"]
    peers = [] if wide else ["flash_attn_4"]
    if plain:
        peers += ["torch.sdpa_efficient", "ffpa"] if wide else ["torch.sdpa_cudnn", "torch.sdpa_flash"]
    impls = [(first, "own"), *((impl, "peer") for impl in peers)]
    return [Case("attention", "attention", impl, kind=kind, **common) for impl, kind in impls]


class Unseen(Borrowing):
    """Lesson 07."""

    name, lesson = "unseen", "07"
    setup_s = 0.6  # each shape has operands of its own
    after = ("regimes",)

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        return [seeded(case, SEED) for case in drawn(SEED, COUNTS[effort], device)]

    def lent(self, case: Case) -> tuple[Study, Case]:
        owner = _OWNERS[case.operator]
        given = {name: value for name, value in parse_options(case.options).items() if name != "seed"}
        return owner, replace(case, study=owner.name, options=options(**given), state="")

    def row(self, case: Case, *measured: Any) -> dict[str, Any]:
        owner, plain = self.lent(case)
        return {**owner.row(replace(plain, state=case.state), *measured), **case.row()}


def seeded(case: Case, seed: int) -> Case:
    """Another study's case as this one's, its seed among the options."""
    return replace(case, study="unseen", options=options(**parse_options(case.options), seed=seed))
