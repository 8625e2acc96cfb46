"""Replay needs nothing but the lean set, and gives what the committed notebooks show."""

import json
import os
import subprocess
import sys
from pathlib import Path

from rooflab import paths
from rooflab.book import normal

# In every Python started with this folder on its path, kernels too, these packages are as if not installed.
_BLOCKER = """
import importlib.machinery
_HIDDEN = {"cupy", "cupyx", "torch", "cuda", "triton", "nvidia", "numba", "pycuda", "flashinfer"}
_real = importlib.machinery.PathFinder.find_spec
def _find(name, path=None, target=None):
    return None if name.partition(".")[0] in _HIDDEN else _real(name, path, target)
importlib.machinery.PathFinder.find_spec = _find
"""
_REPLAY = """
import importlib.util, json, shutil, sys
from pathlib import Path
hidden = [m for m in ("cupy", "torch", "cuda", "triton") if importlib.util.find_spec(m) is None]
tools = [t for t in ("nvcc", "cc", "c++", "g++", "clang", "ncu", "nsys", "nvidia-smi") if shutil.which(t)]
from rooflab.book import check
outcomes = check.replay(output=Path(sys.argv[1]), say=lambda line: print(line, file=sys.stderr))
loaded = sorted({name.partition(".")[0] for name in sys.modules} & {"cupy", "torch", "cuda", "triton"})
print(json.dumps({"hidden": hidden, "tools": tools, "loaded": loaded,
                  "endings": {o.job.lesson.stem: o.explanation() if not o.ok else "ok" for o in outcomes}}))
"""


def test_replay_without_gpu_packages_or_compilers_gives_what_is_committed(tmp_path: Path) -> None:
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / "sitecustomize.py").write_text(_BLOCKER)
    (tmp_path / "empty").mkdir()
    library = Path(normal.__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", _REPLAY, str(tmp_path / "out")],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("ROOFLAB_")},
            "PYTHONPATH": os.pathsep.join([str(tmp_path / "block"), str(library)]),
            "PATH": str(tmp_path / "empty"),
            "CUDA_VISIBLE_DEVICES": "",
        },
        capture_output=True,
        text=True,
        timeout=1200,  # all lessons, on two cores that other tests use too
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["hidden"] == ["cupy", "torch", "cuda", "triton"] and said["tools"] == []
    assert said["loaded"] == []
    committed = sorted(paths.NOTEBOOKS.glob("*.ipynb"))
    assert len(committed) >= 2
    assert said["endings"] == {path.stem: "ok" for path in committed}
    for path in committed:
        assert normal.same(tmp_path / "out" / path.name, path), f"{path.name} is not what its replay gives"
