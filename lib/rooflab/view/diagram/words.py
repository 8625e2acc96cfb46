"""Words as bits: eight INT4 codes in 32 bits, and the FP16 number that is made of a code or of a byte."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rooflab.errors import UsageError
from rooflab.numerics.quant import unpack_int4
from rooflab.paths import KERNELS
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, NONE, PALE, Canvas, Drawing, shade, single

EXAMPLE = 0x8683AD76
BYTES = 0x2EF1057D  # four signed bytes
_INT4 = KERNELS / "common" / "int4.cuh"
_Q8 = KERNELS / "common" / "q8_tiles.cuh"


def codes(word: int) -> list[int]:
    """The eight codes that a packed word holds, in their order, -8 to 7."""
    packed = np.array([[word]], np.uint32).view(np.int32)
    return [int(code) for code in unpack_int4(packed).reshape(-1)]


def signed(code: int) -> str:
    """A code with its sign, 0 without."""
    return f"{code:+d}" if code else "0"


def nibbles(word: int = EXAMPLE, scale: float | None = None) -> Drawing:
    """A word as eight nibbles, each with its bits, the number stored and its code; with the `scale` of its
    group the weight as well, code times scale.
    """
    if not 0 <= word < 1 << 32:
        raise UsageError(f"A word has 32 bits; {word:#x} has more.")
    held, canvas = codes(word), Canvas()
    left, pitch = 76.0, (svg.WIDTH - 76) / 8
    labels = ["hex", "bits", "stored", "code", "", *(["weight"] if scale is not None else [])]
    tops = (0.0, 34.0, 62.0, 96.0, 126.0, 152.0)
    for label, top in zip(labels, tops, strict=False):
        canvas.text(0, top + 18, label, svg.SMALL)
    said = []
    for place in range(8):  # the highest nibble is written first
        k = 7 - place
        nibble, x = word >> 4 * k & 15, left + place * pitch
        fill = shade(4 * place, 32)
        canvas.cell(x, tops[0], pitch, 28, f"{nibble:X}", fill, 17)
        for bit in range(4):
            each = pitch / 4
            canvas.cell(x + bit * each, tops[1], each, 22, str(nibble >> (3 - bit) & 1), NONE, 11)
        canvas.cell(x, tops[2], pitch, 26, f"{nibble}", fill, 13)
        off = f"{nibble} - {nibble - held[k]}"
        canvas.cell(x, tops[3], pitch, 28, signed(held[k]), fill, 17)
        canvas.text(x + pitch / 2, tops[4] + 12, off, svg.SMALL, "middle")
        last = tops[4] + 28
        if scale is not None:
            canvas.cell(x, tops[5] - 4, pitch, 28, f"{held[k] * scale:+.2f}" if held[k] else "0", fill, 14)
            last = tops[5] + 40
        canvas.text(x + pitch / 2, last, f"w[{k}]", svg.SMALL, "middle")
        said.append(signed(held[k]))
    says = f"0x{word:08X} holds eight codes of four bits; from the lowest nibble up they are "
    says += f"{', '.join(reversed(said))}."
    if scale is not None:
        canvas.text(0, tops[5] + 40, f"× {scale:.4f}", svg.SMALL)
        says += f" Each times the scale {scale:.4f} is a weight."
    return single(f"One word, eight weights: 0x{word:08x}", says, canvas)


def magic(file: Path = _INT4) -> tuple[int, int, int]:
    """Mask, base and what is subtracted, all of the low half, as int4_to_halves has them in its source."""
    text = file.read_text(encoding="utf-8")
    body = text.partition("void int4_to_halves(")[2].partition("\n}")[0]
    found = re.search(r"bitwise<0xea>\(word, 0x([0-9a-f]+)u, 0x([0-9a-f]+)u\)", body)
    taken = re.search(r"ones = as_half2\(0x([0-9a-f]+)u\)", body)
    if not found or not taken:
        raise UsageError(f"{file.name} has no int4_to_halves that ORs a nibble into a number.")
    mask, base, ones = (int(text, 16) & 0xFFFF for text in (*found.groups(), taken[1]))
    return mask, base, ones


def half(bits: int) -> float:
    """The number that 16 bits mean in FP16."""
    return float(np.array([bits], np.uint16).view(np.float16)[0])


def to_half(word: int = EXAMPLE, file: Path = _INT4) -> Drawing:
    """How an OR and a subtraction make an FP16 number of the lowest code of a word: the 16 bits at each step,
    with mask and constants from the kernel's source.
    """
    mask, base, ones = magic(file)
    code = word & mask
    joined = code | base
    rows = (
        ("word & mask", code, f"the code: {code}"),
        ("magic number", base, f"{base:#06x} = {half(base):g}"),
        ("OR of both", joined, f"{joined:#06x} = {half(joined):g}"),
    )
    result = half(joined) - half(ones)
    canvas = _sixteen_bits(rows, mask, half(ones), f"code - {half(ones) - half(base):g}, exact")
    changed = bin(mask).count("1")
    says = (
        f"{base:#06x} is {half(base):g} in FP16; its lowest {changed} bits replaced by the code "
        f"{code} make "
        f"{joined:#06x}, which is {half(joined):g}; {half(ones):g} less is {result:g}, code - "
        f"{half(ones) - half(base):g}."
    )
    return single(f"{changed} of 16 bits replaced: a code becomes a half", says, canvas)


def _sixteen_bits(rows: Sequence[tuple[str, int, str]], mask: int, taken: float, exact: str) -> Canvas:
    """Rows of 16 bits under the parts of an FP16 number, each (name, bits, words beside it), the bits of
    `mask` filled; below them what remains of the last row's number when `taken` is subtracted.
    """
    canvas, left, size = Canvas(), 96.0, 19.0
    for start, length, name in ((0, 1, "sign"), (1, 5, "exponent"), (6, 10, "fraction")):
        canvas.cell(left + start * size, 0, length * size, 18, name if length > 1 else "±", NONE)
    for k, (name, bits, says) in enumerate(rows):
        y = 26.0 + 34 * k
        canvas.text(0, y + 17, name, svg.TEXT - 0.5)
        boxes = []
        for bit in range(16):
            place = 15 - bit
            own = mask >> place & 1
            fill = (AMBER if k != 1 else GREY) if own else PALE if bit < 6 else NONE
            boxes.append((left + bit * size, y, size, 24.0, str(bits >> place & 1), fill))
        canvas.boxes(boxes, 13)
        canvas.text(left + 16 * size + 10, y + 17, says, svg.TEXT - 0.5)
    y, made = 26.0 + 34 * len(rows) + 8, half(rows[-1][1])
    canvas.cell(left, y, 16 * size, 28, f"one subtraction: {made:g} - {taken:g} = {made - taken:g}", BLUE, 14)
    canvas.text(left + 16 * size + 10, y + 19, exact, svg.TEXT - 0.5)
    return canvas


def byte_to_half(quant: int = -23, file: Path = _Q8) -> Drawing:
    """How a byte put in for the lower half of an FP16 number's bits, and a subtraction, make a number of
    a quant of Q8_0, with both constants from the kernel's source. Raises UsageError for what is no quant.
    """
    text = file.read_text(encoding="utf-8")
    upper, taken = re.search(r"0x(\w\w)\1\1\1u", text), re.search(r"__float2half2_rn\(([\d.]+)f\)", text)
    if not upper or not taken or not -128 <= quant < 128:
        raise UsageError(f"{quant} is no quant, or {file.name} makes no FP16 number of a byte.")
    base, less = int(upper[1], 16) << 8, float(taken[1])
    stored = quant + int(less - half(base))
    rows = (
        ("byte stored", stored, f"{quant} + {stored - quant} = {stored}"),
        ("upper byte", base, f"{base:#06x} = {half(base):g}"),
        ("both together", base | stored, f"{base | stored:#06x} = {half(base | stored):g}"),
    )
    canvas = _sixteen_bits(rows, 0xFF, less, "the quant, exact")
    says = f"{base:#06x} is {half(base):g} in FP16; with the byte {stored} for its lower half it is "
    says += f"{half(base | stored):g}; {less:g} less is {half(base | stored) - less:g}, the quant."
    return single("A byte becomes an FP16 number", says, canvas, lean=True)


def dp4a(w: int = BYTES, x: int = 0x05FD0C7F) -> Drawing:
    """What dp4a makes of two words: their four pairs of signed bytes, the products and their sum."""
    for word in (w, x):
        if not 0 <= word < 1 << 32:
            raise UsageError(f"A word has 32 bits; {word:#x} has more.")
    ours, theirs = (np.array([word], np.uint32).view(np.int8).astype(int) for word in (w, x))
    products = ours * theirs
    canvas, left, pitch = Canvas(), 116.0, 90.0
    rows = ((f"w = {w:#010x}", ours), (f"x = {x:#010x}", theirs), ("products", products))
    for k, (label, values) in enumerate(rows):
        y = 34.0 * k
        canvas.text(0, y + 17, label, svg.TEXT - 1)
        for place in range(4):  # the highest byte is written first
            fill = shade(10 * place) if k < 2 else AMBER
            canvas.cell(left + place * pitch, y, pitch - 6, 26, f"{values[3 - place]:,}", fill, 14)
    total = int(products.sum())
    canvas.cell(left, 108, 4 * pitch - 6, 28, f"one int32 sum: {total:,}", BLUE, 14)
    canvas.text(0, 126, "__dp4a(w, x, 0)", svg.TEXT - 1)
    said = ", ".join(f"{a} × {b}" for a, b in zip(ours[::-1], theirs[::-1], strict=True))
    says = f"The four signed bytes of two words, multiplied in pairs: {said}; the sum is {total:,}."
    return single("dp4a: four products of bytes and their sum, one instruction", says, canvas)
