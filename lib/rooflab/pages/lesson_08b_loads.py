"""What lesson 08b's page shows of memory, several sequences, and a token's energy."""

from __future__ import annotations

import pandas as pd

from rooflab.analysis import ablation
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.pages import Rows
from rooflab.studies import decode, decode_checks, prefill
from rooflab.view import display, plot


def memory(lab: Lab) -> None:
    """Show a prompt's memory beside the weights, folded, and say its share of them."""
    questions = prefill.memory([c for c in lab.cases("prefill") if c.model == decode.MODEL])
    answers, owner = lab.profile("prefill", questions, "checks"), lab
    if answers.empty:
        owner = display.borrowed(lab, "no memory was read")
        answers = owner.profile("prefill", questions, "checks")
    values = answers.assign(value=pd.to_numeric(answers.value)).pivot_table(
        index="case", columns="quantity", values="value", sort=False
    )
    study = prefill.Prefill()
    values["name"] = [f"{ablation.FORMATS[study.case(c).format]} {study.case(c).impl}" for c in values.index]
    values["seq"] = [study.case(c).seq for c in values.index]
    values[["weight bytes", "beside them", "peak bytes"]] /= 1e6
    values["each"] = 1e3 * values["beside them"] / values.seq
    heads = {
        "name": "way",
        "seq": "tokens",
        "weight bytes": "weights, MB",
        "beside them": "beside them, MB",
        "peak bytes": "peak, MB",
        "each": "kB a token",
    }
    display.table(
        values,
        heads,
        {"seq": "{:,}"} | dict.fromkeys(("weight bytes", "beside them", "peak bytes", "each"), "{:,.0f}"),
        f"Memory of a prompt beside the weights, way by way, {owner.run.gpu}",
        folded=True,
    )
    shortest = values[values.seq == values.seq.min()]
    shares = shortest["beside them"] / shortest["weight bytes"]
    ends = list(dict.fromkeys(f"{share:.0%}" for share in (shares.min(), shares.max())))
    copy = model_shapes.WEIGHT_BYTES["fp16"] / model_shapes.WEIGHT_BYTES["q8_0"]
    display.say(
        f"On the {owner.run.gpu} {shortest.seq.iloc[0]:,} tokens need {' to '.join(ends)} of the weights' "
        "own bytes beside them, by every way. More tokens need more. "
        f"An FP16 copy of Q8_0 weights would be {copy:.0%}."
    )


def sequences(lab: Lab) -> tuple[Rows, Rows, Rows]:
    """Decoded tokens of one sequence, of several, and both with the library's."""
    cases = [c for c in lab.cases("decode") if (c.operator, c.model) == ("decode", decode.MODEL)]
    cases = [c for c in cases if c.seq == decode.PROMPT]
    many = ablation.named(lab.measure("decode", lab.held("decode", cases)))
    single = many[(many.batch == 1) & many.usual & many.impl.isin(decode.RUNGS)]
    single = single.sort_values("median_us").drop_duplicates("format")
    crowd = many[(many.batch > 1) & many.usual].sort_values("median_us")
    rows = crowd[crowd.impl == decode.TOGETHER[0]].set_index(["format", "batch"]).median_us
    crowd = crowd.drop_duplicates(["kind", "format", "batch"])
    library = many[many.impl == decode.GRAPH]
    both = pd.concat([single, crowd[crowd.kind == "own"], library]).sort_values(["kind", "format", "batch"])
    one = both[both.batch == 1].set_index(["kind", "format"]).median_us
    both["slower"] = [
        row.median_us / one.get((row.kind, row.format), float("nan")) for row in both.itertuples()
    ]
    both["gain"] = [
        rows.get((row.format, row.batch), float("nan")) / row.median_us
        if row.impl == decode.TOGETHER[1]
        else float("nan")
        for row in both.itertuples()
    ]
    both["share"] = 100 * both.roof_fraction
    both["who"] = both.weights_as.where(both.kind == "own", "transformers, " + both.weights_as)
    return single, crowd, both


def sequences_drawn(crowd: Rows, both: Rows, gpu: str) -> None:
    """Draw tokens a second by the number of sequences."""
    if len(crowd):
        title = "Tokens a second, all sequences together"
        fig, ax = plot.figure("sequences", "tok/s", title, xlog=True, ylog=True)
        for name, side in both.groupby("who", sort=False):
            side = side.sort_values("batch")
            plot.series(ax, side.batch, *plot.band(side, "tok_s"), label=name)
        ticks = sorted(set(both.batch.astype(int)))
        ax.set_xticks(ticks, [str(n) for n in ticks])
        plot.round_ticks(ax)
        plot.label_ends(ax)
        plot.show(fig, plot.caption(both, gpu, title, y="tok_s"))


def sequences_gain(both: Rows) -> None:
    """Say what the most sequences bring, by format."""
    words = []
    for format in ablation.FORMATS:
        mine = both[(both.format == format) & (both.kind == "own")].sort_values("batch")
        if mine.batch.nunique() > 1:
            most = mine.iloc[-1]
            more = most.tok_s / mine.tok_s.iloc[0]
            words.append(
                f"{ablation.FORMATS[format]} {more:.1f} times the tokens for {most.slower:.1f} times the time"
            )
    if words:
        display.say(
            f"At {int(both.batch.max())} sequences: {'; '.join(words)}. All sequences share a step's reading "
            "of the weights and its fixed cost."
        )
    gains = both.gain.dropna()
    if len(gains):
        least, most = (both.loc[at] for at in (gains.idxmin(), gains.idxmax()))
        display.say(
            f"With dependent launches a step makes {least.gain:.2f} times ({least.weights_as}, "
            f"{int(least.batch)} sequences) to {most.gain:.2f} times ({most.weights_as}, {int(most.batch)}) "
            "the tokens a second that it makes without."
        )


