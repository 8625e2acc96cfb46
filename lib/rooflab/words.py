"""Words that computed sentences share."""


def counted(count: int, one: str, many: str = "") -> str:
    """A number of things with their name: "1 token", "1,848 tokens"; `many` is a plural without a plain s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
