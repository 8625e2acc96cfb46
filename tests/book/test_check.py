"""`make check`: which tests bear on a change."""

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from rooflab import paths

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rooflab_check", ROOT / "scripts" / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("file", "runs"),
    [
        (
            "notebooks/07b_predicting.ipynb",
            ["", "tests/lessons/test_lesson_07.py", "tests/exercises/test_exercises_07.py"],
        ),
        ("notebooks/99_gone.ipynb", []),
        (
            "kernels/decode_step/1_kernel_per_phase.cu",
            ["tests/runtime/test_kernel.py", "tests/engine/test_decoder.py"],
        ),
        ("kernels/read/2_vector.cu", ["tests/runtime/test_kernel.py", "tests/simt/test_simt_gates.py"]),
        ("kernels/common/ptx/mma.cuh", ["tests/runtime/test_kernel.py", "tests/simt/test_simt_gates.py"]),
        ("lib/rooflab/ops/int4.py", ["tests/runtime/test_kernel.py", "tests/ops/test_int4.py"]),
        ("tests/bench/test_roof.py", ["tests/bench/test_roof.py"]),
        ("README.md", []),
    ],
)  # fmt: skip
def test_a_change_chooses_its_tests(check: ModuleType, file: str, runs: list[str]) -> None:
    assert check.bearing_on([file], check.modules_of()) == check.ALWAYS + [name or file for name in runs]


def test_what_always_runs_is_there(check: ModuleType) -> None:
    assert all((paths.ROOT / file).is_file() for file in check.ALWAYS)


def test_without_git_or_outside_a_clone_make_check_says_what_to_do(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        monkeypatch.context() as patch,
        pytest.raises(SystemExit, match="run `make test`, which needs neither"),
    ):
        patch.setenv("PATH", str(tmp_path))
        check.changed("HEAD")
    monkeypatch.setattr(check, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="work in a clone"):
        check.changed("HEAD")


@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs git and a clone"
)
def test_an_unknown_commit_is_one_sentence(check: ModuleType) -> None:
    with pytest.raises(SystemExit, match="SINCE=no-such-commit is refused"):
        check.changed("no-such-commit")
