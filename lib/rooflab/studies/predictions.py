"""What each step of lesson 08's ladders should bring, predicted before it is measured: Amdahl's law over
lesson 02's split of a token, with what lesson 00 measured of launches and barriers and lesson 07's law of a
product.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rooflab import dispatch, engine, ops
from rooflab.hardware import perf_model, roofline
from rooflab.hardware.device import Device
from rooflab.numerics import model_shapes
from rooflab.records import profiles
from rooflab.records.store import Store
from rooflab.studies import attribution, bandwidth, launch_rule, regimes

# The studies that predictions are made from.
SOURCES = ("environment", "bandwidth", "gemv", "attribution", "int4", "mmq", "attention", "regimes")
_LAUNCHERS = ("touch", "torch.fill_ peer")
_IN_TORCH = 32  # operators of torch a layer that norms, rotations and gating make
PHASES = 5  # of a layer: queries with keys and values, attention, its output, gate with up, down
_DEPENDENT = 7  # kernels of a layer where they are dependent launches
_PRODUCT = {"fp16": "gemv", "q8_0": "dp4a", "int4_g128": "fused"}
_FEW = {"fp16": "cublas", "q8_0": "mma", "int4_g128": "fused"}  # tokens at once
_MANY = {"fp16": "cublas", "q8_0": "mmq_wgmma", "int4_g128": "two_op"}


@dataclass(frozen=True)
class Known:
    """What was recorded before, of one model. `waits`: microseconds of a token by transformers' way; `token`:
    of a token in a graph, by part ("weight", "attention", "norm", "rest"); `prompts`: by length, the same of
    a whole prompt, and `prompt_waits` its time; node_us, edge_us, barrier_us: a launch in a graph, a
    dependent one, a barrier of the grid, call_us and torch_us what a launch takes
    the host, ours and torch's; `attention`: TFLOP/s by rung and length.
    """

    machine: perf_model.Machine
    fit: perf_model.Fit
    node_us: float
    edge_us: float
    barrier_us: float
    call_us: float = 0.0
    torch_us: float = 0.0
    waits: Mapping[str, float] = field(default_factory=dict)
    token: Mapping[str, float] = field(default_factory=dict)
    rule: launch_rule.Rule | None = None
    prompts: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    prompt_waits: Mapping[int, float] = field(default_factory=dict)
    attention: Mapping[str, Mapping[int, float]] = field(default_factory=dict)


def known(device: Device | None) -> Known | None:
    """What was recorded on a device so far; None where a row that every prediction needs is missing."""
    for root in dispatch.roots() if device else ():
        found = held(root, device.slug, device) if device else None
        if found:
            return found
    return None


@functools.lru_cache(maxsize=2)
def held(root: Path, name: str, device: Device) -> Known | None:
    """The same of one recording, `name` in `root`; read once by a process, so that predictions come before
    what they are about.
    """
    if not (root / name / "runs.csv").is_file():
        return None
    store = Store(root, name)
    environment = store.read("environment").set_index("case")["median_us"]
    roofs = {name: found.value for name, found in bandwidth.roofs(store.read("bandwidth")).items()}
    products = regimes.gathered(store.read(study) for study in ("regimes", "gemv", "int4", "mmq"))
    try:
        node, edge = environment["touch/touch warm graph"], environment["touch/touch warm graph_pdl"]
        barriers = environment[environment.index.str.startswith("barrier/barrier")]
        rounds = [int(case.partition("rounds=")[2].split()[0]) for case in barriers.index]
        first, last = rounds.index(min(rounds)), rounds.index(max(rounds))
        barrier = (barriers.iloc[last] - barriers.iloc[first]) / (rounds[last] - rounds[first])
        calls = [environment[f"touch/{impl} chain=100 warm event"] / 100 for impl in _LAUNCHERS]
    except (KeyError, ValueError, IndexError):
        return None
    if products.empty or "dram_read" not in roofs:
        return None
    machine = perf_model.measured(roofs, device)
    fit = perf_model.fit(products[products["clock"] == "graph"], machine)
    own, theirs = map(float, calls)
    found = Known(machine, fit, float(node), float(edge), float(barrier), own, theirs)
    return _with_tokens(found, store)


def _with_tokens(found: Known, store: Store) -> Known:
    """With what lesson 02 traced of the course's model, and lesson 06 of attention."""
    rows = store.read("attribution")
    path = store.folder / "profiles" / "attribution_nsys.csv"
    waits = rows[rows["operator"] == "decode"].sort_values("seq").drop_duplicates("impl")  # shortest contexts
    values = dict(vars(found), waits=dict(zip(waits["impl"], waits["median_us"], strict=True)))
    whole = rows[rows["operator"] == "prefill"]
    values["prompt_waits"] = dict(zip(whole["seq"].astype(int), whole["median_us"], strict=True))
    if path.is_file() and len(rows):
        trace = launch_rule.named(profiles.read(path))
        graph = trace[(trace["variant"] == "graph") & (trace["seq"] == attribution.CONTEXTS[0])]
        if len(graph):
            values["token"] = launch_rule.part_times(graph)
            values["rule"] = launch_rule.rule(graph, attribution.MODEL, found.machine.gb_s)
        prompts = trace[trace["operator"] == "prefill"]
        values["prompts"] = {int(str(n)): launch_rule.part_times(one) for n, one in prompts.groupby("seq")}
    attention = store.read("attention")
    attention = attention[
        (attention["operator"] == "attention")
        & (attention["head_dim"] == 128)
        & attention["window"].isna()
        & attention["tflop_s"].notna()
    ]
    values["attention"] = {
        str(impl): dict(zip(mine["seq"].astype(int), mine["tflop_s"], strict=True))
        for impl, mine in attention.groupby("impl")
    }
    return Known(**values)


