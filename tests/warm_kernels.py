"""Jupyter kernels forked from one process that has imported what every lesson imports.

Under nbval each lesson has a kernel of its own, and most of a kernel's time is spent on the same imports. The
forked ones are as separate as before: nothing that one lesson defines is seen by another.
"""

import multiprocessing
import os
from multiprocessing.process import BaseProcess
from typing import Any
from unittest import mock

from jupyter_client.provisioning import local_provisioner

_LAUNCHER = "ipykernel_launcher"
_IMPORTED = ["ipykernel.kernelapp", "matplotlib_inline.backend_inline", "pandas", "ipywidgets"]
_IMPORTED += ["rooflab.lab", "rooflab.simt", "rooflab.view.display", "rooflab.view.explorer"]
_IMPORTED += ["rooflab.claims", "PIL.PngImagePlugin"]
# Not rooflab.exercises: importing it gives the shell its magic, and here is no shell yet.


class _Forked:
    """A forked kernel, by the methods of subprocess.Popen that jupyter_client calls."""

    stdin = stdout = stderr = None

    def __init__(self, process: BaseProcess) -> None:
        self._process, self.pid = process, process.pid
        self.terminate, self.kill = process.terminate, process.kill

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.pid and self.poll() is None:
            os.kill(self.pid, number)


def _run(arguments: list[str], folder: str | None, settings: dict[str, str], grouped: Any) -> None:
    from ipykernel import kernelapp

    os.setsid()  # jupyter_client sends a signal to the kernel's process group
    grouped.set()
    os.environ.clear()
    # The kernel ends when this parent does.
    os.environ.update(settings, JPY_PARENT_PID=str(os.getppid()))
    if folder:
        os.chdir(folder)
    kernelapp.launch_new_instance(argv=arguments)


def use() -> None:
    """Fork Python's kernels from now on, where this system can."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    launch = local_provisioner.launch_kernel

    def forked(cmd: list[str], **how: Any) -> Any:
        if _LAUNCHER not in cmd:
            return launch(cmd, **how)
        arguments = cmd[cmd.index(_LAUNCHER) + 1 :]
        settings = dict(how.get("env") or os.environ)
        grouped = context.Event()
        process = context.Process(
            target=_run, args=(arguments, how.get("cwd"), settings, grouped), daemon=True
        )
        process.start()
        grouped.wait()
        return _Forked(process)

    mock.patch.object(local_provisioner, "launch_kernel", forked).start()
