"""How long a weight product should take on any GPU: bytes over the memory's rate, FLOPs over the peak of the
unit that does them, the larger of the two, and a fixed time for every launch.

A way is one manner of computing y = x W^T, for one format of the weights: how many launches it makes, which
unit multiplies, how often the weights cross the bus. A machine is a GPU's rates, measured or scaled from one
that was. The fixed time is fitted to rows once; a fit also holds, for each way, a fixed time of its own and
the share of its unit's peak that its kernels reach, which no bound knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rooflab.errors import UsageError
from rooflab.hardware import roofline
from rooflab.hardware.device import Device
from rooflab.numerics.model_shapes import WEIGHT_BYTES

MANY = 1 << 30  # tokens: as many as one likes
_SHARES = np.linspace(0.02, 1.0, 99)  # of a peak, that a fit tries
WHOLE = (1.0,)  # the memory's rate as it was measured
REACHES = tuple(float(x) for x in np.linspace(0.04, 1.0, 25))  # shares of that rate, where a fit tries them


# Instructions that scale a sum of 32 int8 products, by unit: convert, multiply, multiply and add; or the last
# twice, where `mma` starts a sum at the bits of a float (lesson 05d).
SCALING = {"int8_scaled": 2, "int8_scaled_3": 3}


class Strategy(NamedTuple):
    """One manner of computing a product. The weights are read once for every `pass_tokens` tokens, and
    `extra` bytes a weight move besides (what is dequantised to memory and read again). `each_pass`: every
    pass is a launch of its own. `tile`: rows and tokens of the tile that one SM computes whole, however many
    of its tokens there are; a batch that is smaller costs it whole parts of `part` tokens, 0 standing for the
    tile. `plain`: what the others are reverted to.
    """

    format: str
    name: str
    unit: str
    says: str
    launches: int = 1
    pass_tokens: int = MANY
    extra: float = 0.0
    each_pass: bool = False
    tile: tuple[int, int] | None = None
    part: int = 0
    plain: bool = False


STRATEGIES = (
    Strategy("fp16", "gemv", "fp32", "the course's FP16 GEMV, one token"),
    Strategy("fp16", "cublas", "fp16_tensor", "cuBLAS", plain=True),
    Strategy("int4_g128", "loop", "fp32", "a fused GEMV for every token", pass_tokens=1, each_pass=True),
    Strategy("int4_g128", "fused_rows", "fp32", "fused on FP32 lanes, weights in row order", pass_tokens=8),
    Strategy("int4_g128", "fused", "fp16_tensor", "fused on tensor cores, weights in tile order"),
    Strategy("int4_g128", "two_op", "fp16_tensor", "dequantise, then cuBLAS", 2, extra=4.0, plain=True),
    Strategy("q8_0", "dp4a", "dp4a", "quantise x, 4 products an instruction", 2),
    Strategy(
        *("q8_0", "mma", "int8_scaled", "quantise x, int8 tensor cores, few tokens", 2),
        tile=(32, 32),
        part=8,
    ),
    Strategy("q8_0", "mmq", "int8_scaled", "quantise x, int8 tensor cores, large tiles", 2, tile=(128, 64)),
    Strategy(
        "q8_0", "mmq_blocks", "int8_scaled_3", "the same, weights in the file's own order", 2, tile=(64, 128)
    ),
    # Each of its four warpgroups scales 64 tokens of the tile, and scaling is what takes the time.
    Strategy(
        *("q8_0", "mmq_wgmma", "int8_scaled_3", "quantise x, Hopper's int8 products (wgmma)", 2),
        tile=(128, 128),
        part=64,
    ),
    Strategy(
        "q8_0", "mmq_fp16_wgmma", "fp16_tensor", "weights become FP16 inside the kernel", tile=(128, 64)
    ),
    Strategy("q8_0", "mmq_tiles", "fp16_tensor", "the same, weights stored in tile order", tile=(128, 64)),
    Strategy("q8_0", "two_op", "fp16_tensor", "dequantise, then cuBLAS", 2, extra=4.0, plain=True),
)
FORMATS = tuple(dict.fromkeys(each.format for each in STRATEGIES))
_BY_NAME = {(each.format, each.name): each for each in STRATEGIES}


def strategy(format: str, name: str) -> Strategy:
    """One of STRATEGIES; UsageError lists what the format has."""
    found = _BY_NAME.get((format, name))
    if found is None:
        known = (
            ", ".join(w.name for w in STRATEGIES if w.format == format)
            or f"formats {', '.join(FORMATS)} alone"
        )
        raise UsageError(f"there is no way {name!r} of multiplying {format!r} weights; there are {known}.")
    return found


def plain(format: str) -> Strategy:
    """The way that a format's other ways are reverted to."""
    for each in STRATEGIES:
        if each.format == format and each.plain:
            return each
    raise UsageError(f"there is no format {format!r} of weights; there are {', '.join(FORMATS)}.")


