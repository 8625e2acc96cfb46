"""An edited comment keeps a record fresh; changed code or a changed launch rule makes it stale."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rooflab.errors import UsageError
from rooflab.records.fingerprint import fresh, identity, source_of_callable, strip_comments

KERNEL = """
// reads a row per warp
#include "common/ptx/mma.cuh"
#define UNROLL 4  /* loads in flight */
extern "C" __global__ void read(const uint4* x, float* y, size_t n) {
  size_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i].x + 1'000; // tail
  asm volatile("ld.global.v4.u32 {%0}, [%1]; // kept" : : "l"(x));
}
"""
EDITED = """/* A row per warp:
   sixteen bytes a lane. */
#include "common/ptx/mma.cuh"
#define UNROLL 4
extern "C" __global__ void
read(const uint4 *x, float *y, size_t n)
{
    size_t i = blockIdx.x*blockDim.x + threadIdx.x;   // which element
    if (i < n) y[i] = x[i].x+1'000;
    asm volatile("ld.global.v4.u32 {%0}, [%1]; // kept" : : "l"(x));
}"""


def test_comments_and_layout_do_not_count():
    assert strip_comments(KERNEL) == strip_comments(EDITED)
    assert fresh(identity("rule", KERNEL, b"sass"), identity("rule", EDITED, None))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("UNROLL 4", "UNROLL 8"),
        ("i < n", "i <= n"),
        ("1'000", "1'001"),
        ("; // kept", "; // changed"),  # inside a string literal
        ("mma.cuh", "warp.cuh"),
        ('"ld.global.v4', '"ld.global. v4'),
        ("#define UNROLL 4  /* loads in flight */\n", "#define UNROLL 4 "),
    ],
)
def test_every_change_of_code_counts(old, new):
    changed = KERNEL.replace(old, new, 1)
    assert changed != KERNEL and strip_comments(changed) != strip_comments(KERNEL)
    assert not fresh(identity("rule", KERNEL, None), identity("rule", changed, None))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a = b/**/+c;", "a=b + c ;", True),
        ("a++b", "a+ +b", False),
        ("int x", "intx", False),
        ("x = '\"'; // c\ny", "x = '\"'; y", True),
        (r"x = '\''; /* ' */ y", r"x = '\''; y", True),
        ('s = "a // b";', 's = "a";', False),
        ('s = "a /* b */";', 's = "a ";', False),
        (r's = "\"//";', r's = "\""; ', False),
        ('s = R"(// x)";', 's = R"(// y)";', False),
        ('s = R"q(a)" // b)q"; // c', 's = R"q(a)" // b)q";', True),
        ('s = R"q(a)" // b)q";', 's = R"q(a)" // d)q";', False),
        ("x = 1'000; // a'b\ny = 2'0;", "x = 1'000;\ny = 2'0;", True),
        ("a // continued \\\n b\nc", "a c", True),
        ("#define F(x) x", "#define F (x) x", False),
        ("#define A 1 \\\n  + 2\nb", "#define A 1 + 2\nb", True),
        ("#define A 1\nb", "#define A 1 b", False),
        ("  #  pragma unroll\nfor", "#pragma unroll\nfor", False),  # cautious: spaces in directives count
        ("a /* never closed", "a", True),
        ("a\n}\n/* b\n}\nc */ d", "a } d", True),
        ("// a \\\n}\nb\n}\nc", "b } c", True),
        ("#define A \\\n}\nb", "#define A }\nb", True),
        ("x\n}\n#define A 1\n}\ny", "x }\n#define A 1\n} y", True),
        ('s = R"(\n}\n// x)";', 's = R"(\n}\n// y)";', False),
        ("k<<<1, 2>>>(x)", "k<<<1,2>>>( x )", True),
    ],
)
def test_what_the_reduction_tells_apart(one, other, same):
    assert (strip_comments(one) == strip_comments(other)) is same


TOKENS = [
    "a",
    "b1",
    "1'0",
    "'x'",
    "'\\''",
    '"s // t"',
    'R"(x)"',
    "#define F(",
    "#",
    "+",
    "++",
    "<<<",
    "\\\n",
    "(",
]


@given(st.lists(st.tuples(st.sampled_from(TOKENS), st.sampled_from([" ", "\n", "/**/", " // c\n", "\\\n "]))))
def test_reducing_twice_changes_nothing(pieces):
    once = strip_comments("".join(token + gap for token, gap in pieces))
    assert strip_comments(once) == once


def launch(n, sms):
    """Blocks for n elements."""
    blocks = -(-n // 256)  # rounded up
    return min(blocks, 4 * sms)


def test_a_launch_rule_is_its_code_alone():
    def same():
        def launch(n, sms):
            "Another docstring."
            # another comment
            blocks = -(-n // 256)

            return min(blocks, 4 * sms)

        return launch

    def changed():
        def launch(n, sms):
            blocks = -(-n // 256)
            return min(blocks, 8 * sms)

        return launch

    assert source_of_callable(same()) == source_of_callable(launch)
    assert source_of_callable(changed()) != source_of_callable(launch)
    assert source_of_callable(launch, changed()) != source_of_callable(launch)
    assert "8" in source_of_callable(changed()) and "docstring" not in source_of_callable(same())


def test_what_has_no_definition_is_refused():
    for thing in (lambda n: n, len, eval("lambda n: n")):
        with pytest.raises(UsageError, match="made with def"):
            source_of_callable(thing)


def test_a_changed_launch_rule_is_stale_even_with_equal_machine_code():
    assert not fresh(identity("rule", KERNEL, b"sass"), identity("other rule", KERNEL, b"sass"))


def test_equal_machine_code_is_fresh_and_unknown_machine_code_proves_nothing():
    changed = KERNEL.replace("size_t i", "auto i")
    assert fresh(identity("rule", KERNEL, b"sass"), identity("rule", changed, b"sass"))
    assert not fresh(identity("rule", KERNEL, b"sass"), identity("rule", changed, b"other"))
    for one, other in ((None, b"sass"), (b"sass", None), (None, None)):
        assert not fresh(identity("rule", KERNEL, one), identity("rule", changed, other))


def test_a_peer_is_its_version():
    assert fresh("torch-2.11.0", "torch-2.11.0")
    assert not fresh("torch-2.11.0", "torch-2.11.1")
    assert not fresh("torch-2.11.0", identity("rule", KERNEL, None))
    assert not fresh("", "")
