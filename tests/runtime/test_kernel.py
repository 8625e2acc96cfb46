"""Compiling without a GPU: every rung for every architecture it declares, the report, the cache's key."""

import re
import sys

import pytest
from fake_array import FakeArray
from rooflab import ops, studies
from rooflab.errors import LaunchError, MissingTool, UsageError
from rooflab.ops import faults, probes, prompt_products, stream
from rooflab.paths import KERNELS
from rooflab.runtime import nvrtc
from rooflab.studies import static
from rooflab.view import display

# Shared memory that one block may have, in bytes, by compute capability (CUDA C++ programming guide, table of
# technical specifications): what a rung's static shared memory must stay within.
SHARED_LIMIT = {"75": 64, "80": 163, "86": 99, "89": 99, "90": 227, "90a": 227, "100": 227, "120": 99}

PTX = KERNELS / "common" / "ptx"
LADDERS = {name: ladder for module in ops.modules() for name, ladder in module.LADDERS.items()}
EVERY = [
    *(rung for ladder in LADDERS.values() for rung in ladder),
    *probes.LADDER,
    probes.TOUCH_DEPENDENT,
    *(probes.cheat_rung(name) for name in probes.CHEATS),
    *faults.FAULTS.values(),
]
DOUBLE = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }'


@pytest.fixture(scope="module")
def reports():
    """Registers, spills and shared memory by rung and architecture, of the sources as they are: recorded
    ones (test_static.py compiles a share of them again), and those of rungs that no record knows.
    """
    study, rows = studies.get("static"), static.read().set_index("case")
    found = {}
    for case in study.cases():
        rung, macros, _ = study.rung(case)
        arch = case.options.removeprefix("arch=sm_")
        fresh = case.id in rows.index and not study.changed(case, rows["identity"][case.id], arch)
        report = rows.loc[case.id] if fresh else rung.cubin(arch, macros).resources[rung.entry]
        found[rung.path, rung.entry, arch] = report.registers, report.spill_bytes, report.shared_bytes
    for rung in faults.FAULTS.values():
        for arch in rung.archs:
            report = rung.cubin(arch).resources[rung.entry]
            found[rung.path, rung.entry, arch] = report.registers, report.spill_bytes, report.shared_bytes
    return found


@pytest.mark.parametrize("arch", (*ops.PORTABLE, "90a"))
def test_every_rung_compiles_unspilled_within_its_shared_memory(arch, reports):
    for rung in EVERY:
        if arch not in rung.archs:
            continue
        registers, spilled, shared = reports[rung.path, rung.entry, arch]
        assert spilled == 0 and registers <= 255, rung
        assert shared <= 48 * 1024, rung
        assert shared + rung.dynamic_shared <= SHARED_LIMIT[arch] * 1024, rung


def test_every_operator_has_a_rung_for_turing_and_one_for_every_later_chip():
    for name, own in LADDERS.items():
        ladder = [*own, *LADDERS.get(prompt_products.ELSEWHERE.get(name, ""), ())]
        assert any("75" in rung.archs for rung in ladder)
        assert any(set(ops.PORTABLE[1:]) <= set(rung.archs) for rung in ladder)


def test_the_rung_list_and_the_folder_agree():
    listed = {rung.path for rung in EVERY}
    on_disk = {path for path in KERNELS.glob("*/*.cu")}
    assert listed == on_disk


SECTION = re.compile(r"^// Macros   .*\n(?://          .*\n)*", re.MULTILINE)
MACRO = re.compile(r"^// (?:Macros  |        ) ([A-Z][A-Z0-9_]*) = (-?\d+): \w", re.MULTILINE)


@pytest.mark.parametrize("rung", EVERY, ids=lambda rung: f"{rung.operator}/{rung.name}/{rung.entry}")
def test_a_rung_s_file_explains_the_macros_that_its_declaration_sets(rung):
    """The declaration alone gives values; the file or a header of it says name, default and meaning."""
    text = rung.path.read_text()
    assert f" {rung.entry}(" in text or f"    {rung.entry}(" in text
    sections = SECTION.findall("\n".join([text, *nvrtc.headers_of(text).values()]))
    explained = [pair for section in sections for pair in MACRO.findall(section)]
    assert len(explained) == len(dict(explained)), "a macro is explained twice"
    declared = {**rung.defines, **({"DEPENDENT": 0} if rung is probes.TOUCH_DEPENDENT else {})}
    assert {name: int(value) for name, value in explained} == declared