def passes(how: Strategy, batch: int) -> int:
    """How often the weights are read for so many tokens."""
    return math.ceil(batch / how.pass_tokens)


def moved(how: Strategy, n: int, k: int, batch: int) -> float:
    """Bytes that a product by this way moves, activations and results in FP16."""
    weights = n * k * WEIGHT_BYTES[how.format]
    return weights * passes(how, batch) + n * k * how.extra + roofline.gemm_bytes(batch, n, k, 0.0)


def first(how: Strategy, n: int, k: int) -> float:
    """Of those bytes, how many an earlier launch moves, which ends before anything is multiplied: the weights
    read and written as halves.
    """
    return n * k * (WEIGHT_BYTES[how.format] + how.extra / 2) if how.extra else 0.0


def computed(how: Strategy, n: int, k: int, batch: int, sms: int) -> float:
    """FLOPs that the GPU could have done while the product is computed. Where each tile is one SM's, tiles
    that are partly empty cost as much as full ones, and so do SMs that the last round leaves without a tile.
    """
    if how.tile is None:
        return roofline.gemm_flops(batch, n, k)
    rows, tokens = how.tile
    rounds = math.ceil(math.ceil(n / rows) * math.ceil(batch / tokens) / sms)
    if how.part:
        tokens = min(tokens, how.part * math.ceil(batch / how.part))
    return roofline.gemm_flops(tokens, rows, k) * rounds * sms


def launched(how: Strategy, batch: int) -> int:
    """Kernels that a product by this way launches."""
    return how.launches * (passes(how, batch) if how.each_pass else 1)


# --- machines -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Machine:
    """A GPU as predictions see it: SMs, GB/s from memory, peaks in TFLOP/s by rooflab.hardware.roofline's
    names.
    """

    sms: int
    gb_s: float
    peaks: Mapping[str, float] = field(hash=False)

    def peak(self, unit: str) -> float:
        """TFLOP/s (TOP/s) of a way's unit. dp4a makes 8 operations where a lane makes 2, at half the rate of
        FP32 multiply-adds; int8 products whose blocks of 32 are scaled one by one are bound by the lanes that
        scale, SCALING[unit] instructions for 64 operations.
        """
        if unit == "dp4a":
            return 2 * self.peaks["fp32"]
        if unit in SCALING:
            return min(self.peaks["int8_tensor"], self.peaks["fp32"] / 2 / SCALING[unit] * 64)
        return self.peaks[unit]


_PEAKS = ("fp32", "fp16_tensor", "int8_tensor")


def datasheet(device: Device) -> Machine:
    """A GPU by its vendor's figures."""
    return Machine(device.sms, device.dram_gb_s, {name: float(getattr(device, name)) for name in _PEAKS})


def measured(roofs: Mapping[str, float], device: Device) -> Machine:
    """A GPU by its measured roofs, names of rooflab.hardware.roofline.ROOFS; what was not measured by its
    datasheet.
    """
    sheet = datasheet(device)
    peaks = {name: float(roofs.get(name, sheet.peaks[name])) for name in _PEAKS}
    return Machine(device.sms, float(roofs.get("dram_read", sheet.gb_s)), peaks)


def scaled(device: Device, like: Machine, of: Device) -> Machine:
    """A GPU that was not measured: its datasheet, times what share of its own `of` was measured to reach."""
    sheet, other = datasheet(device), datasheet(of)
    peaks = {name: sheet.peaks[name] * like.peaks[name] / other.peaks[name] for name in _PEAKS}
    return Machine(device.sms, sheet.gb_s * like.gb_s / other.gb_s, peaks)


# --- predictions --------------------------------------------------------------------------------------------


