"""Which kernel multiplies: from what was recorded on a GPU, to a rule, to the launch.

`product(x, weights)` computes y = x W^T for FP16, INT4 or Q8_0 weights by the strategy (see
rooflab.hardware.perf_model) that was fastest on this GPU for the nearest recorded shape and number of tokens.
A GPU without a recording gets that of the reference's table if it has the same SMs, else the one that is
predicted to be fastest there, and the choice says so.
Every choice can be reverted to its format's plain strategy, cuBLAS on FP16 weights or after dequantising: by
$ROOFLAB_PLAIN ("all", or formats and strategies) or within `reverted(...)`. What ran is logged by the logger
"rooflab.dispatch", every new choice at INFO and every launch at DEBUG, and `last()` returns it. Nothing falls
back in silence: a strategy that cannot take its operands says so and raises.
"""

from __future__ import annotations

import functools
import logging
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rooflab import ops, paths
from rooflab.errors import LaunchError, UsageError
from rooflab.hardware import crossover, device, perf_model
from rooflab.hardware.perf_model import Strategy, plain, strategy
from rooflab.ops import q8_0, with_target
from rooflab.ops.strategies import (
    CPU,
    NEVER,
    RUN,
    Choice,
    Weights,
    candidates,
    order_of,
    refusal,
    rung_for,
    stream_of,
)
from rooflab.ops.strategies import halves as halves
from rooflab.ops.strategies import int4_weights as int4_weights
from rooflab.ops.strategies import most_tokens as most_tokens
from rooflab.ops.strategies import q8_0_weights as q8_0_weights
from rooflab.records.store import Store
from rooflab.runtime import launch_cache
from rooflab.words import counted

LOG = logging.getLogger("rooflab.dispatch")
PLAIN = "ROOFLAB_PLAIN"  # environment: formats or strategies to revert, or "all"
STUDY = "regimes"  # whose rows a GPU's table is
REFERENCE = "h200"  # the recording that predictions for other GPUs are fitted on
# A recorded shape farther off than this factor, n and k together, says nothing about another. At 5 times the
# nearest still named the fastest way, where the prediction named one that took 3.5 times as long.
NEAR = 16.0


# --- what was recorded, and what is predicted ---------------------------------------------------------------


def roots() -> list[Path]:
    """Where recordings are looked for: this machine's own first, then the repository's."""
    own = Path(os.environ.get("ROOFLAB_STORE") or paths.BUILD / "data")
    return [own, paths.DATA]


@functools.lru_cache(maxsize=16)
def _table(root: Path, slug: str, stamp: float) -> pd.DataFrame:
    rows = Store(root, slug).read(STUDY)
    rows = rows[(rows["clock"] == "graph") & (rows["cache"] == "cold") & rows["median_us"].notna()]
    columns = ["format", "impl", "n", "k", "batch", "median_us", "q1_us", "q3_us"]
    return rows[columns].astype({"n": int, "k": int, "batch": int}).reset_index(drop=True)


def table(slug: str | None) -> pd.DataFrame:
    """The recorded products of a device, cold and by the graph clock (format, impl, n, k, batch, median_us,
    q1_us, q3_us); empty if nothing is recorded of it.
    """
    found = _newest(slug)
    if found:
        return _table(*found)
    return pd.DataFrame(columns=["format", "impl", "n", "k", "batch", "median_us", "q1_us", "q3_us"])


def _newest(slug: str | None) -> tuple[Path, str, float] | None:
    """The root that holds a device's table, the device, and when the table was written."""
    for root in roots() if slug else []:
        file = root / str(slug) / f"{STUDY}.csv"
        if file.is_file():
            return root, str(slug), file.stat().st_mtime
    return None


def line(rows: pd.DataFrame, n: int, k: int, batch: int) -> pd.DataFrame:
    """The line of a table that answers for a product: its rows of the nearest recorded shape, and there of
    the smallest number of tokens that is large enough, else the largest. Empty if no recorded shape is near.
    """
    off = (np.log(rows["n"] / n).abs() + np.log(rows["k"] / k).abs()).to_numpy(float)
    if rows.empty or off.min() > math.log(NEAR):
        return rows[:0]
    near = rows[off == off.min()]
    shape = near[["n", "k"]].iloc[0]
    near = near[(near["n"] == shape["n"]) & (near["k"] == shape["k"])]
    enough = near[near["batch"] >= batch]["batch"]
    return near[near["batch"] == (enough.min() if len(enough) else near["batch"].max())]