def test_no_source_gives_a_macro_a_default_of_its_own():
    """The declaration in rooflab.ops is the one place; a second one could differ."""
    assert not [path for path in KERNELS.rglob("*.cu*") if "#ifndef" in path.read_text()]


@pytest.mark.parametrize("operator", LADDERS)
def test_a_header_says_purpose_shapes_bytes_and_launch(operator):
    for number, rung in enumerate(LADDERS[operator]):
        head = rung.path.read_text().split("#", 1)[0]
        assert head.startswith(f"// {operator} {rung.name.split('_')[0]}, ")
        for word in ("Purpose", "Shapes", "Bytes", "Launch"):
            assert f"// {word}" in head, (rung.path, word)
        found = re.findall(r"^// (Below|Changed|Branch) ", head, re.MULTILINE)
        assert found == [_step(LADDERS[operator][:number], rung)], rung.path


STEP = 120  # lines at most that a rung changes, but where it begins a branch


def _step(before, rung):
    """What a header calls its rung's step."""
    if not before:
        return "Below"
    below = ops.rung_of(before, rung.changes, rung.changes) if rung.changes else before[-1]
    lines = [line for line in display.changes(below, rung) if line[0] in "+-"]
    return "Branch" if len(lines) > STEP else "Changed"


def test_only_headers_of_ptx_hold_inline_assembly():
    for path in KERNELS.rglob("*.cu*"):
        if PTX not in path.parents:
            assert "asm" not in path.read_text(), path


def test_a_header_of_ptx_is_short():
    for path in PTX.rglob("*.cuh"):
        assert path.read_text().count("\n") <= 350, path


def test_a_source_includes_the_headers_whose_instructions_it_names():
    """And no other header of PTX; those of wgmma's products bring wgmma.cuh along."""
    homes = {"TensorMap": "tma.cuh", "wgmma_": "wgmma/wide.cuh"}  # rungs make the names of some products
    for header in PTX.rglob("*.cuh"):
        names = re.findall(r"inline [\w ]+?\*? ?(\w+)\(", header.read_text())
        homes |= dict.fromkeys(names, header.relative_to(PTX).as_posix())
    for path in KERNELS.rglob("*.cu*"):
        if PTX in path.parents:
            continue
        text = re.sub(r"//.*", "", path.read_text())
        named = re.findall(r"\b(\w+)(?=\(|<[^;(){}]*>\()|\b(TensorMap)\b|\b(wgmma_)##", text)
        wanted = {homes[name] for found in named for name in found if name in homes}
        if any(name.startswith("wgmma/") for name in wanted):
            wanted.discard("wgmma.cuh")
        assert set(re.findall(r'#include "common/ptx/(.*)"', text)) == wanted, path


def test_a_cubin_reports_registers_spills_and_code():
    cubin = nvrtc.compile_source(DOUBLE, arch="80")
    report = cubin.resources["twice"]
    assert 0 < report.registers < 20 and report.spill_bytes == 0
    assert any(line.startswith("FADD") or line.startswith("FMUL") for line in nvrtc.sass(cubin, "twice"))
    with pytest.raises(UsageError, match="no kernel thrice; it has twice"):
        cubin.machine_code("thrice")


SPILLS = """
extern "C" __global__ void __launch_bounds__(1024) heavy(float* x) {
    float v[120];
    for (int i = 0; i < 120; ++i) v[i] = x[i * 1024 + threadIdx.x];
    for (int r = 0; r < 50; ++r)
#pragma unroll
        for (int i = 0; i < 120; ++i) v[i] = v[i] * v[(i * 7 + 1) % 120] + 1.0f;
    for (int i = 0; i < 120; ++i) x[i * 1024 + threadIdx.x] = v[i];
}
"""


def test_spills_are_seen():
    assert nvrtc.compile_source(SPILLS, arch="80").resources["heavy"].spill_bytes > 0


def test_the_same_source_gives_the_same_cubin_and_the_cache_returns_it(monkeypatch, tmp_path):
    monkeypatch.setenv("ROOFLAB_CACHE", str(tmp_path / "a"))
    first = nvrtc.compile_source(DOUBLE, arch="90")
    cached = nvrtc.compile_source(DOUBLE, arch="90")
    monkeypatch.setenv("ROOFLAB_CACHE", str(tmp_path / "b"))
    again = nvrtc.compile_source(DOUBLE, arch="90")
    assert first.image == cached.image == again.image
    assert first.resources == cached.resources == again.resources
    assert len(list((tmp_path / "a").glob("*.cubin"))) == 1