class Own(NamedTuple):
    """What a way's own rows say: microseconds a launch, the share of its unit's peak, and that of the
    memory's rate, which is whole unless a fit tried others.
    """

    launch_us: float
    share: float
    reach: float = 1.0


@dataclass(frozen=True)
class Fit:
    """`launch_us`: the one fixed time of all ways. `own`: by (format, way), for those that had rows."""

    launch_us: float
    own: Mapping[tuple[str, str], Own] = field(default_factory=dict, hash=False)
    rows: int = 0


NOTHING = Fit(0.0)  # the bound alone


def bound(how: Strategy, n: int, k: int, batch: int, machine: Machine, share: float = 1.0) -> roofline.Bound:
    """Bytes over the memory's rate or FLOPs over `share` of the peak, whichever takes longer; and before
    them what an earlier launch has to move.
    """
    peak, flops = machine.peak(how.unit) * share, computed(how, n, k, batch, machine.sms)
    before = first(how, n, k)
    least = roofline.bound(moved(how, n, k, batch) - before, flops, machine.gb_s, peak)
    earlier = before / machine.gb_s / 1e3
    return roofline.Bound(least.us + earlier, least.by if least.us > earlier else "memory")


def us(how: Strategy, n: int, k: int, batch: int, machine: Machine, fit: Fit, own: bool = True) -> float:
    """Predicted microseconds of a product: by the way's own two numbers if the fit holds them, else (or with
    own=False) by the one fixed time and the whole peak.
    """
    numbers = fit.own.get((how.format, how.name)) if own else None
    numbers = numbers or Own(fit.launch_us, 1.0)
    if numbers.reach != 1:
        machine = replace(machine, gb_s=machine.gb_s * numbers.reach)
    return bound(how, n, k, batch, machine, numbers.share).us + launched(how, batch) * numbers.launch_us


def fastest(
    ways: Iterable[Strategy], n: int, k: int, batch: int, machine: Machine, fit: Fit
) -> tuple[Strategy, float]:
    """Which of several ways should be fastest, and its microseconds. Ways that the fit has seen go before
    those of which only a bound is known: a bound flatters.
    """
    ways = list(ways)
    known = [how for how in ways if (how.format, how.name) in fit.own] or ways
    timed = [(us(how, n, k, batch, machine, fit), i) for i, how in enumerate(known)]
    least, place = min(timed)
    return known[place], least


def _products(rows: pd.DataFrame) -> Iterator[tuple[Strategy, int, int, int]]:
    """Strategy, n, k and batch of each row (columns format, impl, n, k, batch)."""
    columns = rows[["format", "impl", "n", "k", "batch"]]
    for format, impl, n, k, batch in columns.itertuples(index=False, name=None):
        yield strategy(format, impl), int(n), int(k), int(batch)


def _terms(rows: pd.DataFrame, machine: Machine) -> pd.DataFrame:
    """Of each row the microseconds of an earlier launch's bytes, of the product's own bytes and of its FLOPs,
    and the number of launches.
    """
    found = []
    for how, n, k, batch in _products(rows):
        compute = computed(how, n, k, batch, machine.sms) / machine.peak(how.unit) / 1e6
        before = first(how, n, k)
        memory = (moved(how, n, k, batch) - before) / machine.gb_s / 1e3
        found.append((before / machine.gb_s / 1e3, memory, compute, launched(how, batch)))
    return pd.DataFrame(found, columns=["first", "memory", "compute", "launches"], index=rows.index)


def _base(terms: Any, share: Any = 1.0, reach: Any = 1.0) -> Any:
    """Microseconds beside the launches, of columns first, memory, compute."""
    return terms[:, 0] / reach + np.maximum(terms[:, 1] / reach, terms[:, 2] / share)


def _launch(base: Any, launches: Any, times: Any) -> Any:
    """The fixed time a launch that leaves the smallest relative errors; never negative."""
    return np.maximum(
        0.0, ((times - base) * launches / times**2).sum(axis=-1) / (launches**2 / times**2).sum()
    )


