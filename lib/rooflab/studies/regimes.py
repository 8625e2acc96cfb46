"""Study `regimes` (lesson 07): every way of multiplying, over numbers of tokens, by three clocks.

A case's impl is a way (rooflab.hardware.perf_model.STRATEGIES), so that a recording of this study is the
dispatcher's table of
its GPU. The source's two shapes run at every number of tokens by the graph, event and wall clocks; the
projections of four model families at a few by the graph clock, one or two of a family by all three. All
contestants of one shape, number of tokens and clock take turns in one process, cold, each judged in float64
on the operands it is given. Activations come in FP16: a way that wants them quantised does so in its own
time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from rooflab import dispatch, ops
from rooflab.bench import gate
from rooflab.hardware import perf_model, roofline
from rooflab.hardware.perf_model import Strategy, strategy
from rooflab.numerics import model_shapes
from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.ops import int4, q8_0, strategies
from rooflab.records.case import Case, options
from rooflab.records.fingerprint import source_of_callable
from rooflab.studies import buffers, int4_work, products, q8_0_operands
from rooflab.studies import int4 as int4_study
from rooflab.studies import mmq as mmq_study
from rooflab.studies import q8_0 as q8_study
from rooflab.studies.base import Context, Count, Described, Sized, Study, turn

SOURCE = ((8960, 1536), (1536, 1536))  # (n, k) of the source's sweep: an MLP's and an attention projection
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CLOCKS = ("graph", "event", "wall")
FAMILIES = ("qwen2.5-1.5b", "llama-3-8b", "mistral-7b", "phi-3-mini")
TOKENS = (1, 4, 16, 64, 256)  # of the families' projections
CLOCKED = ((4096, 4096), (14336, 4096), (16384, 3072))  # Llama's and Mistral's, and Phi's, by all clocks
TINY = 1 << 20  # weights of a matrix that so many cold copies exist of that two numbers of tokens must do
# Tokens from which a way may win.
_LEAST = {
    **{("q8_0", "mma"): 2, ("q8_0", "mmq"): 8, ("q8_0", "mmq_wgmma"): 64},
    **dict.fromkeys((("q8_0", "mmq_fp16_wgmma"), ("q8_0", "mmq_tiles")), 8),
}
_AS_GIVEN = ("mmq_fp16_wgmma", "mmq_tiles")  # ways of Q8_0 that take activations as they are
# Ways for weights held in another order: measured on the source's shapes by the graph clock alone, so that
# predictions know them. The source's own loop over tokens is the study int4's.
_OTHER_ORDERS = {("int4_g128", "fused_rows"): (1, 8), ("q8_0", "mmq_blocks"): (64, 256)}


def shapes_of(models: Sequence[str] = FAMILIES) -> list[tuple[int, int]]:
    """The distinct projections (n, k) of these models, output heads aside, smallest first."""
    found = {
        (p.n, p.k)
        for model in models
        for p in model_shapes.projections(model_shapes.get(model))
        if p.name != "lm_head"
    }
    return sorted(found, key=lambda shape: (shape[0] * shape[1], shape))


def contenders(batch: int, every_order: bool = False) -> list[Strategy]:
    """The ways worth measuring at so many tokens; `every_order` adds those of weights in file order."""
    found = []
    for how in perf_model.STRATEGIES:
        key = (how.format, how.name)
        if key in _OTHER_ORDERS:
            low, high = _OTHER_ORDERS[key]
            wanted = every_order and low <= batch <= high
        else:
            wanted = how.name != "loop" and _LEAST.get(key, 1) <= batch <= dispatch.most_tokens(how)
        found += [how] * wanted
    return found


def _case(how: Strategy, n: int, k: int, batch: int, slug: str | None, clock: str) -> Case:
    kind, more = "baseline" if how.plain else "own", ""
    if how.format == "int4_g128" and how.name.startswith("fused"):
        # Which rung, and how built, depends on the device: the case names it, so that a row says what ran.
        found = dispatch.rung_for(how, n, k, batch, slug)
        assert found is not None
        tuned = {name.lower(): value for name, value in found[1].items()}
        more = options(rung=found[0].name, **tuned)
    named, state = ("regimes", "product", how.name, kind, how.format), "burst" if clock == "graph" else ""
    return Case(*named, n=n, k=k, batch=batch, options=more, clock=clock, state=state)


def products_of(
    shape: tuple[int, int],
    batches: Iterable[int],
    device: Sized | None = None,
    clocks: Sequence[str] = ("graph",),
) -> list[Case]:
    """Every contender on one shape, on `device` (default: the H200)."""
    slug = int4_study.table_of(device)
    return [
        _case(how, *shape, batch, slug, clock)
        for batch in batches
        for clock in clocks
        for how in contenders(batch, clock == "graph" and shape in SOURCE)
        if shape[1] % strategies.multiple_of(how) == 0
    ]


def own_rung(case: Case) -> Described:
    """Rung, macros and launch rule of an own case, its quantiser's among them."""
    n, k, batch = case.matrix
    if case.options:  # the dispatcher's choice of that device
        words = dict(word.split("=") for word in case.options.split())
        name = words.pop("rung")
        rung = ops.rung_of(int4.LADDERS["int4"], name, name)
        macros = rung.with_defaults({macro.upper(): int(value) for macro, value in words.items()})
    else:
        found = dispatch.rung_for(strategy(case.format, case.impl), n, k, batch, None)
        assert found is not None, case.id
        rung, macros = found
    rule = str(ops.module_of(rung.operator).launch_rule(rung))
    if case.format == "q8_0" and case.impl not in _AS_GIVEN:
        rule += q8_0_operands.quantiser_rule()
    return rung, dict(macros), rule + source_of_callable(strategies.RUN[case.format, case.impl])


