"""Study `mmq` (lesson 05): a prompt's product on Q8_0 weights, from one token to two thousand.

Activations come in FP16, so every own case quantises them first unless its option prepared=1 says that they
came quantised; rungs 7 to 10 take them as they are. The baseline turns all weights into FP16 and multiplies
by cuBLAS, the peers have them in FP16 all along (or, without scales, in int8: torch._int_mm, and in FP8:
torch._scaled_mm). exact=1 and unquantised=1 are the study q8_0's: they change what judges a product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rooflab import ops
from rooflab.bench import gate
from rooflab.hardware import roofline
from rooflab.hardware.device import Device
from rooflab.numerics.quant import BLOCK, Planes
from rooflab.ops import Rung, mmq, q8_0
from rooflab.records.case import Case, options
from rooflab.studies import buffers, products
from rooflab.studies.base import Context, Count, Described, Profile, Sized, Study, macros_of, tunables, turn
from rooflab.studies.q8_0_operands import (
    WEIGHT_BYTES,
    blocks_of,
    expect,
    judge_of,
    operands,
    quantiser_rule,
    widened,
)

SHAPES = ((8192, 8192), (14336, 4096), (10240, 2560))  # (n, k); the first leads
PROMPTS = (512, 1848)
# Numbers of tokens: those at which a tile is full, those one beyond, which begin another, and some between.
FEW = (
    *(9, 12, 16, 17, 20, 24, 28, 32, 33, 40, 48, 56, 64, 65, 80, 96, 112, 128, 129, 160, 192, 193, 224, 256),
)
TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, *FEW, 384, 512, 768, 1024, 1536, 1848, 2048)
# (n, k, tokens) whose tiles of 64 rows fill the GPU less than once: what SMALL_RUNG is for.
SMALL = ((1024, 1024, 512), (2048, 2048, 96), (2048, 2048, 256), (2560, 2560, 150), (1536, 4096, 320))
SMALL_RUNG = "10_k_groups"
JUDGED = ((256, 256, 8), (1024, 512, 12), (33, 256, 5), (128, 2560, 64))  # (n, k, tokens), the source's tests
BASELINE = "dequantise+torch.matmul"
FP8 = "torch._scaled_mm"
PEERS = ("torch.matmul", "torch._int_mm", FP8)
SLOTS = 4  # schedulers of an SM: instructions of warps that it starts in a cycle
DECODE = "q8_0/"  # rungs of the decode product are in this table under their operator's name
DP4A, MANY = DECODE + "5_batch", 64  # a rung that multiplies more tokens than it takes in parts, up to MANY
COUNTERS = (
    *("time_ns", "dram_bytes", "dram_read_bytes", "sm_read_bytes", "sm_pct", "tensor_pct", "l2_hit_pct"),
    *("occupancy_pct", "inst_executed", "issue_active", "stall_long_scoreboard", "stall_barrier"),
    "shared_load_conflicts",
)


def _case(impl: str, n: int, k: int, batch: int, **more: Any) -> Case:
    kind = "baseline" if impl == BASELINE else "peer" if impl in PEERS else "own"
    format = {"torch.matmul": "fp16", "torch._int_mm": "int8", FP8: "fp8_e4m3"}.get(impl, "q8_0")
    sizes = {"n": n, "k": k, "batch": batch}
    return Case("mmq", "mmq", impl, **{"kind": kind, "format": format, **sizes, "state": "burst", **more})


def ladder(batch: int, n: int = SHAPES[0][0], k: int = SHAPES[0][1]) -> list[Case]:
    """Every rung but that for small matrices on one shape with its activations quantised before, the baseline
    and the peers; and the first rung with its scales taken byte by byte.
    """
    prepared = [
        _case(rung.name, n, k, batch, options="" if takes_halves(rung.name) else options(prepared=1))
        for rung in mmq.LADDERS["mmq"]
        if rung.name != SMALL_RUNG
    ]
    bytewise = _case("1_tile", n, k, batch, options=options(prepared=1, scale_bytes=1))
    return [*prepared, bytewise, *(_case(impl, n, k, batch) for impl in (BASELINE, *PEERS))]


def contenders(batch: int) -> list[str]:
    """What is worth trying at so many tokens: decode rungs on planes up to what they take (dp4a beyond that,
    in parts), from 8 tokens on the portable rung and Hopper's, the baseline, and cuBLAS in FP16.
    """
    found = []
    for name, (kind, _, most, _) in q8_0.TAKES.items():
        if kind == "planes" and (batch == 1 or 1 < most >= (batch if DECODE + name != DP4A else 1)):
            found += [DECODE + name] * (DECODE + name != DP4A or batch <= MANY)
    names = [rung.name for rung in mmq.LADDERS["mmq"] if rung.name != SMALL_RUNG]
    prompt = names[names.index(mmq.DEFAULT["mmq"]) :] if batch >= 8 else []
    return [*found, *prompt, BASELINE, "torch.matmul"]


def judged(how: str) -> list[Case]:
    """The rungs on the source's shapes, judged as the option `how` says ("exact", "unquantised"): to the last
    bit only those that add up whole numbers.
    """
    found = []
    for n, k, batch in JUDGED:
        decode = [
            DECODE + name for name, takes in q8_0.TAKES.items() if takes[2] >= batch and not k % takes[3]
        ]
        prompt = [r.name for r in mmq.LADDERS["mmq"] if how != "exact" or not takes_halves(r.name)]
        more = {"options": options(**{how: 1}), "cache": "warm"}
        found += [_case(impl, n, k, batch, **more) for impl in (*decode, *prompt)]
    return found


def sweep(n: int, k: int, tokens: Sequence[int]) -> list[Case]:
    """The contenders of every number of tokens, quantising included."""
    return [_case(impl, n, k, batch) for batch in tokens for impl in contenders(batch)]


def small() -> list[Case]:
    """The rungs that take weights in tile order and cuBLAS on small matrices."""
    return [_case(impl, *shape) for shape in SMALL for impl in (*mmq.TILED, BASELINE, "torch.matmul")]


def issue_bound(device: Device, operations: int) -> float:
    """TOP/s of an exact product whose every block result takes so many instructions, at the peak's clock."""
    return device.int8_tensor * min(1.0, room(device) / operations)