def fit(rows: pd.DataFrame, machine: Machine, reaches: Sequence[float] = WHOLE) -> Fit:
    """Fit the fixed times to measured rows (columns format, impl, n, k, batch, median_us; impl a way's name)
    by least squares of relative errors, so that small and large products weigh the same. `reaches`: the
    shares of the memory's rate that each way's numbers may have.
    """
    if rows.empty:
        return NOTHING
    terms, times = _terms(rows, machine).to_numpy(float), rows["median_us"].to_numpy(float)
    one = float(_launch(_base(terms), terms[:, 3], times))
    grid = sorted(((float(s), r) for s in _SHARES for r in reaches), key=sum, reverse=True)
    share, reach = np.array(grid).T[:, :, None]
    own: dict[tuple[str, str], Own] = {}
    keys = list(rows[["format", "impl"]].itertuples(index=False, name=None))
    for key in dict.fromkeys(keys):
        places = [place for place, each in enumerate(keys) if each == key]
        mine, taken = terms[places], times[places]
        base = _base(mine, share, reach)
        launch = _launch(base, mine[:, 3], taken)
        error = (((base + launch[:, None] * mine[:, 3]) / taken - 1) ** 2).mean(axis=-1)
        # Rows that memory bounds say nothing of the share: the largest that explains them as well counts.
        at = int(np.argmax(error <= 1.1 * error.min() + 1e-6))
        own[str(key[0]), str(key[1])] = Own(float(launch[at]), *grid[at])
    return Fit(one, own, len(rows))


def compared(rows: pd.DataFrame, machine: Machine, fit: Fit) -> pd.DataFrame:
    """The rows with three predictions, bound_us, one_us (one fixed time) and own_us (each way's own numbers),
    how far each is off in percent (bound_off and so on), and `by`: "memory", "compute" or "launch", whichever
    is the largest part of one_us.
    """
    terms = _terms(rows, machine)
    found = rows.copy()
    found["bound_us"] = _base(terms.to_numpy(float))
    fixed = terms["launches"] * fit.launch_us
    found["one_us"] = found["bound_us"] + fixed
    found["own_us"] = [us(*product, machine, fit) for product in _products(rows)]
    for name in ("bound", "one", "own"):
        found[f"{name}_off"] = 100 * (found[f"{name}_us"] / found["median_us"].astype(float) - 1)
    larger = np.where(terms["first"] + terms["memory"] >= terms["compute"], "memory", "compute")
    found["by"] = np.where(fixed > found["bound_us"], "launch", larger)
    return found


def left_out(rows: pd.DataFrame, machine: Machine, reaches: Sequence[float] = WHOLE) -> pd.DataFrame:
    """The rows of `compared`, each matrix by a fit to the others; none where there is one alone."""
    found = []
    for _, mine in rows.groupby(["n", "k"], sort=False):
        others = rows.drop(mine.index)
        if len(others):
            found.append(compared(mine, machine, fit(others, machine, reaches)))
    return pd.concat(found) if found else compared(rows, machine, NOTHING).iloc[:0]


def regimes(
    machine: Machine,
    fit: Fit,
    shape: tuple[int, int],
    batches: Iterable[int],
    ways: Iterable[Strategy] = STRATEGIES,
    own: bool = True,
) -> pd.DataFrame:
    """Predicted times of ways over numbers of tokens on one shape: format, impl, n, k, batch, median_us, by
    (what the time is mostly: "launch", "memory" or "compute").
    """
    n, k = shape
    found = []
    for how in ways:
        numbers = (fit.own.get((how.format, how.name)) if own else None) or Own(fit.launch_us, 1.0)
        for batch in batches:
            least = bound(how, n, k, batch, machine, numbers.share)
            fixed = launched(how, batch) * numbers.launch_us
            by = "launch" if fixed > least.us else least.by
            found.append((how.format, how.name, n, k, batch, least.us + fixed, by))
    return pd.DataFrame(found, columns=["format", "impl", "n", "k", "batch", "median_us", "by"])


def ridge_batch(how: Strategy, n: int, k: int, machine: Machine) -> int:
    """The least number of tokens at which arithmetic, not memory, bounds a way; MANY if there is none."""
    batch = 1
    while batch < MANY:
        if bound(how, n, k, batch, machine).by == "compute":
            break
        batch *= 2
    else:
        return MANY
    low, high = batch // 2, batch
    while high - low > 1:
        middle = (low + high) // 2
        if bound(how, n, k, middle, machine).by == "compute":
            high = middle
        else:
            low = middle
    return high