class Regimes(Study):
    """Lesson 07."""

    name, lesson = "regimes", "07"
    setup_s = 0.09  # operands are shared by all clocks of a shape

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        if effort == "quick":
            return [case for shape in SOURCE for case in products_of(shape, (1, 4, 16, 64), device)]
        found = [case for shape in SOURCE for case in products_of(shape, BATCHES, device, CLOCKS)]
        for n, k in shapes_of():
            tokens = TOKENS[::4] if n * k < TINY else TOKENS
            clocks = CLOCKS if (n, k) in CLOCKED else CLOCKS[:1]
            found += products_of((n, k), tokens, device, clocks) if (n, k) not in SOURCE else []
        return found

    def needs(self, case: Case) -> str | None:
        return "torch" if case.kind == "baseline" else None

    def refuses(self, case: Case, capability: int) -> str | None:
        how = strategy(case.format, case.impl)
        sizes = case.matrix
        return dispatch.refusal(how, *sizes, str(capability), dispatch.here()[0]) or super().refuses(
            case, capability
        )

    def samples(self, case: Case) -> int:
        return super().samples(case) if case.clock == "graph" else 40

    def group(self, case: Case) -> tuple:
        return (case.n, case.k, case.batch, case.cache, turn(case))

    def _weights(self, case: Case) -> int:
        return int((case.n or 0) * (case.k or 0) * WEIGHT_BYTES[case.format])

    def memory_bytes(self, case: Case) -> int:
        n, k, batch = case.matrix
        count = buffers.copies(case, self._weights(case))
        return count * (self._weights(case) + 2 * batch * (n + k)) + 2 * n * k

    def shared_bytes(self, case: Case) -> int:
        n, k, batch = case.matrix
        return 24 * n * k + 40 * batch * (n + k)

    def count(self, case: Case) -> Count:
        n, k, batch = case.matrix
        moved = int(roofline.gemm_bytes(batch, n, k, WEIGHT_BYTES[case.format]))
        return Count(moved, roofline.gemm_flops(batch, n, k), "dram_read" if case.clock == "graph" else "")

    def predict(self, case: Case, context: Context) -> float | None:
        if context.device is None:
            return None
        how, sizes = strategy(case.format, case.impl), case.matrix
        return perf_model.bound(how, *sizes, perf_model.datasheet(context.device)).us

    def row(self, case: Case, *rest: Any) -> dict[str, Any]:
        sizes = case.matrix
        moved = perf_model.moved(strategy(case.format, case.impl), *sizes)
        return {**super().row(case, *rest), "predicted_bytes": int(moved)}

    def rung(self, case: Case) -> Described | None:
        return own_rung(case) if case.kind == "own" else None

    def identity(self, case: Case, arch: str | None) -> str:
        if case.kind == "baseline" and case.impl == "two_op":  # its first half is a kernel of ours
            module = int4 if case.format == "int4_g128" else q8_0
            name = "int4_dequantise" if module is int4 else "dequantise"
            ladder = module.LADDERS[name]
            rung = ladder[0] if module is int4 else ops.rung_of(ladder, None, q8_0.DEFAULT[name])
            return rung.identity(module.launch_rule(rung), rung.defines, arch)
        return super().identity(case, arch)

    own_rung = staticmethod(own_rung)

    def works(self, group: Sequence[Case]) -> list[gate.Work]:
        return _contestants(group)