def _best(rows: pd.DataFrame, near: pd.DataFrame) -> pd.Series:
    """The row of the fastest strategy of a line of `rows`, which are of one format. Of those that are level
    there, the one that is fastest for most recorded shapes with that number of tokens: a tie says nothing
    about another shape.
    """
    alike = rows[rows["batch"] == near["batch"].iloc[0]]
    wins = alike.loc[alike.groupby(["n", "k"])["median_us"].idxmin(), "impl"].value_counts()
    level = near[near["median_us"] <= crossover.LEVEL * near["median_us"].min()]
    level = level.assign(wins=level["impl"].map(wins).fillna(0))
    return level.sort_values(["wins", "median_us"], ascending=[False, True], kind="stable").iloc[0]


def fastest(rows: pd.DataFrame, n: int, k: int, batch: int, names: Sequence[str]) -> tuple[str, str] | None:
    """The strategy of `names` that a table's rows of one format have fastest for this product, by `line`, and
    its line; None if no recorded shape is near.
    """
    mine = rows[rows["impl"].isin(names)]
    near = line(mine, n, k, batch)
    if near.empty:
        return None
    best = _best(mine, near)
    return str(best["impl"]), f"{best['n']} x {best['k']}, {counted(best['batch'], 'token')}"


def lines(rows: pd.DataFrame) -> pd.DataFrame:
    """The table that rows of strategies make: for each format, shape and number of tokens the fastest
    strategy and its microseconds, those of the plain strategy, and how many times as fast it is (columns
    format, n, k, batch, strategy, us, plain_us, gain).
    """
    found = []
    for format, every in rows.groupby("format", sort=True):
        for key, mine in every.groupby(["n", "k", "batch"], sort=True):
            best = _best(every, mine)
            reverted = mine[mine["impl"] == plain(str(format)).name]["median_us"]
            other = float(reverted.iloc[0]) if len(reverted) else math.nan
            found.append((format, *key, best["impl"], best["median_us"], other, other / best["median_us"]))
    return pd.DataFrame(found, columns=["format", "n", "k", "batch", "strategy", "us", "plain_us", "gain"])


@functools.lru_cache(maxsize=4)
def _reference(found: tuple[Path, str, float] | None) -> tuple[perf_model.Machine, perf_model.Fit]:
    spec = device.get(REFERENCE)
    if found is None:
        return perf_model.datasheet(spec), perf_model.NOTHING
    measured = {}
    bandwidth = Store(found[0], REFERENCE).read("bandwidth")
    for name in ("dram_read", "fp32", "fp16_tensor", "int8_tensor"):
        column = "gb_s" if name == "dram_read" else "tflop_s"
        mine = bandwidth[(bandwidth["roof"] == name) & bandwidth["roof_fraction"].notna()]
        if len(mine):  # what reaches its roof is the roof
            measured[name] = float(mine.sort_values("roof_fraction")[column].iloc[-1])
    machine = perf_model.measured(measured, spec)
    rows = table(REFERENCE)
    return machine, perf_model.fit(rows[["format", "impl", "n", "k", "batch", "median_us"]], machine)


def reference() -> tuple[perf_model.Machine, perf_model.Fit]:
    """The measured machine that predictions start from, and the fit to its recorded products; without a
    recording the datasheet and the bound alone.
    """
    return _reference(_newest(REFERENCE))


def is_like_reference(slug: str | None) -> bool:
    """Whether another device has SMs of the reference's kind, and as many."""
    if slug == REFERENCE or slug not in device.names():
        return False
    found, known = device.get(str(slug)), device.get(REFERENCE)
    return (found.sm, found.sms) == (known.sm, known.sms)


def unrecorded(
    slug: str | None, n: int, k: int, batch: int, strategies: Sequence[Strategy]
) -> tuple[str, str]:
    """The strategy, of several for one format, for a product that no recording of the device is near, and
    why: by the reference's table for a GPU with the same SMs, else as predicted. On an H100 the H200's table
    was within 5 % of the fastest more often than the prediction, though memory is slower there (lesson 07b).
    """
    if is_like_reference(slug):
        rows, names = table(REFERENCE), [how.name for how in strategies]
        if found := fastest(rows[rows["format"] == strategies[0].format], n, k, batch, names):
            return found[0], f"recorded on {REFERENCE}, which has the same SMs: {found[1]}"
    return predicted(slug, n, k, batch, strategies)


