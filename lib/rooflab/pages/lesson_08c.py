"""What lesson 08c's page shows: its tables, figures and computed sentences."""

from __future__ import annotations

from typing import Any

import pandas as pd

import rooflab.lab
from rooflab import claims
from rooflab.analysis import ablation
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.pages import Rows
from rooflab.records.store import Store
from rooflab.studies import decode, decode_checks, prefill
from rooflab.view import display, explorer


def different_table(gemma: Any, qwen: Any) -> None:
    """What is different: the table."""
    kinds = pd.Series(
        [(layer.head_dim, layer.window, layer.owns_kv) for layer in model_shapes.layers(gemma)]
    ).value_counts(sort=False)
    lines = [
        (
            d,
            "everything" if w is None or w != w else f"{w:,.0f} tokens",
            "its own" if own else "an earlier layer's",
            count,
        )
        for (d, w, own), count in kinds.items()
    ]
    display.table(
        pd.DataFrame(lines, columns=["d", "w", "own", "n"]),
        {"n": "layers", "d": "width of a head", "w": "sees", "own": "cache"},
        caption=f"{gemma.name}, {gemma.layers} layers",
    )
    lengths = [128, 1024, 8192, 32768]
    lines = []
    for length in lengths:
        ours, plain = model_shapes.kv_read_bytes(gemma, length), model_shapes.kv_read_bytes(qwen, length)
        everything = sum(
            2 * gemma.kv_heads * layer.head_dim * 2 * length for layer in model_shapes.layers(gemma)
        )
        lines.append((length, ours / 1e6, everything / 1e6, plain / 1e6))
    table = pd.DataFrame(lines, columns=["n", "gemma", "all", "qwen"])
    heads = {
        "n": "context",
        "gemma": f"{gemma.name}, MB",
        "all": "without windows, MB",
        "qwen": f"{qwen.name}, MB",
    }
    display.table(
        table,
        heads,
        {"n": "{:,}"} | dict.fromkeys(("gemma", "all", "qwen"), "{:,.1f}"),
        "Cache read for one token",
    )


def different_table_2(lab: Lab, gemma: Any) -> tuple[Rows, Lab, str]:
    """What is different: the table."""
    wanted = [c for c in lab.cases("decode") if c.model == decode.GEMMA]
    rows, here = lab.measure("decode", lab.held("decode", wanted)), lab
    if rows.empty:
        here = display.borrowed(lab, f"no {gemma.name} was run")
        held = here.store.read("decode")
        rows = held[held.model == decode.GEMMA]
    rows = ablation.named(rows)
    gpu = here.run.gpu
    top = here.roof["dram_read"].value
    table = rows.assign(mb=rows.bytes / 1e6, bound=top * 1e9 / rows.bytes, share=100 * rows.roof_fraction)
    heads = {
        "weights_as": "weights",
        "seq": "context",
        "mb": "MB a token",
        "bound": "roof, tok/s",
        "tok_s": "tok/s",
        "share": "% of the roof",
        "error": "largest error",
        "error_budget": "allowed",
    }
    forms = dict.fromkeys(("mb", "bound", "tok_s", "share"), "{:,.0f}") | dict.fromkeys(
        ("error", "error_budget"), "{:.4f}"
    )
    display.table(table, heads, forms | {"seq": "{:,}"}, f"{gemma.name}, one sequence, {gpu}")
    return rows, here, gpu


