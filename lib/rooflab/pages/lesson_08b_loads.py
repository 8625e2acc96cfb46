"""What lesson 08b's page shows of memory, several sequences, and a token's energy."""

from __future__ import annotations

import pandas as pd

from rooflab.analysis import ablation
from rooflab.hardware.crossover import LEVEL
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.pages import Rows
from rooflab.studies import decode, decode_checks, prefill
from rooflab.view import display, plot
from rooflab.words import counted, listed, times


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
        f"Beside the weights a prompt of {shortest.seq.iloc[0]:,} tokens needs {' to '.join(ends)} of their "
        f"bytes on the {owner.run.gpu}, by every way; an FP16 copy of all Q8_0 weights would need {copy:.0%}."
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
    own = both[(both.kind == "own")]
    most = own[(own.batch == own.batch.max()) & (own.batch > 1)].set_index("format")
    one = own[own.batch == 1].set_index("format").tok_s
    more = (most.tok_s / one).dropna().sort_values()
    if len(more):
        slower = most.slower[more.index].sort_values()
        tokens, time = (
            f"{times(each.iloc[0])} to {times(each.iloc[-1])}" if len(each) > 1 else times(each.iloc[0])
            for each in (more, slower)
        )
        alone = listed(f"`{name}`" for name in dict.fromkeys(own[own.batch == 1].impl))
        display.say(
            f"A step for {int(own.batch.max())} sequences, a chain of kernels, takes {time} times as long as "
            f"one for a single sequence by lesson 08's {alone}, and makes {tokens} times the tokens: "
            "all sequences share its reading of the weights and its fixed cost."
        )
    gains = both.gain.dropna()
    if len(gains):
        least, most = (both.loc[at] for at in (gains.idxmin(), gains.idxmax()))
        display.say(
            f"Dependent launches make {least.gain:.2f} times ({least.weights_as}, {int(least.batch)} "
            f"sequences) to {most.gain:.2f} times ({most.weights_as}, {int(most.batch)}) the tokens a second."
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
    """Draw joules a token: of each format and number of sequences the way that takes least."""
    title = "Joules a token"
    ranked = energy.assign(theirs=energy.impl.str.startswith("transformers."))
    ranked = ranked.sort_values("joules a token").drop_duplicates(["theirs", "weights_as", "batch"])[::-1]
    fig, ax = plot.figure("J", title=title, height=1.2 + 0.26 * len(ranked))
    many = [counted(int(batch), "sequence") for batch in ranked.batch]
    names = list(ranked.impl + ", " + ranked.weights_as + ", " + pd.Series(many, ranked.index))
    plot.bars(ax, names, ranked["joules a token"], "J")
    least = ranked.iloc[-1]
    text = f"{title} on {source.run.gpu}, {plot.dates(found)}: of each format and number of sequences the"
    plot.show(fig, f"{text} cheapest way, least {least['joules a token']:.3f} J ({names[-1]}).")


def joules_explained(energy: Rows) -> None:
    """Say which way takes the most energy and the least, and why."""
    cheap, dear = (energy.sort_values("joules a token").iloc[i] for i in (0, -1))
    saved, spread = dear["joules a token"] / cheap["joules a token"], energy.watts.max() / energy.watts.min()
    text = f"The most: `{dear.impl}` in {dear.weights_as}, {counted(int(dear.batch), 'sequence')}, "
    text += f"{dear['joules a token']:.2f} J a token. The least: {cheap.weights_as}, "
    text += f"{counted(int(cheap.batch), 'sequence')} together, {cheap['joules a token']:.3f} J, "
    text += (
        f"**{times(saved)} times less**: a kilowatt-hour makes {3.6 / cheap['joules a token']:,.0f} million "
    )
    rates = energy["tok/s"].max() / energy["tok/s"].min()
    text += f"tokens. Power differs by {times(spread)} times at most, tokens a second by {times(rates)}"
    text += ": sharing a reading of the weights saves most of the energy. " if spread < saved / 2 else ". "
    display.say(text + _not_the_fastest(energy))


def _not_the_fastest(energy: Rows) -> str:
    """Where the fastest way of a format and a number of sequences takes more energy than a slower one: the
    case that differs most; empty where there is none.
    """
    found = []
    for (weights, batch), mine in energy.groupby(["weights_as", "batch"]):
        fast, cheap = mine.loc[mine["tok/s"].idxmax()], mine.loc[mine["joules a token"].idxmin()]
        found.append((fast["joules a token"] / cheap["joules a token"], weights, int(batch), fast, cheap))
    more, weights, batch, fast, cheap = max(found, key=lambda each: each[0])
    if more <= LEVEL:
        return ""
    told = [
        f"`{row.impl}` makes {row['tok/s']:,.0f} tok/s for {row['joules a token']:.3f} J"
        for row in (fast, cheap)
    ]
    return (
        f"The fastest way is not always the cheapest: in {weights}, {counted(batch, 'sequence')}, {told[0]} "
        f"a token, {told[1]}."
    )
