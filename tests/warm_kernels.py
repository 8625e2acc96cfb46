"""Jupyter kernels forked from one process that has imported what every lesson imports.

Under nbval each lesson has a kernel of its own, and most of a kernel's time is spent on the same imports. The
forked ones are as separate as before: nothing that one lesson defines is seen by another.
"""

import contextlib
import itertools
import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any
from unittest import mock

from jupyter_client.connect import LocalPortCache
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


def _ports() -> Callable[[LocalPortCache, str], int]:
    """What chooses a kernel's ports: this process's own, below those that a system gives away. A kernel binds
    them a second after they were chosen, and other tests' processes were given the same ones meanwhile.
    """
    first = 10000 + os.getpid() % 400 * 50  # those of neighbours, which start together, lie apart
    numbers = itertools.cycle(range(first, first + 50))

    def choose(_: LocalPortCache, address: str) -> int:
        for port in itertools.islice(numbers, 50):
            with contextlib.suppress(OSError), socket.socket() as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a kernel's own sockets
                tried.bind((address, port))
                return port
        raise OSError(f"Ports {first} to {first + 49} of {address} are all in use.")

    return choose


def use() -> None:
    """Fork Python's kernels from now on, where this system can, and give each ports of its own."""
    mock.patch.object(LocalPortCache, "find_available_port", _ports()).start()
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
