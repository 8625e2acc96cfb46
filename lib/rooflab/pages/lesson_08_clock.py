"""What the clock inside the kernel says in lesson 08: where the time goes of rungs that win and lose."""

from __future__ import annotations

from rooflab.analysis import ablation
from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.studies import decode, decode_checks
from rooflab.view.diagram import by_block
from rooflab.words import listed

Clocks = dict[tuple[str, str], Rows]  # a layer's rows by rung and format

# What by_block.sums adds up: waits, inputs, attention; products, waits for weights; adding up and storing.
PARTS = ("waits and inputs", "products", "stores")
_LITTLE = 0.05  # of a layer: less than that of products is little to shorten


def taken(lab: Lab) -> Clocks:
    """The recorded layers by rung and format; none where no kernel wrote down its times."""
    asked = [*decode.timed(lab.sized), *decode_checks.timed_beside(lab.sized)]
    held = lab.held("decode", list({case.id: case for case in asked}.values()), "timeline")
    found = lab.profile("decode", held, "timeline") if held else None
    if found is None or found.empty:
        return {}
    study = decode.Decode()
    cases = {study.case(str(name)): mine for name, mine in found.groupby("case", sort=False)}
    return {(case.impl, str(case.format)): mine for case, mine in cases.items()}


def loss(clocks: Clocks, name: str, below: str, format: str) -> str:
    """In which part of a layer a step that loses is slower than the one it builds on; empty where one of the
    two was not clocked, or the layer that was is not slower.
    """
    if (name, format) not in clocks or (below, format) not in clocks:
        return ""
    before, after = (by_block.sums(clocks[rung, format]) for rung in (below, name))
    text = f"In {ablation.FORMATS[format]} a layer takes {sum(after):.1f} µs by the clock inside the kernel, "
    text += f"{sum(before):.1f} in `{below}`"
    if sum(after) <= sum(before):
        return ""  # see disagreements
    text += f": {_changes(before, after)}."
    if after[1] - before[1] < 0.5 * (sum(after) - sum(before)):
        return text
    waited = [_starved(clocks[rung, format]) for rung in (below, name)]
    if (more := waited[1] - waited[0]) < 0.5 * (after[1] - before[1]):
        less = f"{more:.1f} µs of that" if more >= 0.05 else "none of it"
        return (
            text
            + f" Waiting for weights is {less}: most weights are there, but warps take longer to "
            + ("start copies and to multiply." if by_block.copies_itself(name) else "multiply.")
        )
    return text + f" Waiting for weights is {more:.1f} µs of that."


def ring(clocks: Clocks, name: str, below: str) -> str:
    """What a ring that other warps fill shortens in each format in which it and the step before were clocked;
    empty where there is none.
    """
    formats = [f for f in ablation.FORMATS if (name, f) in clocks and (below, f) in clocks]
    wins, flat, part = [], [], {}
    for format in formats:
        before, after = (by_block.sums(clocks[rung, format]) for rung in (below, name))
        word = ablation.FORMATS[format]
        part[word] = before[1], after[1]
        if before[1] - after[1] > _LITTLE * sum(before):
            wins.append(word)
        elif sum(after) - after[1] > sum(before) - before[1]:
            flat.append(word)
    said = [f"fall from {part[word][0]:.1f} to {part[word][1]:.1f} µs in {word}" for word in wins]
    said += [
        f"take {part[word][1]:.1f} in place of {part[word][0]:.1f} µs in {word}, and the rest takes longer"
        for word in flat
    ]
    if not said:
        return ""
    return f"In `{name}` a layer's products {'; they '.join(said)}, by the clock inside the kernel."


def weights_there(clocks: Clocks, name: str, format: str) -> str:
    """How long a block of a rung waits for weights, in a format; empty where that is more than a little."""
    if (name, format) not in clocks:
        return ""
    rows = clocks[name, format]
    waits, layer = _starved(rows), sum(by_block.sums(rows))
    if waits >= _LITTLE * layer:
        return ""
    return (
        f"By the clock inside the kernel, which may slow a layer a little, a block of `{name}` waits for "
        f"weights {waits:.1f} of a layer's {layer:.1f} µs: the ring has them before it multiplies them."
    )


def disagreements(clocks: Clocks, climbs: dict[str, Rows]) -> str:
    """Name the rungs of which the clock and the ladder say the opposite, beside the step before; empty where
    there is none.
    """
    words = []
    for format, climb in climbs.items():
        for row in climb.itertuples():
            if (row.impl, format) not in clocks or (row.below, format) not in clocks:
                continue
            before, after = (sum(by_block.sums(clocks[rung, format])) for rung in (row.below, row.impl))
            if (after < before and row.gain < 1 / crossover.LEVEL) or (
                after > before and row.gain > crossover.LEVEL
            ):
                words.append(
                    f"`{row.impl}` in {ablation.FORMATS[format]} ({after:.1f} µs a layer, {before:.1f} in "
                    f"`{row.below}`, but {row.gain:.2f} times its speed)"
                )
    return f"Clock and ladder disagree on {listed(words)}; why is open." if words else ""


def _changes(before: tuple[float, ...], after: tuple[float, ...]) -> str:
    """By how many us each part of a layer is longer or shorter, the largest change first."""
    # Of rounded times, so that a reader of the table by rung finds the same differences.
    parts = [
        (round(new, 1) - round(old, 1), part) for old, new, part in zip(before, after, PARTS, strict=True)
    ]
    parts.sort(key=lambda each: -abs(each[0]))
    return listed(f"{abs(us):.1f} {'more' if us > 0 else 'less'} for {part}" for us, part in parts)


def _starved(rows: Rows) -> float:
    """The us of a layer in which a block waits for weights, on average."""
    table = by_block.spans(rows)
    return float(by_block.shares(rows)["starved"] * (table["end"].max() - table["start"].min()))
