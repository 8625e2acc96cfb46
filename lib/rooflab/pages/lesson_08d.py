"""What lesson 08d's page shows: every path of the engine against float64, again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from rooflab import claims, engine
from rooflab.analysis import ablation
from rooflab.lab import Lab
from rooflab.pages import Opening, Rows, facts, lesson_08d_faults
from rooflab.studies import decode, decode_checks
from rooflab.view import diagram, display, explorer, plot
from rooflab.view.explorer_facts import SAYS
from rooflab.view.filter_list import Board
from rooflab.words import listed


class Answers(NamedTuple):
    """What the paths answered: the lab that holds it, the raw profile, a row a question, a row a path."""

    whose: Lab
    found: pd.DataFrame
    checks: Rows
    paths: Rows


def answers(lab: Lab) -> Answers:
    """What every path of the engine answered, agreement and stability; borrowed where no path was asked."""
    questions = [c for c in decode_checks.cases("full", lab.sized) if c.operator == "agreement"]
    wanted = questions + decode_checks.stability(lab.sized)
    if lab.mode == "live" and lab.effort == "quick":
        wanted = decode_checks.stability(lab.sized)
    found = lab.profile("decode", lab.held("decode", wanted, "checks"), "checks")
    if not set(found["case"]) & {case.id for case in questions}:
        lab = display.borrowed(lab, "no path was asked")
        wanted = questions + decode_checks.stability(lab.sized)
        found = lab.profile("decode", lab.held("decode", wanted, "checks"), "checks")
    checks = ablation.answers(found)
    paths = checks[(checks["question"] == "agreement") & checks["ran"].notna()]
    paths = paths.reindex(columns=[*dict.fromkeys([*paths, "from transformers", "same bits"])])
    return Answers(lab, found, checks, paths.assign(share=paths["largest error"] / paths["allowed"]))


def opening(asked: Answers) -> Opening:
    """The first screen: how far every path is from float64."""
    paths, gpu = asked.paths, asked.whose.run.gpu
    within = int((paths["share"] <= 1).sum())
    text = f"On the {gpu} "
    text += "all" if within == len(paths) else f"{within} of"
    text += f" {len(paths)} paths stay within the allowed error, twice that of plain arithmetic; the worst "
    text += f"reaches {paths['share'].max():.0%} of it"
    if (least := lesson_08d_faults.planted().least()) > 1:
        text += f", the smaller of two planted faults {least:.0%}"
    repeated = asked.checks[asked.checks["question"] == "repeated"]
    if len(repeated) and (repeated["distinct"] == 1).all():
        text += f". In {int(repeated['runs'].min()):,} generations in each format a prompt always gave the "
        text += "same tokens"
    able = [
        "compare a fast path with float64, and allow what rounding needs",
        "ask a path the same thing a thousand times, and read what it answers",
        "tell a memory leak from a library that keeps its memory",
    ]
    title = "Each path's largest error of a logit, of what is allowed"
    worst = paths.sort_values("share").iloc[-1]
    caption = f"{title}, on {gpu}, {plot.dates(asked.found)}: {len(paths)} paths, "
    caption += f"the worst {worst['impl']} in {worst['weights_as']} at {worst['share']:.0%}."
    return f"{text}.", able, (_distances(paths, title), caption)


def _distances(paths: Rows, title: str) -> Figure:
    """A dot a path, by its weights, over the share of the allowed error."""
    formats = list(dict.fromkeys(paths["weights_as"]))
    fig, ax = plot.figure("% of the allowed error", title=title, height=1.3 + 0.35 * len(formats))
    fig.set_figwidth(7.4)
    for down, name in enumerate(formats):
        shares = 100 * paths.loc[paths["weights_as"] == name, "share"].sort_values()
        stacked: Counter[int] = Counter()
        for share in shares:
            column = round(share / 2)  # dots of one width are stacked
            height = down - 0.11 * stacked[column]
            ax.plot(share, height, plot.MARKERS[down], color=plot.COLOURS[down], markersize=5, alpha=0.8)
            stacked[column] += 1
    ax.set_yticks(range(len(formats)), [f"{name} weights" for name in formats])
    ax.set_ylim(len(formats) - 0.5, -1.3)
    ax.set_xlim(0, 105)
    plot.roof_line(ax, 100, "allowed", vertical=True)
    ax.grid(axis="y", visible=False)
    return fig


def run_facts(lab: Lab, asked: Answers) -> None:
    """The facts of the run, in one line."""
    facts(
        lab, "decode", f"{len(asked.paths)} paths asked", f"DRAM read {lab.roof['dram_read'].value:,.0f} GB/s"
    )


def judged_drawn(asked: Answers) -> None:
    """Draw how a path is judged: how far from float64 the baseline is, twice as far, the worst path, and
    faults planted in a small decoder.
    """
    worst = asked.paths.sort_values("share").tail(1)
    lines = [
        diagram.Line(
            f"The worst path, {row['impl']} in {row['weights_as']}: distance from float64's logits",
            "2 × baseline = {:.3f}",
            ("<", float(row["allowed"])),
            None,
            [
                (float(row["allowed"]) / 2, f"baseline: {row['allowed'] / 2:.3f}"),
                (float(row["largest error"]), f"{row['impl']}: {row['largest error']:.3f}"),
            ],
        )
        for _, row in worst.iterrows()
    ]
    lines += lesson_08d_faults.lines()
    called = {"holds": "passes", "refuted": "judged wrong"}
    title = "How a path is judged: twice the baseline's error is allowed"
    diagram.number_lines(lines, title, called).show()
    display.say(lesson_08d_faults.told())


def every_path(asked: Answers) -> None:
    """Show each path's answers, folded, and say in words what they come to."""
    paths = asked.paths
    heads = {"impl": "path", "weights_as": "weights", "ran": "ran, times", "ran instead": "fallback ran"}
    heads |= {name: name for name in ("largest error", "allowed")}
    heads |= {"from transformers": "distance from transformers (FP16)"}
    heads |= {"top 5": "of the top 5", "same bits": "bits as the plainest path, %"}
    forms = dict.fromkeys(("ran", "ran instead", "top 5", "same bits"), "{:.0f}")
    forms |= dict.fromkeys(("largest error", "allowed", "from transformers"), "{:.4f}")
    table = paths.assign(**{"same bits": 100 * paths["same bits"]})
    display.table(table, heads, forms, f"{len(paths)} paths, {asked.whose.run.gpu}", folded=True)
    _agreement(paths)
    beside = paths["from transformers"].dropna()
    if len(beside):
        display.say(
            f"In FP16 no logit is further than {beside.max():.3f} from what transformers gives for the same "
            "weights, whose steps round their results, too, but at other steps."
        )
    equal = paths[(paths["same bits"] == 1) & paths["impl"].isin(decode.RUNGS)]
    names = [
        f"{weights} " + listed(f"`{impl}`" for impl in mine["impl"])
        for weights, mine in equal.groupby("weights_as", sort=False)
    ]
    text = (
        "*Bits as the plainest path* compares a path's logits with those of the plainest path of its kind, "
    )
    text += f"`{decode.RUNGS[0]}` for the rungs: sums in another order differ in the last bit and are no "
    text += "less right."
    if names:
        display.fold_items("Paths that are equal to the last bit", [text, *names])


