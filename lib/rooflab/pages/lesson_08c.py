"""What lesson 08c's page shows: Gemma 4 on the same kernels."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd

import rooflab.lab
from rooflab.analysis import ablation
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.pages import Opening, Rows, bars, facts, lesson_08c_time
from rooflab.records.store import Store
from rooflab.studies import decode, prefill
from rooflab.view import diagram, display, explorer, plot
from rooflab.view.explorer_facts import SAYS
from rooflab.words import listed


def gemma_rows(lab: Lab) -> tuple[Rows, Lab]:
    """Gemma's decoded tokens, one sequence, and the lab that holds them."""
    rows = lab.measure(
        "decode", lab.held("decode", [c for c in lab.cases("decode") if c.model == decode.GEMMA])
    )
    if rows.empty:
        lab = display.borrowed(lab, f"no {decode.GEMMA} was run")
        held = lab.store.read("decode")
        rows = held[held["model"] == decode.GEMMA]
    return ablation.named(rows), lab


def opening(rows: Rows, here: Lab) -> Opening:
    """The first screen: Gemma's rates beside what its bytes allow."""
    best, gpu = rows.sort_values("tok_s").iloc[-1], here.run.gpu
    text = f"On the {gpu} the kernels of lessons 03 to 06 run Gemma 4 E4B at {best['tok_s']:,.0f} tokens "
    text += f"a second in {best['weights_as']}. In {listed(dict.fromkeys(rows['weights_as']))} they reach "
    text += f"{_range(rows['roof_fraction'])} of what its bytes allow; a token is {_launches(rows)} "
    text += "launches."
    able = (
        "count the cache bytes of a model with windows and shared caches",
        "carry a bound over to a model of another kind, and judge it",
        "say what a soft cap on logits changes, and what it does not",
    )
    title = "Gemma 4 E4B, one sequence"
    names = [f"{row['weights_as']}, after {int(row['seq']):,} tokens" for _, row in rows.iterrows()]
    fig, said = bars(rows, names, gpu, title, y="tok_s")
    ax = fig.axes[0]
    bound = here.roof["dram_read"].value * 1e9 / rows["bytes"]
    mark = {"color": plot.COLOURS[1], "markersize": 15, "markeredgewidth": 3, "zorder": 5}
    ax.plot(bound, range(len(bound)), "|", label="its bytes at the read roof", **mark)
    ax.set_xlim(0, 1.05 * float(bound.max()))
    fig.legend(loc="outside lower center", fontsize=8, frameon=False)
    return text, able, (fig, said)


def _launches(rows: Rows) -> str:
    """The launches of a token, from the fewest to the most of the formats."""
    layers = model_shapes.get(decode.GEMMA).layers
    counts = sorted({lesson_08c_time.launches("gemma", form, layers) for form in rows["format"]})
    return " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))


def _range(shares: Rows) -> str:
    """Shares from the least to the most: "28% to 35%", or one where they are equal."""
    low, high = f"{shares.min():.0%}", f"{shares.max():.0%}"
    return low if low == high else f"{low} to {high}"


def run_facts(lab: Lab) -> None:
    """The facts of the run, in one line."""
    facts(lab, "decode", f"DRAM read {lab.roof['dram_read'].value:,.0f} GB/s")


def layers_drawn(gemma: model_shapes.Model) -> None:
    """Draw what each of Gemma's layers reads; folded, the kinds of layers."""
    diagram.caches(gemma).show()
    kinds = Counter((each.head_dim, each.window, each.owns_kv) for each in model_shapes.layers(gemma))
    table = pd.DataFrame(
        [
            (
                width,
                f"{window:,} tokens" if window else "everything",
                "its own" if own else "an earlier layer's",
                n,
            )
            for (width, window, own), n in kinds.items()
        ],
        columns=["width of a head", "sees", "cache", "layers"],
    )
    order = ("layers", "width of a head", "sees", "cache")
    caption = f"The kinds of layers of {gemma.name}, {gemma.layers} layers; each attends by {gemma.heads} "
    caption += f"query heads to {gemma.kv_heads} heads of keys and values (KV heads)"
    display.table(table, {name: name for name in order}, caption=caption, folded=True)


