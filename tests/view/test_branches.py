"""rooflab.view.branches: a source without the branches that its constants leave out."""

import pytest
from rooflab.ops import int4
from rooflab.view import branches, display

SOURCE = """\
constexpr int PARTS = TOKENS / 8, ROWS = 64 * PARTS;
constexpr bool FEW = TOKENS <= 16;
void f() {
    if constexpr (PARTS > 2 && !FEW) {  // many
        a();
    } else {
        b();
        if constexpr (FEW) c();  // only there
    }
    if constexpr (ROWS == 64)
        d();
    else
        e();
    if constexpr (COUNT > 1) g();
}
"""


@pytest.mark.parametrize(
    ("tokens", "left"),
    [
        (64, ["    a();", "    e();", "    if constexpr (COUNT > 1) g();"]),
        (16, ["    b();", "    c();  // only there", "    e();", "    if constexpr (COUNT > 1) g();"]),
        (8, ["    b();", "    c();  // only there", "    d();", "    if constexpr (COUNT > 1) g();"]),
    ],
)
def test_a_branch_is_taken_where_macros_decide_it(tokens: int, left: list[str]) -> None:
    lines = branches.taken(SOURCE, {"TOKENS": tokens}).splitlines()
    assert lines[3:-1] == left and lines[:3] == SOURCE.splitlines()[:3]


def test_a_source_stays_as_it_is_without_values() -> None:
    for rung in int4.LADDERS["int4"]:
        text = rung.path.read_text()
        assert branches.taken(text, {}) == text
        assert text.endswith(display.body_of(rung))