# --- a token ------------------------------------------------------------------------------------------------


def products_us(known: Known, model: str, format: str, head: str, batch: int = 1) -> float:
    """Microseconds of a token's products, queries with keys and values and gate with up in one each, by the
    law of a product.
    """
    spec = engine.spec(model)
    total = 0.0
    for name, (n, k) in spec.shape.matrices.items():
        kind = head if name == "head" else format
        how = perf_model.strategy(kind, (_PRODUCT if batch == 1 else _FEW)[kind])
        times = 1 if name == "head" else spec.shape.layers
        total += times * perf_model.us(how, n, k, batch, known.machine, known.fit)
    return total


def token_us(
    known: Known, way: str, model: str, format: str, head: str, context: int, batch: int = 1
) -> float | None:
    """Predicted microseconds of a decoded token (with `batch` sequences: of one for each, of `batch` drafts:
    of a check), None where the records say nothing of such a way.
    """
    if way == "gemma":
        return None
    shape, sizes = engine.spec(model).shape, model_shapes.get(model)
    caches = 1 if way == "drafts" else batch
    cache = caches * model_shapes.kv_read_bytes(sizes, context) / known.machine.gb_s / 1e3
    attention = shape.layers * known.node_us + cache
    launches = PHASES * shape.layers + 1
    stream = model_shapes.weight_bytes(sizes, format, head) / known.machine.gb_s / 1e3 + cache
    if way.startswith("transformers."):
        return _library_us(known, way, model)  # several sequences read the weights once, too
    if way in ("apart", "torch", "products"):
        if model != attribution.MODEL or not known.token or known.rule is None:
            return None
        whole, token = known.waits.get("transformers.graph"), known.token
        if whole is None:
            return None
        others = whole - token["weight"] - token["attention"] + attention
        if way == "products":
            return others + products_us(known, model, format, head)
        if way == "apart":
            return others + known.rule.weights_us(sizes)
        few = (4 * shape.layers + 1) * known.rule.product_us
        return others + few + model_shapes.weight_bytes(sizes, "fp16") / known.rule.gb_s / 1e3
    if way == "batch":
        return products_us(known, model, format, head, batch) + attention + launches * known.node_us
    if way in ("batch_dependent", "drafts", "chain"):  # weights at the roof, and every kernel a dependent one
        return stream + (_DEPENDENT * shape.layers + 4 + (way == "drafts")) * known.edge_us
    phases = products_us(known, model, format, head) + attention
    if way == "1_kernel_per_phase":
        return phases
    if way == "2_pdl":
        return phases - launches * (known.node_us - known.edge_us)
    barriers = launches * known.barrier_us
    if way == "3_persistent":
        return stream + barriers
    return max(stream, barriers)  # copies that block nothing continue during a barrier