def different_said(rows: Rows, gemma: Any, here: Lab, gpu: str) -> Store:
    """What is different: in words."""
    known = rooflab.lab.open("replay", "rtx-4070-ti-published").store
    theirs = known.read("decode")
    theirs = theirs[(theirs.model == decode.GEMMA) & theirs.tok_s.notna()].groupby("impl").tok_s.max()
    mine = rows.sort_values(["format", "seq"], ascending=[False, True]).iloc[0]  # Q8_0, where it was run
    far = rows[(rows.seq > gemma.window) & (rows.format == mine.format)]
    prompt = here.measure("prefill", here.held("prefill", prefill.others()))
    display.say(
        f"The pull request publishes {theirs['after']:.0f} tok/s for Q8_0 weights on an RTX 4070 Ti, and "
        f"{theirs['llama.cpp']:.0f} for llama.cpp there. Here it is {mine.tok_s:,.0f} in {mine.weights_as} "
        f"on the {gpu}, {mine.roof_fraction:.0%} of what its memory could do."
    )
    if len(far):
        one = far.iloc[0]
        display.say(
            f"After {int(one.seq):,} tokens, past the window of {gemma.window}, a token takes "
            f"{one.median_us / mine.median_us:.2f} times as long as after {int(mine.seq):,}; its logits are "
            f"within {one.error:.3f} of float64's ({one.error_budget:.3f} allowed)."
        )
    if len(prompt):
        one = prompt.iloc[0]
        display.say(
            f"A prompt of {int(one.seq):,} tokens goes in at {one.tok_s:,.0f} tok/s, within "
            f"{one.error:.3f} of "
            f"float64's logits ({one.error_budget:.3f} allowed). Layers without a cache of "
            "their own need only "
            "see its last token."
        )
    return known


def different_table_3(lab: Lab, known: Store) -> None:
    """What is different: the table."""
    steps, full = prefill.ladder("q8_0", [prefill.TRACED]), lab
    climb = lab.measure("prefill", lab.held("prefill", steps))
    beside = ablation.beside(climb, known)
    if beside.empty:
        full = display.borrowed(lab, "this ladder was not climbed")
        beside = ablation.beside(full.measure("prefill", steps), known)
    heads = {"step": "step", "theirs": "published, RTX 4070 Ti", "ours": f"here, {full.run.gpu}"}
    display.table(beside, heads, dict.fromkeys(("theirs", "ours"), "{:.2f} ×"))


def every_path_table(lab: Lab) -> tuple[Lab, Rows, Rows, Rows]:
    """Every path: the table."""
    questions = [c for c in decode_checks.cases("full", lab.sized) if c.operator == "agreement"]
    wanted = questions + decode_checks.stability(lab.sized)
    whose = lab
    if lab.mode == "live" and lab.effort == "quick":
        wanted = decode_checks.stability(lab.sized)
    found = lab.profile("decode", lab.held("decode", wanted, "checks"), "checks")
    if not set(found.case) & {c.id for c in questions}:
        whose = display.borrowed(lab, "no path was asked")
        wanted = questions + decode_checks.stability(whose.sized)
        found = whose.profile("decode", whose.held("decode", wanted, "checks"), "checks")
    checks = ablation.answers(found)
    paths = checks[(checks.question == "agreement") & checks["ran"].notna()]
    paths = paths.reindex(columns=[*dict.fromkeys([*paths, "from transformers", "same bits"])])
    heads = {
        "impl": "path",
        "weights_as": "weights",
        "ran": "ran",
        "ran instead": "another ran",
        "largest error": "largest error",
        "allowed": "allowed",
        "from transformers": "from transformers",
        "top 5": "of the top 5",
        "same bits": "same bits, %",
    }
    forms = {
        "ran": "{:.0f}",
        "ran instead": "{:.0f}",
        "largest error": "{:.4f}",
        "allowed": "{:.4f}",
        "from transformers": "{:.4f}",
        "top 5": "{:.0f}",
        "same bits": "{:.0f}",
    }
    display.table(
        paths.assign(**{"same bits": 100 * paths["same bits"]}),
        heads,
        forms,
        f"{len(paths)} paths, {whose.run.gpu}",
    )
    return whose, found, checks, paths