def cache_read(gemma: model_shapes.Model, plain: model_shapes.Model) -> None:
    """Show the cache that a token of Gemma's reads beside a plain model's."""
    widths = sum(each.head_dim for each in model_shapes.layers(gemma))
    cache = pd.DataFrame({"n": [128, 1024, 8192, 32768]})
    cache["gemma"] = [model_shapes.kv_read_bytes(gemma, n) / 1e6 for n in cache["n"]]
    cache["all"] = 2 * 2 * gemma.kv_heads * widths * cache["n"] / 1e6  # keys and values, 2 bytes each
    cache["plain"] = [model_shapes.kv_read_bytes(plain, n) / 1e6 for n in cache["n"]]
    heads = {"n": "context", "gemma": f"{gemma.name}, MB", "all": "without windows, MB"}
    heads |= {"plain": f"{plain.name}, MB"}
    forms = {"n": "{:,}"} | dict.fromkeys(("gemma", "all", "plain"), "{:,.1f}")
    caption = "Cache read for one token: for each layer 2 (keys, values) × 2 bytes × KV heads "
    caption += f"({gemma.name} {gemma.kv_heads}, {plain.name} {plain.kv_heads}) × head width × tokens seen"
    display.table(cache, heads, forms, caption)


def rates(rows: Rows, here: Lab) -> None:
    """Show Gemma's tokens a second beside their bound, and the error of their logits."""
    roof = here.roof["dram_read"].value
    table = rows.assign(
        mb=rows["bytes"] / 1e6, bound=roof * 1e9 / rows["bytes"], share=100 * rows["roof_fraction"]
    )
    heads = {"weights_as": "weights", "seq": "context", "mb": "MB a token", "bound": "roof, tok/s"}
    heads |= {"tok_s": "tok/s", "share": "% of the roof", "error": "largest error", "error_budget": "allowed"}
    forms = {"seq": "{:,}"} | dict.fromkeys(("mb", "bound", "tok_s", "share"), "{:,.0f}")
    forms |= dict.fromkeys(("error", "error_budget"), "{:.4f}")
    display.table(table, heads, forms, f"{decode.GEMMA}, one sequence, {here.run.gpu}")
    store = here.store.read("decode")
    plain = store[(store["impl"] == "products") & (store["model"] == decode.MODEL) & (store["batch"] == 1)]
    plain = plain[plain["seq"] == decode.PROMPT]
    before = plain.groupby("format")["roof_fraction"].max()
    here_ = rows[rows["format"].isin(before.index)].groupby("format", sort=False)["roof_fraction"].min()
    if len(here_):
        said = listed(
            f"{share:.0%} in {ablation.FORMATS[form]} (Qwen by `products`: {before[form]:.0%})"
            for form, share in here_.items()
        )
        nearer = (here_ > before[here_.index]).all()
        verdict = "it comes nearer, as predicted" if nearer else "it does not come nearer in each"
        display.say(f"**Verdict**: it reaches {said} of the roof: {verdict}.")


def beside_published(rows: Rows, here: Lab, gemma: model_shapes.Model) -> Store:
    """Say how Gemma's rates compare with what was published, past the window and for a prompt; the
    published recording.
    """
    known = rooflab.lab.open("replay", "rtx-4070-ti-published").store
    theirs = known.read("decode")
    theirs = (
        theirs[(theirs["model"] == decode.GEMMA) & theirs["tok_s"].notna()].groupby("impl")["tok_s"].max()
    )
    mine = rows.sort_values(["format", "seq"], ascending=[False, True]).iloc[0]  # Q8_0, where it was run
    display.say(
        f"The pull request publishes {theirs['after']:.0f} tok/s for Q8_0 weights on an RTX 4070 Ti, and "
        f"{theirs['llama.cpp']:.0f} for llama.cpp there. Here it is {mine['tok_s']:,.0f} in "
        f"{mine['weights_as']} on the {here.run.gpu}, {mine['roof_fraction']:.0%} of the read roof."
    )
    far = rows[(rows["seq"] > gemma.window) & (rows["format"] == mine["format"])]
    for _, one in far.head(1).iterrows():
        display.say(
            f"After {int(one['seq']):,} tokens, past the window of {gemma.window}, a token takes "
            f"{one['median_us'] / mine['median_us']:.2f} times as long as after {int(mine['seq']):,}; its "
            f"logits are within {one['error']:.3f} of float64's ({one['error_budget']:.3f} allowed)."
        )
    prompt = here.measure("prefill", here.held("prefill", prefill.others()))
    for _, one in prompt.head(1).iterrows():
        display.say(
            f"The engine reads a prompt of {int(one['seq']):,} tokens at {one['tok_s']:,.0f} tok/s, within "
            f"{one['error']:.3f} of float64's logits ({one['error_budget']:.3f} allowed). In a "
            "prompt the layers that reuse an earlier layer's cache compute the last token alone: they leave "
            "no keys or values that a later token would read."
        )
    return known


