"""The lists of packages agree, the bootstrap says what is wrong, and README's commands are the ones
tested."""

import contextlib
import csv
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import shares
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from rooflab import __version__, cli, paths
from rooflab.book import check

ROOT = paths.ROOT
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]


def _lines(name: str) -> list[str]:
    """The requirements of a set, those of the sets that it is made of among them."""
    found: list[str] = []
    for line in PROJECT["optional-dependencies"][name]:
        wanted = Requirement(line)
        found += [each for extra in sorted(wanted.extras) for each in _lines(extra)] or [line]
    return found


SETS = {"requirements.txt": PROJECT["dependencies"]} | {
    f"requirements-{name}.txt": _lines(name) for name in ("lab", "cluster", "test", "gpu")
}


def _pins(file: str) -> dict[str, Requirement]:
    """Every pin of a requirements file and of those it includes."""
    pins: dict[str, Requirement] = {}
    for line in (ROOT / file).read_text().splitlines():
        if line.startswith("-r "):
            pins |= _pins(line[3:].strip())
        elif line and not line.startswith("#"):
            requirement = Requirement(line)
            assert canonicalize_name(requirement.name) not in pins, f"{line} is pinned twice"
            pins[canonicalize_name(requirement.name)] = requirement
    return pins


def _version(requirement: Requirement) -> str:
    [pin] = requirement.specifier
    assert pin.operator == "==" and "*" not in pin.version, f"{requirement} is not pinned to one version"
    return pin.version


@pytest.mark.parametrize("file", SETS)
def test_every_requirement_is_pinned_within_its_range(file: str) -> None:
    pins = _pins(file)
    for text in SETS[file]:
        wanted = Requirement(text)
        pin = pins[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(_version(pin)), f"{pin} is outside {wanted}"
        assert str(pin.marker) == str(wanted.marker), f"{pin} and {wanted} are for different platforms"


def test_sets_that_share_a_package_pin_one_version() -> None:
    seen: dict[str, str] = {}
    for file in SETS:
        for name, pin in _pins(file).items():
            assert seen.setdefault(name, _version(pin)) == _version(pin)


def test_conda_environment_agrees() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    [pip] = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    listed = {canonicalize_name(Requirement(line).name): Requirement(line) for line in pip if line != "-e ."}
    wanted = {
        canonicalize_name(Requirement(t).name) for t in PROJECT["dependencies"] + SETS["requirements-lab.txt"]
    }
    assert set(listed) == wanted
    pins = _pins("requirements-lab.txt")
    assert {name: _version(pin) for name, pin in listed.items()} == {
        name: _version(pins[name]) for name in wanted
    }


def _pythons() -> list[str]:
    """The Pythons that pyproject.toml names, each by its first release."""
    words = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if " :: Python :: 3." in line]
    return [f"{word}.0" for word in words]


def test_every_pin_installs_on_the_oldest_and_the_newest_python() -> None:
    """tests/data/requires_python.csv holds what each pin's own Requires-Python is, also of those that this
    platform lacks. `pip install --dry-run --no-deps --report FILE` tells it of a new pin.
    """
    with (ROOT / "tests" / "data" / "requires_python.csv").open(newline="") as file:
        known = {(row["name"], row["version"]): row["requires_python"] for row in csv.DictReader(file)}
    pins = {(name, _version(pin)) for file in SETS for name, pin in _pins(file).items()}
    assert set(known) == pins
    pythons = _pythons()
    assert SpecifierSet(PROJECT["requires-python"]).contains(pythons[0])
    for (name, version), wanted in known.items():
        for python in pythons:
            assert SpecifierSet(wanted).contains(python), f"{name} {version} wants Python {wanted}"
        with contextlib.suppress(metadata.PackageNotFoundError):
            found = metadata.distribution(name)
            if found.version == version:
                assert SpecifierSet(found.metadata.get("Requires-Python") or "") == SpecifierSet(wanted), name


def test_readme_conda_and_the_bootstrap_name_the_same_pythons(setup: ModuleType) -> None:
    oldest, newest = (python.removesuffix(".0") for python in (_pythons()[0], _pythons()[-1]))
    assert f"Python {oldest} to {newest}" in (ROOT / "README.md").read_text()
    assert ".".join(map(str, setup.OLDEST)) == oldest
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    [python] = [entry for entry in environment["dependencies"] if str(entry).startswith("python=")]
    assert f"{python.removeprefix('python=')}.0" in _pythons()