def every_path_said(paths: Rows) -> None:
    """Every path: in words."""
    near = paths["largest error"] / paths.allowed
    display.say(
        f"{int((near <= 1).sum())} of {len(paths)} paths lie within what is allowed, the worst at "
        f"{near.max():.0%} of it; "
        f"the likeliest token differs on {int((paths.likeliest < 1).sum()) or 'none'} of "
        "them, near-ties aside, "
        f"the largest error of a logit is {paths['largest error'].max():.3f}; each path ran, "
        f"{'once' if paths['ran'].min() == 1 else str(int(paths['ran'].min())) + ' times'} or "
        "more often, and "
        f"{int((paths['ran instead'] > 0).sum()) or 'none'} let another run in its place."
    )
    beside = paths["from transformers"].dropna()
    if len(beside):
        display.say(
            f"In FP16 no logit is further than {beside.max():.3f} from what transformers "
            "itself gives for the "
            "same weights, which rounds as often and in other places."
        )
    equal = paths[(paths["same bits"] == 1) & paths.impl.isin(decode.RUNGS)]
    display.say(
        "*Same bits* compares a path's logits with those of the plainest path of its kind, "
        f"`{decode.RUNGS[0]}` "
        "for the rungs: sums in another order differ in the last bit and are no less right. "
        + (
            "To the last bit like it: "
            f"{', '.join(f'`{r.impl}` ({r.weights_as})' for r in equal.itertuples())}."
            if len(equal)
            else ""
        )
    )


def again_again_table(checks: Rows) -> None:
    """Again and again: the table."""
    stable = checks[checks.question.isin(["repeated", "sampled", "long", "refused"])]
    rungs = stable[["impl", "weights_as"]].drop_duplicates()
    columns = {f"rung{i}": rung for i, rung in enumerate(rungs.itertuples(index=False))}
    lines = []
    for question, names in {
        "repeated": ("runs", "distinct", "same though other prompts"),
        "sampled": ("runs", "distinct"),
        "long": ("steps", "bytes gone", "not numbers"),
        "refused": ("wrong inputs", "turned away", "moved by them", "changed afterwards"),
    }.items():
        those = stable[stable.question == question].set_index(["impl", "weights_as"])
        for name in names:
            answers = {key: those[name].get(tuple(rung)) for key, rung in columns.items() if name in those}
            if answers:
                lines.append({"q": question, "what": name} | answers)
    display.table(
        pd.DataFrame(lines, columns=["q", "what", *columns]),
        {"q": "question", "what": "how many"} | {key: ", ".join(rung) for key, rung in columns.items()},
        dict.fromkeys(columns, "{:,.0f}"),
        "Again and again, by path and weights",
    )


def again_again_said(whose: Lab, lab: Lab, found: Rows) -> Rows:
    """Again and again: in words."""
    profiles = {("decode", "checks"): found if whose is lab else found.iloc[:0]}
    evidence = claims.Evidence(lab.store, {}, profiles)
    verdicts = claims.board(claims.select("08c_engine", group="asked"), evidence)
    display.say(f"By the {lab.run.gpu}'s own figures:\n\n{claims.listed(verdicts)}")
    return verdicts


def takeaway(verdicts: Rows, rows: Rows, gpu: str, lab: Lab) -> None:
    """What to take away, computed."""
    held, lacking = (verdicts.word == claims.HOLDS).sum(), (verdicts.word == claims.UNRECORDED).sum()
    lines = [
        f"- A decoder of another kind runs on the same kernels at {rows.roof_fraction.min():.0%} to "
        f"{rows.roof_fraction.max():.0%} of its roof on the {gpu}, a launch a kernel.",
        f"- {held} of {len(verdicts)} things that the sources ask of a decoder hold on the {lab.run.gpu}"
        + (f", {lacking} are not in this recording." if lacking else "."),
        "- Fast, the same as yesterday, and near enough to float64: three different claims, "
        "and each needs its "
        "own experiment.",
    ]
    display.say("\n".join(lines))


def explore(paths: Rows, found: Rows, whose: Lab) -> Any:
    """Tweak it: the explorer."""
    shown = paths.assign(
        kind=["prompt" if n.startswith(("prompt", "pieces")) else "decode" for n in paths.impl]
    )
    shown = shown.assign(tokens=decode_checks.LENGTH, run=found.run.iloc[0] if "run" in found else "")
    return explorer.Explorer(
        "paths",
        shown.rename(columns={"largest error": "error"}),
        x="tokens",
        y="error",
        controls={"impl": "Path", "weights_as": "Weights"},
        labels={"error": "largest error of a logit", "tokens": "tokens of the prompt"},
        title=f"Distance from float64 on {whose.run.gpu}",
        start={"impl": shown.impl.iloc[0], "weights_as": shown.weights_as.iloc[0]},
    )