def prompt_ladder(lab: Lab, known: Store) -> None:
    """Show how many times as fast each step made a prompt, published and here."""
    steps = prefill.ladder("q8_0", [prefill.TRACED])
    beside = ablation.beside(lab.measure("prefill", lab.held("prefill", steps)), known)
    if beside.empty:
        lab = display.borrowed(lab, "this ladder was not climbed")
        beside = ablation.beside(lab.measure("prefill", steps), known)
    heads = {"step": "step", "theirs": "published, RTX 4070 Ti", "ours": f"here, {lab.run.gpu}"}
    display.table(beside, heads, dict.fromkeys(("theirs", "ours"), "{:.2f} ×"))
    ratio = beside["ours"] / beside["theirs"]
    if (ratio > 2).any():
        text = "Factors do not carry over. "
        alone = beside["step"].str.startswith("embeddings")
        if (ratio[alone] > 2).any():
            text += f"Embeddings in one launch bring {beside.loc[alone, 'ours'].iloc[0]:.2f} × here: before, "
            text += "Python launched one for each token ([lesson 08b](08b_prefill.ipynb)). "
        shown, whole = beside["ours"].iloc[:-1].prod(), beside["ours"].iloc[-1]
        if len(beside) > 1 and whole > shown:
            text += "The last row is the whole ladder. Here it is more than the product of the rows above, "
            text += f"{shown:.1f} ×: it also holds the steps between them."
        display.say(text)


def takeaway(rows: Rows, here: Lab) -> None:
    """What to take away, computed."""
    display.say(
        f"- A decoder of another kind runs on the same kernels at {rows['roof_fraction'].min():.0%} to "
        f"{rows['roof_fraction'].max():.0%} of its roof on the {here.run.gpu}, one launch for each kernel.\n"
        "- Windows bound the bytes that a long context costs. Shared caches save memory and no reads: a "
        "layer reads an earlier layer's cache as if it were its own.\n"
        "- A factor that a step brought elsewhere is no prediction: it depends on what was slow there."
    )


_ENGINES = {"gemma": "graph", "products": "graph"} | dict.fromkeys(
    reversed(decode.RUNGS[-2:]), "one"
)  # launches


def decoders(here: Lab) -> Rows:
    """Gemma's tokens and other models': by the engine of the same kind, and by lesson 08's last rung that was
    measured in that format and after so many tokens.
    """
    rows = ablation.named(here.store.read("decode"))
    rows = rows[rows["impl"].isin(_ENGINES) & (rows["batch"] == 1) & rows["usual"] & rows["tok_s"].notna()]
    called = rows["model"] + ", " + rows["impl"].map(_ENGINES)
    rows = rows.assign(called=called).sort_values(
        "impl", key=lambda of: of.map([*_ENGINES].index), kind="stable"
    )
    return rows.drop_duplicates(["called", "format", "seq"])


def explore(here: Lab) -> Any:
    """The explorer of the share of the roof by model, weights and context."""
    rows, roof = decoders(here), here.roof["dram_read"].value
    rows["predicted_us"] = rows["bytes"] / roof / 1e3
    rows["%"] = 100 * rows["predicted_us"] / rows["median_us"]
    pairs = zip(rows["tok_s"], rows["bytes"] / 1e6, strict=True)
    rows[SAYS] = [f"{tok_s:,.0f} tok/s; {mb:,.0f} MB a token" for tok_s, mb in pairs]
    return explorer.Explorer(
        "gemma",
        rows,
        x="seq",
        y="%",
        controls={"called": "Model, engine", "weights_as": "Weights"},
        labels={"seq": "Context, tokens", "%": "% of the read roof"},
        title=f"Decoders on {here.run.gpu}",
        foretold="at least {} µs (read roof)",
        start={"impl": "gemma", "format": "q8_0"},
    )