def test_gpu_packages_are_only_for_platforms_that_have_them() -> None:
    for text in _lines("gpu"):
        marker = Requirement(text).marker
        assert marker is not None
        for system, machine, has in (
            ("linux", "x86_64", True),
            ("win32", "AMD64", True),
            ("darwin", "arm64", False),
            ("linux", "aarch64", False),
        ):
            assert marker.evaluate({"sys_platform": system, "platform_machine": machine}) is has


def test_the_lean_set_brings_no_gpu_package_or_compiler() -> None:
    assert not [
        name
        for name in _pins("requirements.txt")
        if name.startswith(("cupy", "torch", "cuda", "nvidia-cuda"))
    ]


# --- scripts/setup.py ---


@pytest.fixture
def setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rooflab_setup", ROOT / "scripts" / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _sentence(capsys: pytest.CaptureFixture[str], call: Any, *arguments: Any) -> str:
    with pytest.raises(SystemExit) as stopped:
        call(*arguments)
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("rooflab: ") and said.count("\n") == 1
    return said


def test_the_bootstrap_wants_what_the_sets_ask_for(setup: ModuleType) -> None:
    for name in ("lab", "cluster", "test", "gpu"):
        lines = PROJECT["dependencies"] + _lines(name)
        here = {Requirement(line).name for line in lines if ";" not in line or setup.has_cuda_packages()}
        assert set(setup.wanted(name)) == here


def test_an_old_python_is_refused(setup: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Python 3.9 and rooflab needs 3.11" in _sentence(capsys, setup.refuse_old, (3, 9, 2), "python3")
    setup.refuse_old((3, 11, 0), "python3")


def test_a_missing_venv_module_is_one_sentence(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "VENV", str(tmp_path / ".venv"))
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ensurepip" else real(name))
    assert "python3-venv" in _sentence(capsys, setup.install, "lean")


def test_a_full_disk_is_one_sentence(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "VENV", str(tmp_path / ".venv"))
    usage = shutil.disk_usage(tmp_path)._replace(free=100_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert "0.1 GB are free" in _sentence(capsys, setup.install, "lean")
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("full", ["the checkout", "the temporary folder"])
def test_tests_on_a_full_disk_are_refused_in_a_sentence(
    setup: ModuleType,
    full: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"the checkout": setup.ROOT, "the temporary folder": str(tmp_path)}
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    real, little = shutil.disk_usage(tmp_path), 2_000_000
    monkeypatch.setattr(
        shutil,
        "disk_usage",
        lambda path: real._replace(free=little if str(path) == places[full] else 10**10),
    )
    monkeypatch.setattr(setup, "check_ready", lambda python, set_name: None)
    said = _sentence(capsys, setup.main, ["test", sys.executable])
    assert f"under {places[full]} and 0.0 GB are free: make room there" in said
    setup.main(["lean", sys.executable])  # what a report writes it says itself


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="another system's users")
def test_a_checkout_of_another_user_is_one_sentence(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "ROOT", str(tmp_path))
    monkeypatch.setattr(setup, "VENV", str(tmp_path / ".venv"))
    monkeypatch.setattr(setup, "fingerprint", lambda: "now")
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(tmp_path))  # root may write anywhere
    said = _sentence(capsys, setup.install, "lean")
    assert f"may not write into {tmp_path}: work in a copy" in said
    assert said == _sentence(capsys, setup.check_room)
    assert not (tmp_path / ".venv").exists()


def test_a_disk_that_fills_while_pip_runs_is_one_sentence(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pip = tmp_path / ".venv" / "bin" / "python"
    pip.parent.mkdir(parents=True)
    pip.write_text("#!/bin/sh\necho 'ERROR: Could not install: [Errno 28] No space left on device'\nexit 1\n")
    pip.chmod(0o755)
    monkeypatch.setattr(setup, "VENV", str(tmp_path / ".venv"))
    said = _sentence(capsys, setup.install, "lean")
    assert "is full" in said
    pip.write_text("#!/bin/sh\necho 'ERROR: No matching distribution found for x'\nexit 1\n")
    assert "No matching distribution" in _sentence(capsys, setup.install, "lean")
    nested = ("  WARNING: Retrying after NewConnectionError", "  ERROR: No matching distribution for x")
    pip.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in nested) + "exit 1\n")
    assert "reaches no package index" in _sentence(capsys, setup.install, "lean")
    assert not list((tmp_path / ".venv").glob("*.stamp"))