def test_a_changed_header_is_not_served_from_the_cache(monkeypatch, tmp_path):
    (tmp_path / "common").mkdir()
    header = tmp_path / "common" / "factor.cuh"
    monkeypatch.setattr(nvrtc, "KERNELS", tmp_path)
    monkeypatch.setenv("ROOFLAB_CACHE", str(tmp_path / "cache"))
    source = '#include "common/factor.cuh"\nextern "C" __global__ void f(float* x) { x[0] *= FACTOR; }'
    codes = []
    for factor in ("3.0f", "5.0f"):
        header.write_text(f"#pragma once\n#define FACTOR {factor}\n")
        codes.append(nvrtc.compile_source(source, arch="80").machine_code("f"))
    assert codes[0] != codes[1]


def test_a_comment_changes_the_source_but_not_the_machine_code():
    plain = nvrtc.compile_source(DOUBLE, arch="90")
    commented = nvrtc.compile_source(f"// a remark\n{DOUBLE}  // another", arch="90")
    assert plain.machine_code("twice") == commented.machine_code("twice")
    changed = nvrtc.compile_source(DOUBLE.replace("2.0f", "3.0f"), arch="90")
    assert plain.machine_code("twice") != changed.machine_code("twice")


def test_a_source_that_does_not_compile_says_where():
    with pytest.raises(UsageError, match=r"broken.cu does not compile for sm_80:\n.*broken.cu\(1\): error"):
        nvrtc.compile_source("__global__ void f() { oops }", arch="80", name="broken.cu")
    with pytest.raises(UsageError, match='"common/absent.cuh" is included'):
        nvrtc.compile_source('#include "common/absent.cuh"\n', arch="80")


def test_options_are_checked_by_name():
    rung = stream.LADDERS["read"][2]
    assert rung.with_defaults({"UNROLL": 2}) == {"THREADS": 256, "UNROLL": 2}
    with pytest.raises(UsageError, match="read/3_in_flight has no option COLOUR; it has THREADS, UNROLL"):
        rung.with_defaults({"COLOUR": 1})
    with pytest.raises(UsageError, match="read has no rung '9_magic'; it has 1_scalar, 2_vector"):
        ops.rung_of(stream.LADDERS["read"], "9_magic", "1_scalar")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"x": FakeArray((1022,))}, "refuses n = 1022: take a multiple of 4, or rung 1_scalar"),
        ({"x": FakeArray(address=4100)}, "x must start at a multiple of 16 bytes"),
        ({"x": FakeArray(dtype="float64")}, "x must hold float32, not float64"),
        ({"x": FakeArray(contiguous=False)}, "x must be contiguous"),
        ({"y": FakeArray((1020,))}, "y must hold 1024 elements, not 1020"),
        ({"out": [1.0]}, "out must be a CuPy array or a torch CUDA tensor, not list"),
        ({"x": FakeArray((0,))}, "between 1 and 2.40 elements, not 0"),
    ],
)
def test_a_launcher_refuses_in_a_sentence(arguments, says):
    given = {"x": FakeArray(), "y": FakeArray(), "out": FakeArray(), **arguments}
    with pytest.raises(LaunchError, match=says):
        stream.saxpy(2.0, given["x"], given["y"], out=given["out"], rung="2_vector")


def test_the_launch_rule_covers_the_data():
    for ladder in stream.LADDERS.values():
        for rung in ladder:
            macros = rung.with_defaults({})
            tile = macros["THREADS"] * macros.get("UNROLL", 1) * rung.words
            for n in (1, tile - 1, tile, tile + 1, 10 * tile + 3):
                blocks = stream.blocks_of(rung, n, macros, blocks=None if rung.grid == "cover" else 7)
                if rung.grid == "cover":
                    assert (blocks - 1) * tile < n <= blocks * tile
                else:
                    assert 1 <= blocks <= 7
    with pytest.raises(UsageError, match="takes no number of blocks"):
        stream.blocks_of(stream.LADDERS["copy"][0], 64, {"THREADS": 256}, blocks=3)


def test_without_pyelftools_a_sentence_says_what_to_install(monkeypatch):
    cubin = nvrtc.compile_source(DOUBLE, arch="80")
    nvrtc._instructions.cache_clear()
    monkeypatch.setitem(sys.modules, "elftools.elf.elffile", None)
    with pytest.raises(MissingTool, match="pyelftools is not installed.*requirements-gpu"):
        cubin.machine_code("twice")
