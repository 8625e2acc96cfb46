"""What lesson 08c's page shows of a token's time and bytes: launches, bytes at the roof, and the rest."""

from __future__ import annotations

import ast
import inspect

import pandas as pd

from rooflab.analysis import ablation
from rooflab.engine import gemma
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.pages import Rows
from rooflab.studies import decode, environment
from rooflab.view import display, plot
from rooflab.view.diagram import operators

STEP = "`products`"
_KERNELS = {
    "_product",
    "_join",
    "gelu_mul",
    "rope_qk_norm",
    "decode_attention",
}  # a launch each, of one token
_QUANTISED = "q8_0"  # the format whose products first round their activations, a launch of its own


def layer_of_gemma() -> list[str]:
    """The kernels that a layer of Gemma's launches for one token, by the calls in the engine's source."""
    tree = ast.parse(inspect.getsource(gemma))
    bodies = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    (loop,) = (node for node in ast.walk(bodies["_through"]) if isinstance(node, ast.For))
    calls = [node for part in (loop, bodies["_attention"]) for node in ast.walk(part)]
    names = [node.func.attr for node in calls if isinstance(node, ast.Call) and hasattr(node.func, "attr")]
    return [name for name in names if name in _KERNELS]


def launches(impl: str, format: str, layers: int) -> int:
    """Launches in all layers of a token, by the source of the engine that `impl` names."""
    if impl == "gemma":
        kernels = layer_of_gemma()
        each, products = len(kernels), kernels.count("_product")
    else:
        plain = operators.launches()
        each, products = len(plain), sum(one.product for one in plain)
    return layers * (each + products * (format == _QUANTISED))


def tokens(rows: Rows, here: Lab) -> Rows:
    """Gemma's tokens after the shortest context and, beside each, Qwen's by the step that launches a kernel a
    product, with the three parts of their times; without the time of an empty launch, two.
    """
    store = ablation.named(here.store.read("decode"))
    plain = store[(store["impl"] == "products") & (store["model"] == decode.MODEL) & (store["batch"] == 1)]
    plain = plain[(plain["seq"] == decode.PROMPT) & plain["usual"]]
    short = rows[rows["seq"] == rows["seq"].min()]
    plain = plain[plain["format"].isin(short["format"])]
    found = pd.concat([short, plain]).sort_values("format", kind="stable").reset_index(drop=True)
    counted = [
        launches(impl, form, model_shapes.get(model).layers)
        for impl, form, model in found[["impl", "format", "model"]].itertuples(index=False)
    ]
    found = found.assign(launches=counted, mb=found["bytes"] / 1e6, mb_launch=found["bytes"] / 1e6 / counted)
    found["bytes_us"] = found["bytes"] / here.roof["dram_read"].value / 1e3
    found["launch_us"] = found["launches"] * (node_us(here) or float("nan"))
    rest = found["median_us"] - found["bytes_us"] - found["launch_us"].fillna(0)
    found["rest_us"] = rest.clip(lower=0)
    found["called"] = found["model"] + ", " + found["weights_as"]
    return found


def node_us(here: Lab) -> float | None:
    """Microseconds of an empty kernel as a node of a graph; None where none was timed."""
    rows = here.store.read("environment")
    if rows.empty:
        return None
    ways = environment.handovers(rows).set_index("handover")["median_us"]
    return float(ways["node of a graph"]) if "node of a graph" in ways else None


def predicted(found: Rows) -> None:
    """Say what the prediction for Gemma rests on: the bytes that a launch has to read, of both models."""
    own, plain = (found[(found["impl"] == "gemma") == ours] for ours in (True, False))
    beside = [
        f"{a.mb_launch:.1f} MB here against {b.mb_launch:.1f} MB in {a.weights_as}"
        for a in own.itertuples()
        for b in plain[plain["format"] == a.format].itertuples()
    ]
    kernels = layer_of_gemma()
    text = f"A layer of Gemma's takes {len(kernels)} launches, {kernels.count('_product')} of them products; "
    text += f"{STEP} takes {len(operators.launches())}. "
    if _QUANTISED in set(own["format"]):
        text += f"With {ablation.FORMATS[_QUANTISED]} weights each product has one more before it, which "
        text += "rounds its activations. Per launch that is "
    else:
        text += "Per launch that is "
    if beside:
        display.say(f"{text}{'; '.join(beside)}.")