def _library_us(known: Known, way: str, model: str) -> float | None:
    """What transformers took before; of a model that was not taken apart, by layers and lesson 02's rule."""
    eager, waits = way == "transformers.eager", known.waits.get(way)
    if waits is None or model == attribution.MODEL:
        return waits
    gpu = known.waits.get("transformers.graph") if eager else waits
    if gpu is None or known.rule is None or not known.token:
        return None
    sizes = model_shapes.get(model)
    longer = sizes.layers / model_shapes.get(attribution.MODEL).layers
    needed = longer * (gpu - known.token["weight"]) + known.rule.weights_us(sizes)
    return max(longer * waits, needed) if eager else needed


# --- a prompt -----------------------------------------------------------------------------------------------


def prompt_us(known: Known, model: str, format: str, n: int, paths: engine.Paths, flash: str) -> float:
    """Predicted microseconds of a prompt of n tokens: products by the law, attention at the rate that a rung
    was recorded at, what stands between them as in lesson 02's trace or at the roof. Without a graph the
    host has to call everything, and the slower of the two sets the time.
    """
    gpu = _prompt_gpu_us(known, model, format, n, paths, flash)
    if paths.graph:
        return gpu
    ours, torch = prompt_calls(model, format, n, paths)
    return max(gpu, ours * known.call_us + torch * known.torch_us)


def prompt_calls(model: str, format: str, n: int, paths: engine.Paths) -> tuple[int, int]:
    """Launches that the host makes one by one for a prompt of n tokens without a graph: of our kernels, an
    embedding's among them, and of torch's.
    """
    layers, own = engine.spec(model).shape.layers, 4 * (paths.mmq and format == "q8_0")
    ours = layers * (own + (5 if paths.rows else 1)) + (1 if paths.embed else n)
    return ours, layers * ((4 if not own else 0) + (0 if paths.rows else _IN_TORCH))


def _prompt_gpu_us(known: Known, model: str, format: str, n: int, paths: engine.Paths, flash: str) -> float:
    spec, sizes = engine.spec(model), model_shapes.get(model)
    shape, machine = spec.shape, known.machine
    name = _MANY[format] if paths.mmq or format != "q8_0" else "two_op"
    how = perf_model.strategy(format, name)
    whole = shape.layers - paths.last  # layers whose every product is of all tokens
    total = sum(
        (shape.layers if part == "qkv" else whole) * perf_model.us(how, rows_, k, n, machine, known.fit)
        for part, (rows_, k) in shape.matrices.items()
        if part != "head"
    )
    total += model_shapes.head(sizes) * model_shapes.WEIGHT_BYTES[format] / machine.gb_s / 1e3
    pairs = roofline.attention_pairs(n, n)
    work = whole * roofline.attention_flops(pairs, shape.heads, shape.head_dim)
    rates = known.attention.get(flash) or {0: machine.peaks["fp16_tensor"]}
    nearest = min(rates, key=lambda seq: abs(seq - n))
    total += work / rates[nearest] / 1e6
    if paths.rows or not known.prompts:
        # Two norms and rotating, and gating where no product does it.
        gated = ops.known_arch() == "90" and paths.gates_in_product(format, n)
        moved = 2 * 16 * shape.hidden + 4 * shape.projected + (0 if gated else 6 * shape.mlp)
        return total + shape.layers * (n * moved / machine.gb_s / 1e3 + (3 if gated else 4) * known.node_us)
    nearest = min(known.prompts, key=lambda seq: abs(seq - n))
    parts = known.prompts[nearest]
    return total + (parts.get("norm", 0.0) + parts.get("rest", 0.0)) * n / nearest
