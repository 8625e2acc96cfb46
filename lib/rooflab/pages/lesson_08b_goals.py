"""What lesson 08b's page says at its end: the goals set for prompts, and what to take away."""

from __future__ import annotations

from rooflab import claims
from rooflab.analysis import ablation
from rooflab.claims import scorecard
from rooflab.lab import Lab
from rooflab.pages import Rows, goals_one_by_one
from rooflab.studies import decode
from rooflab.view import display


def goals(whose: Lab, lab: Lab, traced: Rows, rows: Rows, gpu: str) -> None:
    """Show the goals set for prompts, and say how many are met."""
    profiles = {("prefill", "nsys"): traced if whose is lab else traced.iloc[:0]}
    evidence = claims.Evidence(lab.store, {"prefill": rows}, profiles)
    verdicts = claims.board(claims.select("08b_prefill", source=claims.COURSE), evidence)
    display.say(
        f"Met on the {gpu}: {(verdicts.word == claims.HOLDS).sum()} of {len(verdicts)}, set for an "
        f"{scorecard.GPU} before any of this was built. Later goals are judged in [lesson "
        "09](09_scorecard.ipynb)."
    )
    goals_one_by_one(verdicts.assign(met=verdicts.word == claims.HOLDS))


def takeaway(rows: Rows, prompt_asked: int, gpu: str, single: Rows, both: Rows) -> None:
    """What to take away, computed."""
    best = (
        rows[(rows.model == decode.MODEL) & (rows.seq == prompt_asked) & (rows.kind == "own")]
        .sort_values("tok_s")
        .iloc[-1]
    )
    same = single[single.format == best.format]
    one = (same if len(same) else single).tok_s.max()
    lines = [
        f"- On the {gpu} the engine reads a prompt of {prompt_asked:,} tokens at {best.tok_s:,.0f} tok/s "
        f"with {ablation.FORMATS[best.format]} weights, {best.roof_fraction:.0%} of the tensor cores' roof.",
        f"- Per token that is {best.tok_s / one:.0f} times as fast as lesson 08's fastest decoding in the "
        f"same format, {one:,.0f} tok/s, because a prompt's tokens share each reading of the weights. "
        "Decoded tokens share it in a batch of sequences, or where one step checks several guessed tokens "
        "(the appendix).",
        "- Remove the largest fixed cost first: it dilutes the factor of every other step.",
    ]
    crowd = both[(both.kind == "own") & (both.batch > 1)].sort_values("tok_s")
    if len(crowd):
        most = crowd.iloc[-1]
        lines.insert(
            2,
            f"- {int(most.batch)} sequences together make {most.tok_s:,.0f} tok/s in {most.weights_as}, for "
            f"{most.slower:.1f} times the time of one.",
        )
    display.say("\n".join(lines))