def sequences_table(both: Rows, gpu: str) -> None:
    """Show every number of sequences, folded."""
    heads = {
        "who": "weights",
        "batch": "sequences",
        "median_us": "µs a step",
        "slower": "× one sequence",
        "tok_s": "tok/s, all",
        "gain": "× without dependent launches",
        "gb_s": "GB/s",
        "share": "% of the roof",
    }
    forms = {
        "median_us": "{:,.0f}",
        "slower": "{:.2f}",
        "tok_s": "{:,.0f}",
        "gain": "{:.2f}",
        "gb_s": "{:,.0f}",
        "share": "{:.0f}",
    }
    display.table(both, heads, forms, f"Decoded together, {gpu}", folded=True)


def read_joules(lab: Lab) -> Rows:
    """The energy of a token by way, of this recording alone; no rows where none was read."""
    found = lab.profile("decode", lab.held("decode", decode_checks.energy(lab.sized), "checks"), "checks")
    if found.empty:
        return found
    energy = ablation.answers(found)
    return energy[energy.impl != "idle"]


def joules(lab: Lab) -> tuple[Rows, Lab, Rows]:
    """Show the energy of a token by way, folded: the answers, their lab, the rows."""
    questions = decode_checks.energy(lab.sized)
    found = lab.profile("decode", lab.held("decode", questions, "checks"), "checks")
    source = lab
    if found.empty:
        source = display.borrowed(lab, "no energy was read")
        found = source.profile(
            "decode", source.held("decode", decode_checks.energy(source.sized), "checks"), "checks"
        )
    energy = ablation.answers(found)
    idle = energy[energy.impl == "idle"].watts.iloc[0]
    energy = energy[energy.impl != "idle"].assign(per=1 / energy["joules a token"])
    heads = {
        "weights_as": "weights",
        "impl": "way",
        "batch": "sequences",
        "watts": "W",
        "tok/s": "tok/s",
        "joules a token": "J a token",
        "per": "tokens a joule",
    }
    forms = {"watts": "{:.0f}", "tok/s": "{:,.0f}", "joules a token": "{:.3f}", "per": "{:.1f}"}
    display.table(
        energy.sort_values("joules a token", ascending=False),
        heads,
        forms,
        f"Energy on {source.run.gpu}; idle it takes {idle:.0f} W",
        folded=True,
    )
    return found, source, energy


def joules_drawn(energy: Rows, source: Lab, found: Rows) -> None:
    """Draw joules a token by way."""
    title = "Joules a token"
    ranked = energy.sort_values("joules a token", ascending=False)
    fig, ax = plot.figure("J", title=title, height=1.2 + 0.26 * len(ranked))
    ways = ranked.impl.str.removeprefix("transformers.")
    names = list(ranked.weights_as + " " + ways + ", " + ranked.batch.astype(int).astype(str))
    plot.bars(ax, names, ranked["joules a token"], "J")
    least = ranked.iloc[-1]
    text = f"{title} on {source.run.gpu}, {plot.dates(found)}: {len(ranked)} ways"
    plot.show(fig, f"{text}, least {least['joules a token']:.3f} J ({names[-1]} sequences).")


def joules_explained(energy: Rows) -> None:
    """Say which way takes the most energy and the least, and why."""
    cheap, dear = (energy.sort_values("joules a token").iloc[i] for i in (0, -1))
    display.say(
        f"`{dear.impl}` in {dear.weights_as} takes the most energy, {dear['joules a token']:.2f} J a token; "
        f"`{cheap.impl}` with {int(cheap.batch)} sequences in {cheap.weights_as} takes the least, "
        f"{cheap['joules a token']:.3f} J: "
        f"{dear['joules a token'] / cheap['joules a token']:.0f} times less. "
        f"A kilowatt-hour then makes {3.6e6 / cheap['joules a token'] / 1e6:,.0f} million tokens."
        + _dependent_joules(energy)
    )
    spread, saved = energy.watts.max() / energy.watts.min(), dear["joules a token"] / cheap["joules a token"]
    display.say(
        f"The board takes {energy.watts.min():.0f} to {energy.watts.max():.0f} W, a factor of {spread:.1f}"
        + (
            ", and a token's energy spans far more: what saves energy is to decode tokens together. The "
            "rates are of this repeated generation, with what the host does between two."
            if spread < saved / 2
            else ": power counts as much as time."
        )
    )


def _dependent_joules(energy: Rows) -> str:
    """What dependent launches bring and cost beside plain ones, with the most sequences that were read."""
    by = energy.set_index(["format", "impl", "batch"])
    most = energy.batch.max()
    keys = [(form, *[(form, way, most) for way in decode.TOGETHER]) for form in ablation.FORMATS]
    pairs = [(by.loc[plain], by.loc[late]) for _, plain, late in keys if {plain, late} <= set(by.index)]
    if not pairs:
        return ""
    rate = sorted(late["tok/s"] / plain["tok/s"] for plain, late in pairs)
    cost = sorted(late["joules a token"] / plain["joules a token"] for plain, late in pairs)
    text = f" At {int(most)} sequences dependent launches make {rate[0]:.2f} to {rate[-1]:.2f} times the "
    text += f"tokens a second, and take {cost[0]:.2f} to {cost[-1]:.2f} times the energy a token"
    return text + (": faster, but not cheaper." if rate[0] > 1 < cost[0] else ".")