# --- contestants --------------------------------------------------------------------------------------------


class Operands:
    """Weights of one shape in every format and order, and as many copies as a cold case of each wants; what
    products of them should be, for one number of tokens at a time.
    """

    def __init__(self, n: int, k: int):
        self.n, self.k = n, k
        self._made: dict[Any, Any] = {}
        self._judged: tuple[int, dict[Any, Any]] = (0, {})

    def _once(self, key: Any, make: Any) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    @property
    def halves(self) -> Any:
        return self._once("halves", lambda: products.weights(self.n, self.k))

    @property
    def groups(self) -> Any:
        return self._once("groups", lambda: int4_work.Operands(self.n, self.k, 1))

    @property
    def planes(self) -> Any:
        return self._once("planes", lambda: q8_study.quantised(self.n, self.k))

    @property
    def widened(self) -> Any:
        return self._once("widened", lambda: q8_0_operands.widened(self.planes))

    def copies(self, how: Strategy, count: int) -> list[Any]:
        """`count` copies of the weights as a way takes them."""
        kinds = {
            ("fp16", "halves"): lambda: self.halves,
            ("int4_g128", "rows"): lambda: self.groups.rows,
            ("int4_g128", "tiles"): lambda: int4.repack(*self.groups.rows),
            ("q8_0", "planes"): lambda: self.planes,
            ("q8_0", "blocks"): lambda: q8_0_operands.blocks_of(self.planes),
            ("q8_0", "tiles"): lambda: q8_0.repack(self.planes),
        }
        key = (how.format, dispatch.order_of(how))
        return self._once((*key, count), lambda: buffers.copied(kinds[key](), count))

    def expected(self, how: Strategy, batch: int) -> tuple[Any, Any, float]:
        """Activations, the expected product and the error allowed."""
        if self._judged[0] != batch:
            self._judged = batch, {}
        made = self._judged[1]
        if "x" not in made:
            made["x"] = products.activations(batch, self.k)
            made["prepared"] = q8_0.quantise(made["x"])
        x = made["x"]
        rounded, given = how.name == "two_op", how.name in ("two_op", *_AS_GIVEN)
        key = (how.format, how.format == "q8_0" and (rounded, given))
        if key not in made:
            if how.format == "fp16":
                exact = products.oracle(self.halves, x)
                made[key] = exact, products.budget(self.halves, x, exact, "float16")
            elif how.format == "int4_g128":
                exact = products.oracle(self.groups.exact, x)
                made[key] = exact, products.budget(self.groups.exact.astype("float16"), x, exact, "float16")
            else:
                w = self.widened.astype("float16").astype("float32") if rounded else self.widened
                a = x.astype("float32") if given else q8_0_operands.widened(made["prepared"])
                made[key] = q8_0_operands.expect("", w, a, x, halved=given and not rounded)
        return x, *made[key]


_operands = functools.lru_cache(maxsize=1)(Operands)  # all cases of a shape come one after another


def _contestants(group: Sequence[Case]) -> list[gate.Work]:
    xp = ops.arrays()
    first = group[0]
    n, k, batch = first.matrix
    shared = _operands(n, k)
    works = []
    for case in group:
        how = strategy(case.format, case.impl)
        count = buffers.copies(case, int(n * k * WEIGHT_BYTES[case.format]))
        weights = shared.copies(how, count)
        x, expected, budget = shared.expected(how, batch)
        ys = [xp.empty((batch, n), "float16") for _ in range(count)]
        inputs = [[*_arrays(each), x] for each in weights]
        launch = _launch(case, how, weights, x, ys)
        judge = gate.constant(expected)
        works.append(gate.Work(case.id, launch, inputs, [[y] for y in ys], judge, budget))
    return works


def _arrays(weights: Any) -> list[Any]:
    if isinstance(weights, (int4.Tiles, q8_0.Tiles)):
        return [weights.blocks]
    return list(weights) if isinstance(weights, tuple) else [weights]


