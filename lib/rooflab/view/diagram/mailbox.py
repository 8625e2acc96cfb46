"""Two slots of a mailbox in turns: why a part is read before the next one is written over it."""

from __future__ import annotations

from rooflab.view.diagram.svg import AMBER, PALE, SKY, SMALL, WIDTH, Canvas, Drawing, on, single

ROUNDS, SLOTS = 5, 2


def two_slots() -> Drawing:
    """GPU 0's parts on their way to GPU 1, round by round, and what tells GPU 0 that a slot is free."""
    canvas, left = Canvas(), 96.0
    step = (WIDTH - left) / ROUNDS
    lanes = {"GPU 0 writes": 0.0, "slot 1": 36.0, "slot 0": 64.0, "GPU 1 reads": 100.0, "GPU 1 writes": 128.0}
    for name, y in lanes.items():
        canvas.text(0, y + 15, name, SMALL)
    shade = {0: PALE, 1: SKY}
    for turn in range(1, ROUNDS + 1):
        x, slot = left + (turn - 1) * step, turn % SLOTS
        y, until = lanes[f"slot {slot}"], min(x + 12 + SLOTS * step, WIDTH)
        canvas.cell(x, lanes["GPU 0 writes"], 24, 22, str(turn), shade[slot])
        canvas.rect(x + 12, y, until - x - 12, 22, shade[slot])
        canvas.text(x + 17, y + 15, f"part {turn}", SMALL, fill=on(shade[slot]))
        canvas.cell(x, lanes["GPU 1 writes"], 24, 22, str(turn), AMBER)
        canvas.cell(x + 0.55 * step, lanes["GPU 1 reads"], 24, 22, str(turn), shade[slot])
    for turn in range(1, ROUNDS + 1):  # over the slots
        x = left + (turn - 1) * step + 12
        canvas.line([(x, 22), (x, lanes[f"slot {turn % SLOTS}"])], 1.2, end="arrow")
    read, sent = left + 0.55 * step + 24, left + step
    canvas.line([(read, lanes["GPU 1 reads"] + 22), (sent - 1, lanes["GPU 1 writes"] + 4)], 1.6, end="arrow")
    canvas.line([(sent + 24, lanes["GPU 1 writes"] + 8), (left + SLOTS * step - 3, 20)], 1.6, True, "arrow")
    said = (
        "GPU 1 writes 2 only after it has read 1.",
        "Dashed: its 2 reaches GPU 0, which now knows this and writes 3 over 1.",
    )
    for k, line in enumerate(said):
        canvas.text(left, lanes["GPU 1 writes"] + 42 + 15 * k, line, SMALL)
    says = f"GPU 0's parts alternate between two slots, from which GPU 1 reads them. {' '.join(said)}"
    return single(f"Two slots, {ROUNDS} rounds", says, canvas)