def scaling_bound(device: Device, operations: int) -> float:
    """`issue_bound`, or less where three instructions have a conversion and that is the slower."""
    converted = convertible(device) if operations > 2 else 1.0
    return min(issue_bound(device, operations), device.int8_tensor * converted)


def operations_of(impl: str) -> int | None:
    """Instructions by which a rung scales one block's result: convert, multiply, multiply and add, or where
    a sum starts at 1.5 x 2^23 two of the last; None where blocks are not scaled one by one.
    """
    if takes_halves(impl):
        return None
    return 2 if impl in ("5_large_tiles", DECODE + "6_mma") else 3


def takes_halves(impl: str) -> bool:
    """Whether a rung takes its activations in FP16, as they are, and makes halves of the weights."""
    return impl in mmq.HALVES


def room(device: Device) -> float:
    """Instructions that an SM issues for each block result of its int8 tensor cores, by the cycle: peaks may
    be counted at two clocks.
    """
    lanes, sums = per_cycle(device)
    return lanes / sums


def convertible(device: Device) -> float:
    """Block results that an SM converts to floats for each that its int8 tensor cores give."""
    return roofline.conversions(device.compute_capability) / per_cycle(device)[1]


def per_cycle(device: Device) -> tuple[int, float]:
    """Lanes that an SM starts an instruction for in a cycle, at most its FP32 lanes; int8 block results."""
    peaks, clock = (device.fp32, device.int8_tensor), device.boost_mhz / 1e3
    lanes, products = (roofline.multiply_adds(peak, device.sms, clock) for peak in peaks)
    return min(32 * SLOTS, lanes), products / BLOCK


def scaling(case: Case) -> int | None:
    """Instructions of warps that scale the results of an own case's blocks; None if it scales none."""
    each = operations_of(case.impl)
    return each and (case.n or 0) * (case.batch or 0) * (case.k or 0) // BLOCK // 32 * each


def reads(case: Case) -> tuple[int, int, int]:
    """How many times the tiles of a prompt's rung read the weights and the activations, and the bytes that
    makes, if no tile finds in its SM what another has read. There are fewer tiles of tokens than of rows.
    Narrow tiles of 6_wgmma count in the bytes alone: they read the last activations twice as often.
    """
    rung, macros, _ = own_rung(case)
    n, k, batch = case.matrix
    if rung.name in mmq.STAYING:  # its blocks take tiles of this shape, and parts of them along k
        tiles = math.ceil(batch / macros["TOKENS"]), math.ceil(n / (128 * macros["ROW_TILES"]))
    else:
        tiles = mmq.launch_shape(rung, n, batch, macros)[0]
    weights, activations = sorted(tiles)
    each = 2 if takes_halves(case.impl) else WEIGHT_BYTES
    if macros.get("NARROW"):  # all blocks are numbered in one row; narrow ones have half the rows
        weights, activations = math.ceil(batch / 128), math.ceil(n / 128)
        last = batch % 128
        again = last * (math.ceil(n / 64) - activations)
        return weights, activations, int(k * each * (weights * n + activations * batch + again))
    return weights, activations, int(k * (weights * n * WEIGHT_BYTES + activations * batch * each))


