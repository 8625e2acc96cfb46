"""Run the tests that bear on what changed: what an author of a text or of a rung wants to know at once.

Called by the Makefile: python scripts/check.py [SINCE], for what differs from that commit (default HEAD).
Always: the notebooks' form, README's tables, the glossary, coverage.csv, the packages, the floors. For a
changed notebook: its replay by nbval and the tests of its lesson. For a changed kernel or op: every rung
compiled, and its operator's own tests, over all combinations of which `make test` takes those that hold every
pair.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from rooflab import ops
from rooflab.book.check import NBVAL

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = [
    *(
        "tests/book/test_normal.py",
        "tests/book/test_book.py",
        "tests/book/test_coverage.py",
        "tests/test_packaging.py",
    ),
    *("tests/test_floors.py", "tests/book/test_page.py"),
]


def changed(since: str) -> list[str]:
    """Files that differ from the commit, new ones included, relative to the root."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        sys.exit(
            "rooflab: git says what changed: install it and work in a clone, or run `make test`, "
            "which needs neither."
        )
    commands = (["git", "diff", "--name-only", since, "--"], ["git", "ls-files", "-o", "--exclude-standard"])
    found: list[str] = []
    for command in commands:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"rooflab: SINCE={since} is refused: {done.stderr.strip().splitlines()[0]}")
        found += done.stdout.splitlines()
    return found


def modules_of() -> dict[str, str]:
    """Which module of rooflab.ops launches each operator."""
    return {name: m.__name__.rpartition(".")[2] for m in ops.modules() for name in m.LADDERS}


def _tests(of: str) -> list[str]:
    """The test file of this name, in whichever folder of tests/ it is."""
    return [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob(f"test_{of}.py")]


def bearing_on(files: Iterable[str], modules: Mapping[str, str]) -> list[str]:
    """The notebooks and test files to run for these files, each once, those that exist."""
    found = list(ALWAYS)
    for file in files:
        if match := re.fullmatch(r"notebooks/(\d+)[^/]*\.ipynb", file):
            found += [file, *_tests(f"lesson_{match[1]}"), *_tests(f"exercises_{match[1]}")]
        elif match := re.fullmatch(r"kernels/(\w+)/.*|lib/rooflab/ops/(\w+)\.py", file):
            module = match[2] or modules.get(match[1], match[1])
            found += ["tests/runtime/test_kernel.py", *(_tests(module) or _tests("simt_gates"))]
        elif re.fullmatch(r"tests/(\w+/)?test_\w+\.py", file):
            found.append(file)
    return [file for file in dict.fromkeys(found) if (ROOT / file).exists()]


def main(arguments: list[str]) -> int:
    chosen = bearing_on(changed(arguments[0] if arguments else "HEAD"), modules_of())
    whole = {**os.environ, "ROOFLAB_ALL_KERNELS": "1"}
    return subprocess.run([sys.executable, "-m", "pytest", *NBVAL, *chosen], cwd=ROOT, env=whole).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
