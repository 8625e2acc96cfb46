"""Open a lab: live on this machine's GPU, or over a recording."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path

from rooflab import paths
from rooflab.errors import MissingTool, UsageError
from rooflab.hardware import device as devices
from rooflab.lab.progress import place, write
from rooflab.lab.session import Lab
from rooflab.records import seal
from rooflab.records.store import Store, published_devices

MODES = ("auto", "live", "replay")
EFFORTS = ("full", "quick")
live: type[Lab] = Lab  # the class of live labs: a rehearsal puts its own here


def open(
    mode: str = "auto", device: str = "h200", effort: str = "full", gpus: int = 1, study: str = ""
) -> Lab:
    """Open the lab. `mode`: an explicit "live" or "replay" wins, then $ROOFLAB_MODE, then whether a GPU is
    found.

    `device` names a recording (a folder of data/ or a published device) or is the path of one; live, the
    machine's own GPU decides and results go to $ROOFLAB_STORE (default build/data). `effort`: "full" or
    "quick"; where it is "full", $ROOFLAB_EFFORT is used if set. It says what is measured: a replay shows what
    was recorded, so it takes the recording's own. `gpus`: of one host, that a lesson measures on together;
    for more than one the recording is the device's of so many, h200-x2, and where fewer are found it is
    replayed.
    """
    if "IPython" in sys.modules:
        from rooflab.lab import notebook_shell

        notebook_shell.answer_missing()
    if mode not in MODES:
        raise UsageError(f"MODE is one of {', '.join(MODES)}, not {mode!r}.")
    if mode == "auto":
        mode = os.environ.get("ROOFLAB_MODE", "auto")
        if mode not in MODES:
            raise UsageError(f"ROOFLAB_MODE is one of {', '.join(MODES)}, not {mode!r}.")
    if mode == "auto":
        mode = "live" if devices.has_gpu() else "replay"
    effort = os.environ.get("ROOFLAB_EFFORT", effort) if effort == "full" else effort
    if effort not in EFFORTS:
        raise UsageError(f"EFFORT is one of {', '.join(EFFORTS)}, not {effort!r}.")
    if mode == "live":
        facts = devices.probe()
        if facts is None and devices.has_gpu():
            raise MissingTool(
                "MODE=live asks the GPU for its name and clocks through nvidia-ml-py, which is not installed "
                "or gets no answer: pip install -r requirements.txt."
            )
        if facts is None:
            raise MissingTool("MODE=live needs an NVIDIA GPU with a working driver; MODE=replay needs none.")
        root = Path(os.environ.get("ROOFLAB_STORE") or paths.BUILD / "data")
        slug = devices.slug(facts["gpu"])
        here = devices.count() if gpus > 1 else 1
        if here >= gpus:
            slug += f"-x{gpus}" * (gpus > 1)
            lab = live("live", slug, effort, Store(root, slug), sink())
            lab.progress.where = place()
            atexit.register(lab.close)
            return lab
        sink()(f"this lesson measures on {gpus} GPUs of one host, and here is {here}: it is replayed")
    store = opened(_several(device, gpus, study) if gpus > 1 else device)
    seal.require(store.folder)
    return Lab("replay", store.device, store.effort or effort, store)


def _several(device: str, gpus: int, study: str) -> str:
    """The recording of so many GPUs of a device; where it has none, one of data/ that holds `study`."""
    wanted = f"{device}-x{gpus}"
    own = sorted((name for name in recordings() if name.endswith(f"-x{gpus}")), reverse=True)
    for name in (wanted, *own):
        folder = paths.DATA / name if name in own else Path(name)
        if (folder / "runs.csv").is_file() and (not study or (folder / f"{study}.csv").is_file()):
            if name != wanted:
                sink()(f"there is no recording {wanted} of {study or 'this'}: {name} is replayed")
            return name
    raise UsageError(f"There is no recording of {gpus} GPUs that holds {study}: record it on such a host.")


def opened(device: str) -> Store:
    """The recording that `device`, a name or a path, means."""
    path = Path(device)
    if path.is_dir() and (path / "runs.csv").is_file():
        return Store(path.resolve().parent, path.resolve().name)
    if device not in recordings() and device not in published_devices(paths.DATA):
        known = ", ".join(recordings()) or "none"
        raise UsageError(
            f"There is no recording {device!r}: name one of data/'s ({known}), or a folder that holds a "
            "runs.csv."
        )
    return Store(paths.DATA, device)


def recordings(root: Path | None = None) -> list[str]:
    """Names of the devices recorded by this course in data/ (published figures not among them)."""
    folders = sorted((root or paths.DATA).glob("*/runs.csv"))
    return [path.parent.name for path in folders if path.parent.name != "published"]


def sink() -> Callable[[str], None]:
    """Where lines of progress go: the file that a runner watches, or standard error."""
    path = os.environ.get("ROOFLAB_PROGRESS")

    def say(line: str) -> None:
        if path:
            with Path(path).open("a") as file:
                file.write(line + "\n")
        elif "ipykernel" not in sys.modules:
            write(line, sys.stderr)

    return say