def _launch(case: Case, how: Strategy, weights: Sequence[Any], x: Any, ys: Sequence[Any]) -> Any:
    """One product by the dispatcher's own code for a way, its choice made before."""
    run = strategies.RUN[how.format, how.name]
    order, rung = dispatch.order_of(how), ""
    macros: dict[str, int] = {}
    if case.kind == "own":
        found, chosen, _ = own_rung(case)
        rung, macros = found.name, dict(chosen)
    choice = dispatch.Choice(how.format, how.name, rung, macros, "measured")
    orders, outs, given = [{order: each} for each in weights], list(ys), x
    if case.kind == "baseline":  # cuBLAS is called as torch's users call it
        import torch

        given, outs = torch.from_dlpack(x), [torch.from_dlpack(y) for y in ys]
        orders = [{order: _in_torch(each)} for each in weights]

    def launch(i: int) -> None:
        run(given, orders[i], outs[i], choice)

    return launch


def _in_torch(weights: Any) -> Any:
    import torch

    if isinstance(weights, tuple):
        return type(weights)(*(torch.from_dlpack(part) for part in weights))
    return torch.from_dlpack(weights)


# --- what lesson 07 reads -----------------------------------------------------------------------------------

_SAME_STRATEGY = {  # (study, impl) of other recordings -> the way that it is
    ("gemv", "5_split"): "gemv",
    ("gemv", "torch.matmul"): "cublas",
    ("int4", "torch.matmul"): "cublas",
    ("int4", int4_study.TWO_OP): "two_op",
    ("mmq", "torch.matmul"): "cublas",
    ("mmq", mmq_study.BASELINE): "two_op",
    ("mmq", "q8_0/4_planes"): "dp4a",
    ("mmq", "q8_0/5_batch"): "dp4a",
    ("mmq", "q8_0/6_mma"): "mma",
    ("mmq", "5_large_tiles"): "mmq",
    ("mmq", "6_wgmma"): "mmq_wgmma",
    ("mmq", "7_fp16_wgmma"): "mmq_fp16_wgmma",
    ("mmq", "8_stream_k"): "mmq_fp16_wgmma",
    ("mmq", "9_tile_order"): "mmq_tiles",
    **{("int4", rung.name): "fused" for rung in int4.TILED},
}


def gathered(tables: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Rows of the studies regimes, gemv, int4 and mmq that are ways of multiplying, as this study's own: impl
    is the way, format its format. Cold, by any clock; a product in several tables is listed once,
    this study's first.
    """
    found = []
    for rows in tables:
        if rows.empty:
            continue
        study = str(rows["study"].iloc[0])
        rows = rows[(rows["cache"] == "cold") & rows["median_us"].notna()].copy()
        if study != "regimes":
            rows = rows[rows["operator"].isin(("gemv_rows", "int4", "mmq")) & _usual(study, rows)]
            names = [_SAME_STRATEGY.get((study, impl), "") for impl in rows["impl"]]
            rows = rows.assign(impl=names)[pd.Series(names, index=rows.index) != ""]
            rows["batch"] = rows["batch"].fillna(1)
        found.append(rows)
    if not found:
        return pd.DataFrame()
    every = pd.concat(found, ignore_index=True)
    listed = {(way.format, way.name) for way in perf_model.STRATEGIES}
    known = [pair in listed for pair in zip(every["format"], every["impl"], strict=True)]
    every = every[pd.Series(known, index=every.index, dtype=bool)]  # of no rows a list would choose columns
    every = every.sort_values("median_us", kind="stable")
    rank = every["study"].ne("regimes").astype(int)
    every = every.assign(rank=rank).sort_values(["rank", "median_us"], kind="stable")
    keys = ["format", "impl", "n", "k", "batch", "clock"]
    every = every.drop_duplicates(keys).drop(columns="rank")
    return every.sort_values([*keys[:2], *keys[2:]], kind="stable", ignore_index=True)


def _usual(study: str, rows: pd.DataFrame) -> pd.Series:
    """Which rows of a study are products as the dispatcher runs them: no options that change what is done."""
    if study == "int4":
        mine = rows["kind"] == "own"
        return (~mine | ~rows["options"].str.contains("loop|seed")) & (rows["weights"] == "")
    return rows["options"] == ""