def tile(case: Case) -> tuple[int, int]:
    """Rows and tokens of a tile of a prompt's rung, by its launch rule."""
    rung, macros, _ = own_rung(case)
    if rung.name in mmq.STAYING:
        return 128 * macros["ROW_TILES"], macros["TOKENS"]
    many, whole = 1 << 14, {**macros, "NARROW": 0}
    rows, tokens = (math.prod(mmq.launch_shape(rung, *of, whole)[0]) for of in ((many, 1), (1, many)))
    return many // rows, many // tokens


def own_rung(case: Case) -> Described:
    """Rung, macros and launch rule of an own case, its quantiser's among them."""
    chosen, batch = macros_of(case, "prepared", "exact", "unquantised"), case.batch or 1
    if case.impl.startswith(DECODE):
        rung = ops.rung_of(q8_0.LADDERS["q8_0"], case.impl.removeprefix(DECODE), "")
        most = q8_0.TAKES[rung.name][2]
        macros, rule = {**q8_0.options_for(rung, min(batch, most)), **chosen}, q8_0.launch_rule(rung)
    else:
        rung = ops.rung_of(mmq.LADDERS["mmq"], case.impl, "")
        macros = {**mmq.macros_for(rung, case.n or 0, case.k or 0, batch), **chosen}
        rule = mmq.launch_rule(rung)
    if not tunables(case).get("prepared") and not takes_halves(case.impl):
        rule += quantiser_rule()
    return rung, rung.with_defaults(macros), rule


class Mmq(Study):
    """Lesson 05, prompts."""

    name, lesson = "mmq", "05"
    setup_s = 0.05  # many cases share a shape's weights and oracle

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        alike = [*judged("exact"), *judged("unquantised")]
        if effort == "quick":
            few = sweep(*SHAPES[0], (1, 2, 8, 16, 32, 64, 128, 256, 512))
            return list(dict.fromkeys([*ladder(PROMPTS[0]), *few, *alike]))
        found = [
            *(case for batch in PROMPTS for case in ladder(batch)),
            *sweep(*SHAPES[0], TOKENS),
            *(case for shape in SHAPES[1:] for case in sweep(*shape, FEW)),
            *small(),
            *alike,
        ]
        return list(dict.fromkeys(found))

    def profiles(self, effort: str = "full", device: Sized | None = None) -> list[Profile]:
        return [("ncu", [case for case in ladder(PROMPTS[0]) if case.kind == "own"], COUNTERS)]

    def needs(self, case: Case) -> str | None:
        return None if case.kind == "own" else "torch"

    def refuses(self, case: Case, capability: int) -> str | None:
        if case.kind == "own":
            least = own_rung(case)[0].archs[0]
            if least == "90a" and capability != 90:
                return "wgmma needs compute capability 9.0"
            if capability < int(least.rstrip("a")):
                return f"cp.async needs compute capability {least[0]}.{least[1]}"
        if case.impl == FP8 and capability < 89:
            return "FP8 products need compute capability 8.9"
        return super().refuses(case, capability)

    def _weights(self, case: Case) -> int:
        size = {"torch.matmul": 2.0, "torch._int_mm": 1.0, FP8: 1.0}.get(case.impl, WEIGHT_BYTES)
        return int((case.n or 0) * (case.k or 0) * size)

    def _copies(self, case: Case) -> int:
        return buffers.copies(case, int((case.n or 0) * (case.k or 0) * WEIGHT_BYTES))

    def memory_bytes(self, case: Case) -> int:
        outputs = (4 if case.impl == "torch._int_mm" else 2) * (case.batch or 0) * (case.n or 0)
        workspace = 2 * (case.n or 0) * (case.k or 0) if case.impl == BASELINE else 0
        return self._copies(case) * (self._weights(case) + outputs) + workspace

    def shared_bytes(self, case: Case) -> int:
        n, k, batch = case.matrix
        return 24 * n * k + 8 * 4 * batch * (n + k)

    def group(self, case: Case) -> tuple:
        # Contestants of one comparison may differ in format: cuBLAS has the weights in FP16.
        return (case.operator, case.n, case.k, case.batch, case.cache, turn(case), judge_of(case))

    def works(self, group: Sequence[Case]) -> list[gate.Work]:
        return _contestants(group, self._copies(group[0]))

    def count(self, case: Case) -> Count:
        n, k, batch = case.matrix
        half = takes_halves(case.impl) or case.impl in (BASELINE, "torch.matmul")
        moved = self._weights(case) + batch * (2 * k + (4 if case.impl == "torch._int_mm" else 2) * n)
        ceiling = "fp8_tensor" if case.impl == FP8 else "fp16_tensor" if half else "int8_tensor"
        return Count(moved, roofline.gemm_flops(batch, n, k), ceiling)

    def predict(self, case: Case, context: Context) -> float | None:
        if context.device is None:
            return None
        count, device, n_k = self.count(case), context.device, (case.n or 0) * (case.k or 0)
        operations = operations_of(case.impl) if case.kind == "own" else None
        peaks = {"torch._int_mm": device.int8_tensor, FP8: device.fp8_tensor or device.fp16_tensor}
        tops = peaks.get(case.impl, device.fp16_tensor)
        if operations:
            tops = scaling_bound(device, operations)
        extra = (WEIGHT_BYTES + 2) * n_k / device.dram_gb_s / 1e3 if case.impl == BASELINE else 0.0
        moved = count.bytes or 0
        if case.impl == BASELINE:  # the halves are read again by the product
            moved += int((2 - WEIGHT_BYTES) * n_k)
        if case.impl == DP4A:  # all weights for each part of the tokens, and no tensor cores
            again = len(parts_of(case)) - 1
            return (moved + again * self._weights(case)) / device.dram_gb_s / 1e3
        return extra + roofline.bound(moved, count.flops or 0, device.dram_gb_s, tops).us

    own_rung = staticmethod(own_rung)