def predicted(
    slug: str | None, n: int, k: int, batch: int, strategies: Sequence[Strategy]
) -> tuple[str, str]:
    """The strategy that should be fastest on a GPU of the table of devices, and by what reasoning."""
    machine, fit = reference()
    by = f"fitted on {REFERENCE}" if fit.rows else "by the bound alone"
    if slug in device.names():
        machine = perf_model.scaled(device.get(str(slug)), machine, device.get(REFERENCE))
        of = f"nothing near is recorded on {slug or 'this GPU'}"
    else:
        of = f"this device is in no table, so as if it were {REFERENCE}"
    best = perf_model.fastest(strategies, n, k, batch, machine, fit)[0]
    return best.name, f"predicted, {by}: {of}"


# --- choosing -----------------------------------------------------------------------------------------------

_REVERTED: ContextVar[tuple[str, ...]] = ContextVar("rooflab_reverted", default=())
_LAST: ContextVar[Choice | None] = ContextVar("rooflab_last", default=None)


@contextmanager
def reverted(*names: str) -> Iterator[None]:
    """Within it these formats ("int4_g128") or strategies ("q8_0/mma"), or with no name all, run plainly."""
    token = _REVERTED.set((*_REVERTED.get(), *(_known(name) for name in names or ("all",))))
    try:
        yield
    finally:
        _REVERTED.reset(token)


def _known(name: str) -> str:
    strategies = [f"{how.format}/{how.name}" for how in perf_model.STRATEGIES]
    if name not in ("all", *perf_model.FORMATS, *strategies):
        raise UsageError(
            f"{name!r} cannot be reverted: name a format ({', '.join(perf_model.FORMATS)}), a strategy such "
            'as q8_0/mma, or "all".'
        )
    return name


def _revert(format: str, name: str) -> str:
    """By which switch a choice is reverted, or ""."""
    given = [word for word in os.environ.get(PLAIN, "").replace(",", " ").split()]
    for source, words in ((PLAIN, [_known(word) for word in given]), ("reverted()", _REVERTED.get())):
        if {"all", format, f"{format}/{name}"} & set(words):
            return source
    return ""


def here() -> tuple[str | None, str]:
    """The device at hand: its name in rooflab.hardware.device, if it has one, and its architecture;
    (None, "cpu") where launches go to the CPU.
    """
    return (None, CPU) if ops.target() == CPU else ops.this_gpu()


def choose(
    format: str,
    n: int,
    k: int,
    batch: int,
    slug: str | None = None,
    arch: str | None = None,
    held: Sequence[str] | None = None,
    recorded: pd.DataFrame | None = None,
) -> Choice:
    """The strategy for y [batch, n] with k inputs and weights of `format` on a device (a name of
    rooflab.hardware.device; by default the one at hand), with those orders of the weights held (default:
    all), by the device's table or the one given. Without a table by the reference's for a GPU with the same
    SMs, else as predicted. LaunchError, with every strategy's reason, if none can.
    """
    if slug is None and arch is None:
        slug, arch = here()
    elif arch is None:
        arch = device.get(str(slug)).sm
    fallback = plain(format)
    strategies = candidates(format, n, k, batch, arch, slug, held)
    if not strategies:
        raise LaunchError(_none(format, n, k, batch, arch, slug, held))
    names = [how.name for how in strategies]
    rows = table(slug) if recorded is None else recorded
    found = fastest(rows[rows["format"] == format], n, k, batch, names)
    if found:
        name, why = found[0], f"recorded on {slug or 'this GPU'}: {found[1]}"
    else:
        name, why = unrecorded(slug, n, k, batch, strategies)
    switch = _revert(format, name)
    if switch and name != fallback.name:
        if fallback.name not in names:
            raise LaunchError(
                f"{switch} reverts {format}/{name}, but the plain strategy cannot run: "
                + _reason(fallback, n, k, batch, arch, slug, held)
            )
        name, why = fallback.name, f"reverted by {switch} from {name}"
    launched = rung_for(strategy(format, name), n, k, batch, slug)
    rung, macros = (launched[0].name, launched[1]) if launched else ("", {})
    return Choice(format, name, rung, macros, why)