def _agreement(paths: Rows) -> None:
    """Say how many paths agree with float64, and that each of them ran."""
    least = int(paths["ran"].min())
    others = int((paths["likeliest"] < 1).sum()) or "none"
    display.say(
        f"{int((paths['share'] <= 1).sum())} of {len(paths)} paths lie within what is allowed, the worst at "
        f"{paths['share'].max():.0%} of it. The likeliest token differs on {others} of them, near-ties "
        "aside (float64's two likeliest within twice the path's error of each other); the largest error of "
        f"a logit is {paths['largest error'].max():.3f}. Each path ran "
        f"{'once' if least == 1 else f'{least} times'} or more often, and "
        f"{int((paths['ran instead'] > 0).sum()) or 'none'} let another run in its place."
    )


_PLAINLY = {  # what the recorded names of answers mean
    "distinct": "different texts from one prompt",
    "same though other prompts": "two prompts with the same texts (1: yes)",
    "bytes gone": "bytes of GPU memory lost",
    "not numbers": "logits that are NaN or infinite",
    "turned away": "of them refused",
    "moved by them": "of them that moved the engine's position",
    "changed afterwards": "text changed afterwards (1: yes)",
}
_STABILITY = {
    "repeated": ("runs", "distinct", "same though other prompts"),
    "sampled": ("runs", "distinct"),
    "long": ("steps", "bytes gone", "not numbers"),
    "refused": ("wrong inputs", "turned away", "moved by them", "changed afterwards"),
}