def taken_apart(found: Rows, here: Lab) -> None:
    """Draw a token's time: its bytes at the roof, its launches, and the rest; fold the numbers."""
    node, gpu = node_us(here), here.run.gpu
    parts = {"its bytes at the read roof": found["bytes_us"]}
    parts |= {"its launches, as if empty": found["launch_us"]} if node else {}
    parts |= {"the rest": found["rest_us"]}
    title = "A token's time, taken apart"
    fig, ax = plot.figure("µs", title=title, height=1.6 + 0.28 * len(found))
    plot.stacked(ax, [f"{row.called}" for row in found.itertuples()], parts, "µs")
    own = found[found["impl"] == "gemma"]
    share = own["bytes_us"] / own["median_us"]
    caption = f"{title}, {gpu}, {plot.dates(found)}: bytes at the roof are {share.min():.0%} to "
    plot.show(fig, f"{caption}{share.max():.0%} of a token of Gemma's.")
    one = own.loc[own["median_us"].idxmax()]
    text = f"In {one['weights_as']} a token of Gemma's takes {one['median_us']:,.0f} µs. Its bytes would "
    text += f"take {one['bytes_us']:,.0f} µs at the read roof. "
    if node:
        text += (
            f"Its {one['launches']:,.0f} launches would take {one['launch_us']:,.0f} µs, if each took the "
        )
        text += f"{node:.2f} µs of an empty kernel in a graph ([lesson 00b](00b_clocks.ipynb)). "
    each = (found["rest_us"] / found["launches"]).agg(["min", "max"])
    text += f"The rest, {one['rest_us']:,.0f} µs, is {one['rest_us'] / one['launches']:.1f} µs for each "
    text += f"launch ({each['min']:.1f} to {each['max']:.1f} over the bars: it is not one number): time in "
    text += "which kernels run and memory is not busy. A kernel that starts waits for its "
    text += "first bytes, and one that ends leaves SMs idle; no trace of this token was recorded, so how "
    text += "much each takes is open."
    display.say(text)
    heads = {"called": "model, weights", "launches": "launches in the layers", "mb": "MB a token"}
    heads |= {"mb_launch": "MB a launch", "median_us": "µs a token", "bytes_us": "bytes at the roof, µs"}
    heads |= {"launch_us": "launches, µs"} if node else {}
    heads |= {"rest_us": "the rest, µs"}
    forms = dict.fromkeys(("launches", "mb", "median_us", "bytes_us", "launch_us", "rest_us"), "{:,.0f}")
    caption = "Launches are read off the engines' source; the few before and after the layers are left out"
    display.table(found, heads, forms | {"mb_launch": "{:.1f}"}, caption, folded=True)


def bytes_summed(rows: Rows, gemma_: model_shapes.Model) -> None:
    """Show the bytes of a token as a sum: layers, output head, cache."""
    table = pd.DataFrame()
    table["weights"] = rows["weights_as"] + ", head in " + rows["head"].map(ablation.FORMATS)
    table["seq"] = rows["seq"]
    for name, count, form in (
        ("layers", model_shapes.body(gemma_), rows["format"]),
        ("head", model_shapes.head(gemma_), rows["head"]),
    ):
        table[name] = [count * model_shapes.WEIGHT_BYTES[each] / 1e6 for each in form]
    table["all"] = rows["bytes"] / 1e6
    table["cache"] = table["all"] - table["layers"] - table["head"]
    heads = {"weights": "weights", "seq": "context", "layers": "layers, MB", "head": "+ output head, MB"}
    heads |= {"cache": "+ cache, MB", "all": "= MB a token"}
    forms = {"seq": "{:,}"} | dict.fromkeys(("layers", "head", "cache", "all"), "{:,.0f}")
    halves = decode.FEW // 2
    caption = f"Bytes of a token. Cache: of the middle token generated, {halves} after the context"
    display.table(table, heads, forms, caption)