def _contestants(cases: Sequence[Case], count: int) -> list[gate.Work]:
    """Contestants of one shape and number of tokens, each judged on the operands it is given."""
    xp = ops.arrays()
    n, k, batch = cases[0].matrix
    how = judge_of(cases[0])
    planes, x = operands(how, n, k, batch)
    prepared, w32 = q8_0.quantise(x), widened(planes)
    made: dict[str, Any] = {}

    def rotated(what: str) -> Any:
        """The weights as contestants take them, `count` copies of each kind."""
        if what not in made:
            kinds: dict[str, Callable[[], Any]] = {
                "planes": lambda: planes,
                "blocks": lambda: blocks_of(planes),
                "tiles": lambda: q8_0.repack(planes),
                "halves": lambda: w32.astype("float16"),
                "bytes": lambda: planes.quants,
            }
            made[what] = buffers.copied(kinds[what](), count)
        return made[what]

    def judge(rounded: bool, given: bool) -> tuple[Any, float]:
        """The exact product and its budget: of weights rounded to FP16 or not, of quantised activations or
        of those given.
        """
        key = f"judge {rounded} {given}"
        if key not in made:
            w = w32.astype("float16").astype("float32") if rounded else w32
            a = x.astype("float32") if given else widened(prepared)
            made[key] = expect(how, w, a, x, halved=given and not rounded)
        return made[key]

    works = []
    for case in cases:
        if case.impl == "torch._int_mm":
            works.append(_int_mm(case, rotated("bytes"), prepared.quants))
            continue
        if case.impl == FP8:
            works.append(_scaled_mm(case, w32, x, count))
            continue
        outputs = [[xp.empty((batch, n), "float16")] for _ in range(count)]
        if case.kind == "own":
            ws = rotated("planes" if case.impl.startswith(DECODE) else mmq.order_of(case.impl))
            expected, budget = judge(False, takes_halves(case.impl))
            launch = _own(case, ws, x, prepared, outputs)
        else:
            # The baseline's halves are those of the peer: quant times scale, rounded once.
            ws = rotated("blocks" if case.impl == BASELINE else "halves")
            expected, budget = judge(True, True)
            launch = _cublas(case, ws, x, outputs)
        inputs = [[*q8_0.arrays_of(w), x, *prepared] for w in ws]
        works.append(gate.Work(case.id, launch, inputs, outputs, gate.constant(expected), budget))
    return works