def stability(checks: Rows) -> None:
    """Show the answers to each question of stability: a row a quantity, a column a path."""
    stable = checks[checks["question"].isin(_STABILITY)]
    stable = stable.assign(path=stable["impl"] + ", " + stable["weights_as"]).set_index("path")
    paths = list(dict.fromkeys(stable.index))
    lines = []
    for question, names in _STABILITY.items():
        those = stable[stable["question"] == question]
        for name in names:
            if name in those:
                words = {"question": question, "how many": _PLAINLY.get(name, name)}
                lines.append(words | those[name].to_dict())
    table = pd.DataFrame(lines, columns=["question", "how many", *paths])
    forms = dict.fromkeys(paths, "{:,.0f}")
    display.table(
        table, {name: name for name in table}, forms, "Every answer, by path and weights", folded=True
    )


def verdicts(asked: Answers, lab: Lab) -> Rows:
    """Show, and return, which of the things asked of a decoder hold by this lab's own figures."""
    found = asked.found if asked.whose is lab else asked.found.iloc[:0]
    evidence = claims.Evidence(lab.store, {}, {("decode", "checks"): found})
    wanted = claims.select("08d_trust", group="asked")
    judged = claims.board(wanted, evidence)
    plain = {claims.HOLDS: "yes", claims.UNRECORDED: "not in this recording"}
    table = judged.assign(holds=[plain.get(word, word) for word in judged["word"]])
    kept = table["word"] != claims.UNRECORDED
    asked_in = [_asked_in(asked.checks, test) for _, _, test in claims.shown(wanted)]
    table["found"] = (table["quantity"] + ": " + table["measured"].astype(str) + asked_in).where(kept, "")
    heads = {"says": "asked", "found": "measured", "holds": "holds"}
    caption = f"Requirements of a decoder, as measured on the {lab.run.gpu}. They are the sources' own; this "
    caption += f"page allows a logit at most {asked.paths['allowed'].max():.2f}"
    display.table(table, heads, caption=caption)
    return judged


def _asked_in(checks: Rows, test: claims.Test) -> str:
    """The weights that a test's question was asked with, where these are not all."""
    question = "refused" if test.measure == "refused_unharmed" else test.args.get("question", "")
    found = checks.loc[checks["question"] == question, "weights_as"].unique()
    return f" (asked in {listed(found)} alone)" if 0 < len(found) < checks["weights_as"].nunique() else ""


_SWITCHES = {
    "decode": "how a token is decoded: a step of lesson 08; apart: torch's operators, a product a matrix",
    "graph": "replay a CUDA graph, or launch kernel by kernel",
    "rows": "norm, rotation and gate of a prompt by our kernels, or by torch's",
    "attention": "attention of a prompt: a rung of lesson 06, or torch's",
    "mmq": "a prompt's products read quantised weights, or make FP16 weights of them first",
    "embed": "all embeddings of a prompt in one launch, or one launch each",
    "fused": "on Hopper: products whose blocks take tile after tile and apply the MLP's gating themselves",
    "last": "the last layer for the last token of a prompt alone, or for all",
}


def switches(plain: engine.Paths) -> None:
    """Show every switch of the engine: what it chooses, its default, and its value on the plainest path."""
    names = [field.name for field in fields(engine.Paths)]
    usual: Sequence[Any] = [field.default for field in fields(engine.Paths)]
    table = pd.DataFrame({"switch": names, "usual": [repr(value) for value in usual]})
    table["plain"] = [repr(getattr(plain, name)) for name in names]
    table["chooses"] = [_SWITCHES[name] for name in names]
    heads = {"switch": "engine.Paths", "chooses": "what it chooses"}
    heads |= {"usual": "by default", "plain": "reverted"}
    display.table(table, heads, caption="'' by default: the fastest for the format")