def _reason(
    how: Strategy, n: int, k: int, batch: int, arch: str, slug: str | None, held: Sequence[str] | None
) -> str:
    if held is not None and order_of(how) not in held:
        return f"{how.name} needs the weights in {order_of(how)}, and {', '.join(held) or 'none'} are held."
    return f"{how.name}: {refusal(how, n, k, batch, arch, slug)}."


def _none(
    format: str, n: int, k: int, batch: int, arch: str, slug: str | None, held: Sequence[str] | None
) -> str:
    reasons = [
        _reason(how, n, k, batch, arch, slug, held)
        for how in perf_model.STRATEGIES
        if how.format == format and (how.format, how.name) not in NEVER
    ]
    return f"No strategy multiplies {batch} tokens by {format} weights [{n}, {k}] here: {' '.join(reasons)}"


def last() -> Choice | None:
    """The choice that the newest `product` of this context ran; None before the first."""
    return _LAST.get()


@functools.lru_cache(maxsize=4096)
def _chosen(
    format: str,
    n: int,
    k: int,
    batch: int,
    slug: str | None,
    arch: str,
    held: tuple[str, ...],
    switches: tuple[str, str, tuple[str, ...]],
) -> Choice:
    """`choose`, remembered: a decoder asks the same few questions for every token."""
    choice = choose(format, n, k, batch, slug, arch, held)
    LOG.info("%s", says(choice, n, k, batch))
    return choice


def says(choice: Choice, n: int, k: int, batch: int) -> str:
    """The log's line of a choice."""
    by = f" (rung {choice.rung})" if choice.rung else ""
    return f"{choice.format} [{n}, {k}] x {batch}: {choice.strategy}{by}; {choice.why}"


# --- multiplying --------------------------------------------------------------------------------------------


_CALLS = launch_cache.Calls()


@with_target()
def product(x: Any, weights: Weights, *, out: Any = None, by: str | None = None) -> Any:
    """y [batch, n] FP16 = x [batch, k] FP16 times the weights transposed, by the strategy that `choose` gives
    or the one named `by`.

    Launches of one stream share the memory of what strategies make on the way (quantised activations,
    dequantised weights), so two that may overlap must be on two streams. LaunchError for operands that no
    strategy takes, or not that one.
    """
    target, orders = ops.target(), weights.orders
    switches = (os.environ.get(PLAIN, ""), os.environ.get("ROOFLAB_STORE", ""), _REVERTED.get())
    found: list[Any] = [by, weights.format, weights.n, weights.k, *orders, switches]
    arrays: list[Any] = []
    pointers: list[int] = []
    plainly = (
        target not in launch_cache.TARGETS or launch_cache.runs_whole() or LOG.isEnabledFor(logging.DEBUG)
    )
    if plainly or not launch_cache.facts((x, out, *orders.values()), found, arrays, pointers):
        return _product(x, weights, out, by, switches)
    found.append(stream_of(x))
    key = tuple(found)
    kept = _CALLS.kept(key)
    if kept:
        _LAST.set(kept.note)
        return launch_cache.again(kept, out, arrays, pointers)
    whole = functools.partial(_product, x, weights, out, by, switches)
    return whole() if kept is False else _CALLS.watch(key, whole, out, pointers, last)


def _product(x: Any, weights: Weights, out: Any, by: str | None, switches: tuple) -> Any:
    """`product`, checked and chosen anew."""
    batch, k = (int(size) for size in x.shape)
    n = weights.n
    if k != weights.k:
        raise LaunchError(f"x has k = {k} and the weights have k = {weights.k}; they must agree.")
    slug, arch = here()
    held = tuple(sorted(weights.orders))
    if by is None:
        choice = _chosen(weights.format, n, k, batch, slug, arch, held, switches)
    else:
        how = strategy(weights.format, by)
        if order_of(how) not in held or refusal(how, n, k, batch, arch, slug):
            raise LaunchError(_reason(how, n, k, batch, arch, slug, held))
        launched = rung_for(how, n, k, batch, slug)
        rung, macros = (launched[0].name, launched[1]) if launched else ("", {})
        choice = Choice(weights.format, by, rung, macros, "asked for by name")
    if LOG.isEnabledFor(logging.DEBUG):
        LOG.debug("%s", says(choice, n, k, batch))
    _LAST.set(choice)
    if out is None:
        out = q8_0.empty(x, (batch, n), "float16")
    RUN[choice.format, choice.strategy](x, weights.orders, out, choice)
    return out
