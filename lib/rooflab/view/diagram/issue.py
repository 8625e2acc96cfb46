"""Issue slots beside the tensor cores: how long one block's product takes, in slots of its SM, and how many
instructions its scaling adds.

A slot is one instruction of a warp, on a sum of 32 products in each lane; both rates are of data sheets. A
sum is scaled once it is there, and has its own colour in both rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from rooflab.errors import UsageError
from rooflab.hardware.device import Device
from rooflab.studies import mmq
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, NONE, SKY, Canvas, Drawing, single

TILE = 256  # tokens for which a weight is made FP16 once: the width of rung 7's tile
PER_WEIGHT = 2  # instructions that make it
STEPS = ("convert", "×", "× +")  # what scales a sum: to float, by one scale, by the other and added


def busy(chip: Device, halves: bool = False) -> tuple[float, float, float]:
    """Slots that the tensor cores need for a sum, that pass until the next one, and the share of them in
    which the tensor cores work: int8 sums that are scaled, or with `halves` FP16 products of scaled weights.
    """
    room = mmq.room(chip)
    if halves:
        each = room * chip.int8_tensor / chip.fp16_tensor
        return each, each, 1.0
    return room, max(room, len(STEPS)), min(1.0, room / len(STEPS))


def issue_slots(chips: Sequence[Device], halves: Sequence[Device] = (), window: float = 12.0) -> Drawing:
    """Tensor cores and issue slots over `window` slots: `chips` scale every sum of an int8 product, `halves`
    multiply FP16 weights that were scaled before.
    """
    if not chips:
        raise UsageError("Issue slots are drawn of at least one chip.")
    canvas, left, y, said = Canvas(), 92.0, 0.0, []
    unit = (svg.WIDTH - left - 2) / window
    for chip, half in [*((chip, False) for chip in chips), *((chip, True) for chip in halves)]:
        each, step, share = busy(chip, half)
        beside = 32 * PER_WEIGHT / TILE  # a sum's share of what its 32 weights take
        what = "FP16 products of weights scaled before" if half else "int8 products, each sum scaled"
        canvas.text(0, y + 12, f"{chip.name}: {what}", bold=True)
        y += 20
        for row, words in enumerate(("tensor cores", "issue slots")):
            canvas.text(0, y + 28 * row + 16, words, svg.SMALL)
            canvas.rect(left, y + 28 * row, window * unit, 24, NONE, 0.3)

        cells = list[tuple[float, float, int, str, str]]()  # start, slots, row, text, fill

        k, start = 0, 0.0
        while start < window - 1e-9:
            fill = BLUE if k % 2 == 0 else SKY
            cells.append((start, each, 0, f"sum {k + 1}", fill))
            if half:
                cells.append((start, beside, 1, "", AMBER))
            else:
                for place, name in enumerate(STEPS):
                    cells.append((start + each + place, 1, 1, name, fill))
            k, start = k + 1, start + step
        boxes = list[tuple[float, float, float, float, str, str]]()
        for start, wide, row, text, fill in cells:
            inside = min(wide, window - start)
            words = text if inside > 0.7 * wide else ""
            if inside > 1e-9:
                boxes.append((left + start * unit, y + 28 * row, inside * unit, 24, words, fill))
        canvas.boxes(boxes)
        peak = chip.fp16_tensor if half else chip.int8_tensor
        rate = f"{share * peak:,.0f} of {peak:,.0f} {'TFLOP/s' if half else 'TOP/s'}"
        free = (
            f"{PER_WEIGHT} × 32 ÷ {TILE} = {beside:.2f} a sum"
            if half
            else f"time for {each:.1f} a sum, {len(STEPS)} needed"
        )
        canvas.text(left, y + 64, f"{free}; tensor cores at {share:.0%}: {rate}", svg.SMALL + 0.5)
        y += 84
        said.append(f"{chip.name}, {what}: {free}, tensor cores busy {share:.0%}")
    canvas.text(
        0,
        y + 8,
        "Blue: a sum in each of 32 lanes, and the three instructions that scale it, in its shade.",
        svg.SMALL,
    )
    if halves:
        made = f"Amber: about {PER_WEIGHT} instructions make a weight FP16 for {TILE} tokens"
        amber = f"{made}; a sum has 32 weights."
        canvas.text(0, y + 24, amber, svg.SMALL)
    says = f"By data sheets. {'; '.join(said)}."
    return single("Scaling takes issue slots while the tensor cores wait", says, canvas)