def takeaway(judged: Rows, asked: Answers, lab: Lab) -> None:
    """What to take away, computed."""
    held, lacking = (judged["word"] == claims.HOLDS).sum(), (judged["word"] == claims.UNRECORDED).sum()
    paths = asked.paths
    display.say(
        f"- {int((paths['share'] <= 1).sum())} of {len(paths)} paths lie within twice a baseline's error on "
        f"the {asked.whose.run.gpu}.\n"
        f"- {held} of {len(judged)} things that the sources ask of a decoder hold on the {lab.run.gpu}"
        + (f", {lacking} are not in this recording.\n" if lacking else ".\n")
        + "- *Fast*, *the same as yesterday* and *near enough to float64* are three claims, and each needs "
        "its own experiment."
    )


def listed_paths(asked: Answers) -> Board:
    """The list of paths, to filter: what each does, and how far its logits are from float64's."""
    frame = asked.paths.reset_index(drop=True)
    reads = frame["impl"].str.startswith(("prompt", "pieces"))
    frame["part"] = reads.map({True: "a prompt", False: "one token after the other"})
    frame["does"] = [_does(name) for name in frame["impl"]]
    frame["verdict"] = (frame["share"] <= 1).map({True: "within its budget", False: "beyond its budget"})
    frame["head"] = frame["impl"] + ", " + frame["weights_as"]
    frame["note"] = [
        f"Largest error of a logit: {error:.4f} of {allowed:.4f} allowed. Runs: {ran:.0f}."
        for error, allowed, ran in frame[["largest error", "allowed", "ran"]].to_numpy()
    ]
    controls = {"weights_as": "Weights", "part": "Reads", "verdict": "Verdict"}
    start = {"weights_as": frame["weights_as"].iloc[0]}
    return Board("paths", frame, controls=controls, head="head", text="does", start=start, what="paths")


def _does(path: str) -> str:
    """What a path of the engine does, by its recorded name."""
    if path == "pieces":
        return "the prompt in three pieces, each after the cache of those before it"
    if path.startswith("prompt."):
        return ablation.PROMPT_WAYS[path.removeprefix("prompt.")]
    return ablation.WAYS[path]


def gates(whose: Lab) -> Rows:
    """What the gates of timed runs found of one sequence: a token after a context, and a prompt, with the
    largest error of a logit in % of what is allowed. Where paths were judged at several lengths, those alone.
    """
    tokens, prompts = whose.store.read("decode"), whose.store.read("prefill")
    parts = []
    if len(tokens):
        tokens = ablation.named(tokens).assign(reads="one token after so many")
        parts.append(tokens[tokens["usual"]])
    if len(prompts):
        weights = prompts["format"].map(ablation.FORMATS)
        parts.append(prompts.assign(weights_as=weights, reads="a prompt of so many"))
    if not parts:
        return pd.DataFrame()
    found = pd.concat(parts)
    found = found[(found["batch"] == 1) & found["error"].notna() & (found["error_budget"] > 0)]
    alike = ["weights_as", "reads", "model"]
    found["lengths"] = found.groupby([*alike, "impl"])["seq"].transform("nunique")
    several = found.groupby(alike)["lengths"].transform("max") > 1
    found = found[(found["lengths"] > 1) | ~several]
    pairs = list(zip(found["error"], found["error_budget"], strict=True))
    told = [f"largest error of a logit {error:.4f} of {allowed:.4f} allowed" for error, allowed in pairs]
    found = found.assign(**{"%": [100 * error / allowed for error, allowed in pairs], SAYS: told})
    times = ["median_us", "q1_us", "q3_us", "predicted_us"]  # of other lessons
    return found.drop(columns=times).reset_index(drop=True)


def explore(asked: Answers) -> Any:
    """The explorer of the same judgement at other lengths and on other models; None where none was timed."""
    rows, gpu = gates(asked.whose), asked.whose.run.gpu
    if rows.empty:
        display.say(f"At other lengths no path was judged on the {gpu}.")
        return None
    return explorer.Explorer(
        "judged",
        rows,
        x="seq",
        y="%",
        controls={"impl": "Path", "weights_as": "Weights", "reads": "Check", "model": "Model"},
        labels={"seq": "Tokens", "%": "% of the allowed error"},
        roof=("allowed", 100.0, "%"),
        title=f"Errors in the gates of timed runs on {gpu}",
        start={"study": "prefill", "impl": "6_graph", "format": "fp16", "model": decode.MODEL},
    )