def _own(
    case: Case, ws: Sequence[Any], x: Any, prepared: Any, outputs: Sequence[Any]
) -> Callable[[int], None]:
    rung, macros, _ = own_rung(case)
    parts = parts_of(case)
    if len(parts) > 1:
        return _in_parts(ws, x, outputs, rung, parts)
    product = q8_0.matvec if case.impl.startswith(DECODE) else mmq.product
    if takes_halves(case.impl) or tunables(case).get("prepared"):
        given = x if takes_halves(case.impl) else prepared
        return lambda i: product(given, ws[i], out=outputs[i][0], rung=rung.name, **macros)
    workspace = q8_0.quantise(x)

    def launch(i: int) -> None:
        product(q8_0.quantise(x, out=workspace), ws[i], out=outputs[i][0], rung=rung.name, **macros)

    return launch


def parts_of(case: Case) -> list[slice]:
    """The tokens of a case in parts: one, unless a decode rung has more of them than it takes at once."""
    batch = case.batch or 1
    most = q8_0.TAKES[case.impl.removeprefix(DECODE)][2] if case.impl.startswith(DECODE) else batch
    return [slice(first, min(first + most, batch)) for first in range(0, batch, most)]


def _in_parts(
    ws: Sequence[Any], x: Any, outputs: Sequence[Any], rung: Rung, parts: Sequence[slice]
) -> Callable[[int], None]:
    """Quantise all tokens, then a product for each part of them."""
    workspace = q8_0.quantise(x)
    given = [Planes(workspace.scales[part], workspace.quants[part]) for part in parts]

    def launch(i: int) -> None:
        q8_0.quantise(x, out=workspace)
        for part, tokens in zip(parts, given, strict=True):
            q8_0.matvec(tokens, ws[i], out=outputs[i][0][part], rung=rung.name)

    return launch


def _cublas(case: Case, ws: Sequence[Any], x: Any, outputs: Sequence[Any]) -> Callable[[int], None]:
    """cuBLAS on FP16 weights that lie there, or that are made anew every time from Q8_0."""
    results = [out for (out,) in outputs]
    if case.impl != BASELINE:
        return products.torch_matmul(ws, [x] * len(ws), results)
    workspace = q8_0.dequantise(ws[0])
    multiply = products.torch_matmul([workspace] * len(ws), [x] * len(ws), results)

    def launch(i: int) -> None:
        q8_0.dequantise(ws[i], out=workspace)
        multiply(i)

    return launch


def _int_mm(case: Case, ws: Sequence[Any], quants: Any) -> gate.Work:
    """torch's int8 product, exact and without scales: the ceiling of int8, not a contestant of the format."""
    import torch

    xp = ops.arrays()
    expected = (quants.astype("float32") @ ws[0].astype("float32").T).astype("float64")
    outputs = [[xp.empty((case.batch, case.n), "int32")] for _ in ws]
    turned = [torch.from_dlpack(w).t() for w in ws]
    x, results = torch.from_dlpack(quants), [torch.from_dlpack(out) for (out,) in outputs]

    def launch(i: int) -> None:
        torch._int_mm(x, turned[i], out=results[i])

    return gate.Work(case.id, launch, [[w, quants] for w in ws], outputs, lambda: expected)


def _scaled_mm(case: Case, w32: Any, x: Any, count: int) -> gate.Work:
    """torch's FP8 product of weights and activations rounded to E4M3, without scales, BF16 out: the ceiling
    of FP8. Its tensor cores keep fewer digits of a sum than FP32, so its budget is one step of BF16.
    """
    import torch

    xp = ops.arrays()
    eights = torch.float8_e4m3fn
    w, a = (torch.from_dlpack(each).float().to(eights) for each in (w32, x))
    exact = xp.from_dlpack(a.double() @ w.double().t())
    ws = [w, *(w.clone() for _ in range(count - 1))]
    outputs = [[torch.empty((case.batch, case.n), device="cuda", dtype=torch.bfloat16)] for _ in ws]
    one = torch.ones((), device="cuda")
    budget = 2.0**-7 * float(abs(exact).max())

    def launch(i: int) -> None:
        torch._scaled_mm(a, ws[i].t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, out=outputs[i][0])

    return gate.Work(
        case.id, launch, [[each.view(torch.uint8)] for each in ws], outputs, lambda: exact, budget
    )
