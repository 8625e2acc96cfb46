"""A rung may exist before it is recorded: lessons replay, tables name it, validate lists it."""

import ast
import json
import os
import shutil
import subprocess
import sys

import pytest
from rooflab.paths import ROOT

# Module of ops, operator, the rung that the planted one is a copy of, and the lessons that read the operator:
# the first of them is replayed, and with ROOFLAB_ALL_MACHINES=1 all.
PLANTED = (
    ("stream", "saxpy", "2_vector", ("00a_environment", "01_bandwidth")),
    ("gemv", "gemv", "1_strided", ("03_coalescing", "03b_filling")),
    ("gemv", "gemv_rows", "1_warp", ("03d_rows", "07_regimes")),
    ("int4", "int4", "1_warp_row", ("04b_ladder",)),
    ("attention_rungs", "attention", "1_scalar", ("06_attention", "06c_trust")),
    ("attention_rungs", "decode_attention", "1_block_per_head", ("06d_decode",)),
    ("decoder_rungs", "decode_step", "1_kernel_per_phase", ("08_decoder",)),
)
OTHERS = ("09_scorecard",)
ALL = bool(os.environ.get("ROOFLAB_ALL_MACHINES"))
NAME = "99_planted"
pytestmark = pytest.mark.ci
CHILD = """
import json, sys
sys.path.insert(0, "tests")
from rooflab.records import fingerprint
fingerprint.fresh = lambda recorded, now: True  # test_static.py compiles every rung
import replaying
from rooflab import lab
from rooflab.studies.base import Study
Study.identity = lambda self, case, arch: "-"
replays = replaying.replay("h200", sys.argv[1:])
page = "\\n".join(str(shown.outputs) + shown.text for replay in replays for shown in replay.shown)
findings = [[each.severity, str(each)] for each in lab.freshness("h200")]
print(json.dumps({"ended": [str(replay) for replay in replays], "page": page, "findings": findings}))
"""


def plant(root, module, operator, parent):
    """Add a copy of `parent` under another name to the end of the ladder of `operator`, as a reader would."""
    file = root / "lib" / "rooflab" / "ops" / f"{module}.py"
    text = file.read_text()
    calls = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "Rung"
        and getattr(node.args[0], "value", "") == operator
    ]
    copied = ast.get_source_segment(text, next(c for c in calls if c.args[1].value == parent))
    last = ast.get_source_segment(text, calls[-1])
    file.write_text(text.replace(last, f"{last}, {copied.replace(parent, NAME)}"))
    folder = root / "kernels" / operator
    shutil.copy(folder / f"{parent}.cu", folder / f"{NAME}.cu")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What a checkout with a new rung of every operator shows: how replays ended, their pages, findings."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("lib", "kernels", "tests"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("data", "notebooks", "examples", "coverage.csv"):
        (root / name).symlink_to(ROOT / name)
    for module, operator, parent, _ in PLANTED:
        plant(root, module, operator, parent)
    lessons = [*(lesson for *_, read in PLANTED for lesson in (read if ALL else read[:1])), *OTHERS]
    environment = {**os.environ, "PYTHONPATH": str(root / "lib"), "ROOFLAB_ROOT": str(root)}
    command = [sys.executable, "-c", CHILD, *lessons]
    ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.splitlines()[-1])


def test_every_lesson_that_reads_a_ladder_replays(seen):
    assert [ended for ended in seen["ended"] if not ended.endswith(": well")] == []
    assert len(seen["ended"]) > len(PLANTED)


@pytest.mark.parametrize("operator", ["saxpy", "gemv", "gemv_rows", "int4", "attention", "decode"])
def test_pages_name_the_rung_as_not_yet_measured(seen, operator):
    assert f"{operator}/{NAME}" in seen["page"] and "not yet measured" in seen["page"]


def test_validate_lists_it_and_finds_no_error(seen):
    assert [sentence for severity, sentence in seen["findings"] if severity == "error"] == []
    listed = " ".join(sentence for _, sentence in seen["findings"] if "not yet measured" in sentence)
    for _, operator, _, _ in PLANTED:
        assert f"{operator}/{NAME}" in listed, listed