def test_an_up_to_date_environment_is_left_alone_and_a_changed_list_is_not(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = tmp_path / ".venv" / "bin" / "python"
    pip.parent.mkdir(parents=True)
    pip.write_text(f"#!/bin/sh\necho $2 $3 >> {tmp_path / 'calls'}\n")
    pip.chmod(0o755)
    monkeypatch.setattr(setup, "VENV", str(tmp_path / ".venv"))
    once = "pip install\npip config\nuv pip\n"
    setup.install("lean")
    setup.install("lean")
    assert (tmp_path / "calls").read_text() == once
    monkeypatch.setattr(setup, "fingerprint", lambda: "other")
    setup.install("lean")
    assert (tmp_path / "calls").read_text() == 2 * once


def test_where_uv_fails_pip_installs_and_uv_asks_where_pip_does(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, calls = tmp_path / ".venv" / "bin" / "python", tmp_path / "calls"
    python.parent.mkdir(parents=True)
    settings = "global.index-url='https://there/simple'", ":env:.find-links='/a /b'", "global.timeout='9'"
    said = "".join(f'echo "{line}"\n' for line in settings)
    python.write_text(
        f"#!/bin/sh\necho $@ >> {calls}\n[ $2 = uv ] && exit 1\nif [ $3 = config ]; then\n{said}fi\nexit 0\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(setup, "VENV", str(tmp_path / ".venv"))
    setup.install("lean")
    got_uv, _, by_uv, by_pip = calls.read_text().splitlines()
    assert got_uv.endswith(setup.UV) and "--index-url https://there/simple --find-links /a" in by_uv
    assert "timeout" not in by_uv and by_pip.startswith("-m pip install")
    assert by_pip.endswith(f" -r {setup.requirements('lean')} -e {setup.ROOT}")
    assert list((tmp_path / ".venv").glob("*.stamp"))


def test_a_ready_environment_is_taken_or_told_what_it_lacks(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    setup.check_ready(sys.executable, "lean")
    real = setup.wanted
    monkeypatch.setattr(setup, "wanted", lambda name: [*real(name), "no-such-package-here"])
    said = _sentence(capsys, setup.check_ready, sys.executable, "test")
    assert "lacks no-such-package-here" in said and "requirements-test.txt" in said
    assert "does not run as a Python" in _sentence(capsys, setup.check_ready, "/nowhere/python", "lean")


def test_the_set_follows_the_driver(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "has_cuda_packages", lambda: True)
    assert setup.choose_set("") == "lean" and setup.choose_set("580.65.06") == "gpu"
    assert setup.choose_set("550.54") == "lean"
    said = capsys.readouterr().err
    assert "driver 550.54 is older than R580" in said and "cupy-cuda12x" in said
    monkeypatch.setattr(setup, "has_cuda_packages", lambda: False)
    assert setup.choose_set("580.65.06") == "lean"


# --- the Makefile, CI and README ---


def _make(*arguments: str, **environment: str) -> str:
    if shutil.which("make") is None:
        pytest.skip("needs make")
    done = subprocess.run(
        ["make", "-n", "--no-print-directory", *arguments],
        cwd=ROOT,
        env={**os.environ, "MAKEFLAGS": "", **environment},  # not the PYTHON=... of a make around the tests
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("target", ["report", "style", "check", "test", "lab"])
def test_make_takes_a_python_in_a_path_with_spaces(target: str) -> None:
    python = "/a b/python"
    lines = [line for line in _make(target, f"PYTHON={python}").splitlines() if python in line]
    assert lines and all(shlex.split(line)[0] == python for line in lines), lines


def test_make_targets_do_what_they_say() -> None:
    report, style, test = _make("report"), _make("style"), _make("test")
    assert "scripts/setup.py auto" in report and report.rstrip().endswith("-m rooflab report")
    for part in ("setup.py test", "ruff check", "ruff format", "-m mypy"):
        assert part in style  # tests/test_style.py makes it
    for part in ("setup.py test", *check.NBVAL):
        assert part in test
    last = test.rstrip().splitlines()[-1]
    assert "-m pytest" in last and last.endswith("tests notebooks"), (
        "pytest's closing line would not be the last"
    )
    assert '".venv/bin/python" -m rooflab' in report
    named = _make("report", PYTHON="/opt/python")
    assert '"/opt/python" -m rooflab report' in named and ".venv" not in named


def test_ci_calls_the_readmes_test_command_and_forgives_no_skip() -> None:
    text = (ROOT / ".ci" / "run").read_text()
    assert text.rstrip().splitlines()[-1] == "exec make test"
    assert "export ROOFLAB_REQUIRE_ALL=1" in text
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert subprocess.run(["sh", "-n", str(ROOT / ".ci" / "run")]).returncode == 0


def _commands_of(page: str) -> list[list[str]]:
    """The lines of a page's blocks of shell commands."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [
        shlex.split(line, comments=True) for block in blocks for line in block.splitlines() if line.strip()
    ]


PAGES = ("README.md", "docs/usage.md", "CONTRIBUTING.md")


def test_the_pages_name_commands_that_are_there() -> None:
    commands = {page: _commands_of(page) for page in PAGES}
    for page in ("README.md", "CONTRIBUTING.md"):
        assert ["make", "test"] in commands[page] or "`make test`" in (ROOT / page).read_text()
    assert [["make", name] for name in ("report", "lab", "test")] == [
        words for words in commands["README.md"] if words[0] == "make"
    ]
    called = []
    for page, words in ((name, words) for name in PAGES for words in commands[name]):
        if words[0] == "make":
            _make(*words[1:])
        elif words[:4] == ["python", "-m", "pip", "install"]:
            assert words[4:] == ["-r", "requirements.txt", "-e", "."]
        else:
            start = 3 if words[:3] == ["python", "-m", "rooflab"] else 1
            assert start == 3 or words[0] == ".venv/bin/rooflab", f"{page} has an untested command: {words}"
            asked = cli.parser().parse_args(words[start:])
            called.append(words[start])
            if words[start] == "batch":
                assert (ROOT / asked.file).is_file()
    assert {"doctor", "run", "batch", "record", "tune", "validate", "compare", "report"} <= set(called)


def test_the_version_has_one_home() -> None:
    """lib/rooflab/__init__.py: pyproject.toml reads it there, and what cites a release names it."""
    assert PROJECT["dynamic"] == ["version"] and "version" not in PROJECT
    assert SETTINGS["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "rooflab.__version__"}
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == __version__ and cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "type"} <= set(cited)
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None and newest[1] == __version__


def test_what_is_left_to_ci_runs_there(request, monkeypatch):
    monkeypatch.setattr(request.node, "own_markers", [pytest.mark.ci.mark])
    monkeypatch.setattr(shares, "CI", False)
    assert shares.beyond([request.node]) == [request.node]
    monkeypatch.setattr(shares, "CI", True)
    assert shares.beyond([request.node]) == []
    assert "ROOFLAB_REQUIRE_ALL=1" in (ROOT / ".ci" / "run").read_text()


def test_a_skip_for_want_of_a_tool_fails_where_all_is_required(tmp_path: Path) -> None:
    for name in ("conftest.py", "shares.py", "warm_kernels.py"):
        (tmp_path / name).write_text((ROOT / "tests" / name).read_text())
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.skipif(True, reason='needs Chromium')\ndef test_a(): pass\n"
        "@pytest.mark.skipif(True, reason='needs a GPU')\ndef test_b(): pass\n"
        "def test_c(): pytest.skip('needs make')\n"
    )
    (tmp_path / "test_module.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        str(tmp_path),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "ROOFLAB_REQUIRE_ALL"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    lenient = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert lenient.returncode == 0 and "4 skipped" in lenient.stdout
    strict = subprocess.run(
        command, cwd=tmp_path, env={**environment, "ROOFLAB_REQUIRE_ALL": "1"}, capture_output=True, text=True
    )
    assert strict.returncode != 0 and "no_such_module" in strict.stdout
    tests_alone = subprocess.run(
        [*command, "--ignore", str(tmp_path / "test_module.py")],
        cwd=tmp_path,
        env={**environment, "ROOFLAB_REQUIRE_ALL": "1"},
        capture_output=True,
        text=True,
    )
    assert "1 failed, 1 skipped, 1 error" in tests_alone.stdout and "needs Chromium" in tests_alone.stdout


def test_every_file_of_the_package_is_installed_with_it():
    package = paths.ROOT / "lib" / "rooflab"
    patterns = SETTINGS["tool"]["setuptools"]["package-data"]["rooflab"]
    listed = {path for pattern in patterns for path in package.glob(pattern)}
    held = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path for path in held if path.suffix != ".py"} - listed == set()
