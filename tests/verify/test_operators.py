"""Every rung of every operator, as its operator declares it: right, without a race, and refused if wrong."""

import needs
import pytest
from rooflab import cli, ops
from rooflab.errors import UsageError
from rooflab.ops import gemv, stream
from rooflab.verify import gating
from rooflab.verify.subjects import is_portable, portable, subjects
from shares import ALL, CI, thinned

needs.compiler()

RUNGS = portable()
LAST = {operator: rung for operator, rung in RUNGS}
# `make test` leaves two of three rungs below the last to CI, and those of decode_step, which test_decoder.py
# gates as well. `make check` runs all of an operator whose kernels changed.
RUN = [
    (operator, rung)
    for k, (operator, rung) in enumerate(RUNGS)
    if CI or rung is LAST[operator] or (k % 3 == 0 and operator != "decode_step")
]


@pytest.mark.parametrize(("operator", "rung"), RUN, ids=lambda one: getattr(one, "name", one))
def test_a_rung_is_right_and_raises_no_alarm(operator, rung):
    """A ladder's last rung on its small cases, every second of many (outside CI every fourth of decode_step);
    another one on one of them in turn, and on the last. A rung of decode_step, of which each case is a
    program of seconds, is gated over more by test_decoder.py: here on the one in turn, without the long
    context, which the last rung has in CI, and none so wide that it takes ten seconds.
    """
    cases, alone = subjects(operator, rung.name), operator == "decode_step"
    if alone and not ALL:
        cases = [case for case in cases if "1280 wide" not in case.shape]
    if rung is LAST[operator]:
        cases = thinned(cases, 2 if CI or not alone else 4) if len(cases) > 4 else cases
    elif not ALL:
        cases = [case for case in cases if not (alone and "18 tokens" in case.shape)]
        turn = RUNGS.index((operator, rung)) % max(1, len(cases) - (not alone))
        cases = [*cases[turn : turn + 1], *([] if alone else cases[turn + 1 :][-1:])]
    found = gating.verdict(operator, rung, cases)
    assert found.passed, found


WRONG = [
    (gemv.LADDERS["gemv"][1], "y[column] = sum", "y[column] = sum + 1.0f", "gate"),
    (gemv.LADDERS["gemv"][1], "__syncthreads();  // no thread may overwrite", "// no thread may", "gate"),
    (stream.LADDERS["copy"][0], "y[i] = x[i]", "y[i] = x[i", "compiler"),
]


@pytest.mark.parametrize(("rung", "text", "becomes", "found_by"), WRONG, ids=lambda one: str(one)[:12])
def test_a_wrong_kernel_is_refused(rung, text, becomes, found_by, capsys):
    source = rung.path.read_text()
    assert source.count(text) >= 1
    with ops.swapped(rung, source.replace(text, becomes)):
        assert cli.main(["gate", rung.operator, rung.name]) == 1
    said = capsys.readouterr().out
    assert f"{rung.operator}/{rung.name}: WRONG" in said and found_by in said


def test_a_hopper_rung_is_named_and_no_failure():
    (rung,) = (rung for rung in ops.module_of("int4").LADDERS["int4"] if rung.name == "11_tma")
    found = gating.verdict("int4", rung)
    assert not is_portable(rung) and found.passed is None
    assert "it is for sm_90a alone, whose instructions the CPU lacks" in found.says


def test_what_does_not_exist_is_named():
    with pytest.raises(UsageError, match="no operator 'gemm'; there are read, copy"):
        next(gating.verdicts("gemm"))
    assert cli.main(["gate", "gemv", "9_none"]) == 2
