"""What lesson 03c says of its first check: what of a call is a copy and what the kernel, there and here."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from rooflab.analysis import coalescing
from rooflab.analysis.evidence import Evidence, NoEvidence
from rooflab.view import diagram, display
from rooflab.view.diagram.uploads import Call, uploads


class Called(NamedTuple):
    """What a call that copies its weights takes here in us, and the kernel that it runs, alone."""

    call: float
    kernel: float


def called(evidence: Evidence) -> Called | None:
    """A call with a copy from pageable memory, and its kernel; None where one of them was not recorded."""
    try:
        call = evidence.us("gemv", operator="upload", impl="pageable")
        return Called(call, coalescing.us(evidence, coalescing.COALESCED))
    except NoEvidence:
        return None


def calls_drawn(gpu: str, evidence: Evidence, source: Any) -> diagram.Drawing:
    """Draw what calls take there and here, the copy beside the kernel."""
    copied, kept = "coalesced, weights copied", "coalesced, weights stay"
    there = [
        Call("strided", source.strided_us, None),
        Call(copied, source.uploading_us, source.uploading_us - source.resident_us),
        Call(kept, source.resident_us),
    ]
    here = []
    for says, impl in (("strided, weights stay", coalescing.STRIDED), (kept, coalescing.COALESCED)):
        with suppress(NoEvidence):
            here.append(Call(says, coalescing.us(evidence, impl)))
    if found := called(evidence):
        here.insert(-1, Call(copied, found.call, max(0.0, found.call - found.kernel)))
    card = coalescing.CARD.name.removeprefix("GeForce ")
    groups = {f"There: {card}, as published": there, f"Here: {gpu}, measured": here}
    return uploads(groups, "Check 1: one product, with and without a copy of its weights")


def missing_why(evidence: Evidence, source: Any, gpu: str) -> None:
    """Say what of a call was the copy, there and here, and what realizar's time is of its bandwidth."""
    moved, strided = coalescing.moved(), coalescing.us(evidence, coalescing.STRIDED)
    copy = source.uploading_us - source.resident_us
    theirs = coalescing.share_of_card(source.strided_us, moved)
    share = coalescing.share(evidence, coalescing.STRIDED)
    lines = [
        f"**There** the coalesced kernel takes {source.uploading_us / 1e3:.2f} ms where each call copies the "
        f"weights to the GPU, and {source.resident_us / 1e3:.2f} where they stay: "
        f"{copy / source.uploading_us:.0%} of the call is the copy."
    ]
    found = called(evidence)
    if found:
        lines.append(
            f"**Here** such a call takes {found.call / 1e3:.2f} ms, from ordinary (*pageable*) memory of the "
            f"host, and its kernel {found.kernel / 1e3:.2f}: {1 - found.kernel / found.call:.0%} is the copy."
        )
    if found and found.kernel > 1.2 * source.resident_us:
        lines.append(_ours_slower(gpu, evidence, found.kernel, source.resident_us))
    lines.append(
        f"Realizar does not divide the {source.strided_us / 1e3:.2f} ms of its strided kernel. For "
        f"{moved / 1e6:.1f} MB they are {moved / source.strided_us / 1e3:.1f} GB/s, {theirs:.1%} of its "
        f"card's bandwidth. The same addresses take {strided / 1e3:.2f} ms on the {gpu}, {share:.0%} of the "
        "bandwidth."
    )
    text = "\n".join(f"- {line}" for line in lines)
    if share > 5 * theirs:
        text += (
            f"\n\n**The {source.strided_us / 1e3:.2f} ms probably contain a copy**: their rate is far below "
        )
        text += (
            f"any DRAM, and near that of realizar's copy, {moved / copy / 1e3:.1f} GB/s. That is no proof. "
        )
        text += f"That copy alone took {copy / 1e3:.2f} ms"
        text += ", longer than this whole call" if copy > source.strided_us else ""
        text += f"{_copies_vary(evidence, found)}."
    display.say(text)


def _ours_slower(gpu: str, evidence: Evidence, ours: float, theirs: float) -> str:
    """That the coalesced kernel takes `ours` microseconds here and `theirs` as published, and what of that is
    known.
    """
    card, bytes_ = coalescing.CARD, coalescing.moved()
    wide = evidence.spec.dram_gb_s / card.dram_gb_s if evidence.spec else 0.0
    text = f"**Ours takes {ours / theirs:.1f} times as long as theirs**"
    text += f", on a card with {wide:.1f} times the bandwidth" if wide > 1 else ""
    text += ": the coalesced kernel takes "
    text += (
        f"{ours / 1e3:.2f} ms on the {gpu}, and was published with {theirs / 1e3:.2f} on the {card.name}. "
    )
    if bytes_ < card.l2_mb * 2**20:
        text += (
            f"Their matrix of {bytes_ / 2**20:.0f} MiB fits that card's L2 of {card.l2_mb:g} MiB, so theirs "
        )
        text += "may have read it from there; or their kernel differs from its description. "
    return f"{text}Which it is is not known: **verdicts on *coalesced* are on our reconstruction of it.**"


def _copies_vary(evidence: Evidence, found: Called | None) -> str:
    """What two of our copies from pageable memory take; empty where one was not recorded."""
    try:
        alone = evidence.us("bandwidth", operator="h2d", impl="pageable")
    except NoEvidence:
        return ""
    if found is None:
        return ""
    return (
        f", and copies from pageable memory vary: ours of as many bytes takes {alone / 1e3:.2f} ms in part "
        f"01b and {(found.call - found.kernel) / 1e3:.2f} here"
    )
