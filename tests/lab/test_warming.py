"""Libraries' first calls, made ahead and several at a time."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from rooflab import studies
from rooflab.hardware import device
from rooflab.lab import warming
from rooflab.lab.progress import Progress
from rooflab.studies import attention
from rooflab.studies.estimates import FIRST_CALLS, Estimate


@pytest.fixture
def gpu(monkeypatch):
    """A GPU with memory for three processes, which are threads here."""
    free, kept = 3 * warming._MEMORY_BYTES, [5, 7]  # and what two libraries keep without using it
    runtime = SimpleNamespace(memGetInfo=lambda: (free - sum(kept), free))
    unused = SimpleNamespace(free_all_blocks=lambda: kept.remove(5))
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime), get_default_memory_pool=lambda: unused)
    torch = SimpleNamespace(cuda=SimpleNamespace(empty_cache=lambda: kept.remove(7)))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "torch", torch)
    pools = []

    def pool(workers, mp_context):
        pools.append(workers)
        return ThreadPoolExecutor(workers)

    monkeypatch.setattr(warming, "ProcessPoolExecutor", pool)
    monkeypatch.setattr(warming, "processes", lambda: 8)
    return pools


def first_cases():
    found = Estimate(device.get("h200"))
    found.add(attention.Attention(), attention.Attention().cases())
    return found.first


def test_every_first_call_is_made_once_and_one_that_fails_stops_no_other(gpu, monkeypatch):
    wanted, launched = first_cases(), []

    def contestants(self, cases):
        (case,) = cases
        if len(launched) == 1:
            launched.append("failed")
            raise RuntimeError("no such kernel")
        return [SimpleNamespace(launch=lambda copy: launched.append(case.id), outputs=[[np.zeros(1)]])]

    monkeypatch.setattr(attention.Attention, "contestants", contestants)
    warming.warm_ahead(wanted, Progress(lambda line: None))
    assert gpu == [3], "as many processes as the GPU's memory holds"
    assert len(launched) == len(wanted) > 5 and launched.count("failed") == 1
    assert set(launched) <= {"failed", *(case.id for _, case in wanted)} and len(set(launched)) == len(wanted)


def test_the_first_case_of_each_call_is_listed_and_its_seconds_are_shared():
    wanted = [case for _, case in first_cases()]
    calls = {(case.impl, *(getattr(case, name) for name in FIRST_CALLS[case.impl][1])) for case in wanted}
    assert len(calls) == len(wanted) and {case.impl for case in wanted} >= {"flash_attn_4"}
    alone, shared = Estimate(device.get("h200")), Estimate(device.get("h200"), processes=4)
    for each in (alone, shared):
        each.add(studies.get("attention"), attention.Attention().cases())
    assert sum(shared.libraries.values()) == pytest.approx(sum(alone.libraries.values()) / 4)


def test_one_first_call_starts_no_process(gpu):
    warming.warm_ahead(first_cases()[:1], Progress(lambda line: None))
    assert gpu == []


def test_libraries_keep_what_they_compile_unless_a_user_says_otherwise(monkeypatch):
    name = "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED"
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv(name, "0")
    warming.keep_compiled()
    assert warming.os.environ[name] == "0"
    monkeypatch.delenv(name)
    warming.keep_compiled()
    assert warming.os.environ[name] == "1"


def test_processes_keep_bytecode_in_the_cache_where_none_may_lie_beside_sources(monkeypatch, tmp_path):
    code = "import sys; print(sys.dont_write_bytecode, sys.pycache_prefix)"
    monkeypatch.setenv("ROOFLAB_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "")  # so that what is set below is undone
    monkeypatch.delenv("PYTHONPYCACHEPREFIX")
    warming.keep_compiled()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", str(tmp_path / "bytecode")]


def test_where_python_writes_bytecode_nothing_changes(monkeypatch):
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "kept")
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    warming.keep_compiled()
    assert warming.os.environ["PYTHONPYCACHEPREFIX"] == "kept"
