"""Words that computed sentences share."""

# What a page calls a number format of a record.
FORMATS = {"fp16": "FP16", "bf16": "bfloat16", "q8_0": "Q8_0", "int4_g128": "INT4"}


def counted(count: int, one: str, many: str = "") -> str:
    """A number of things with their name: "1 token", "1,848 tokens"; `many` is a plural without a plain s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
