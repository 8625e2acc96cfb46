"""A Dask scheduler and workers in processes of their own on this machine, for tests; their GPUs stand in."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rooflab import paths

SCHEDULER = """
import asyncio, distributed
async def main():
    async with distributed.Scheduler(host="127.0.0.1", port=0, dashboard_address=":0") as scheduler:
        print(scheduler.address, flush=True)
        await scheduler.finished()
asyncio.run(main())
"""
# argv: the scheduler's address, a scratch folder, a GPU's slug or "", resources.
WORKER = """
import asyncio, sys
import distributed
from rooflab.cluster import workers
from rooflab.hardware import device
address, scratch, gpu, resources = sys.argv[1:]
if gpu:
    device.probe = lambda: {"gpu": device.get(gpu).reported[0]}
    workers.MEASURER = [sys.executable, "-c", MEASURER, gpu, scratch]
async def main():
    given = {name: 1 for name in resources.split()}
    async with distributed.Worker(
        address, nthreads=1, resources=given, memory_limit=0, dashboard_address=":0", local_directory=scratch
    ) as worker:
        print(worker.address, flush=True)
        await worker.finished()
asyncio.run(main())
"""
# What measures for a worker, on a GPU of tests/stand_in.py; a group takes a moment, as it does on a GPU.
MEASURER = """
import sys, time
from pathlib import Path
from rooflab import paths
from rooflab.cluster import measurer
from rooflab.studies.base import Study
from stand_in import Machine
paths.BUILD = Path(sys.argv[2])
real = Study.measure_group
def measure_group(*arguments):
    time.sleep(0.05)
    return real(*arguments)
Study.measure_group = measure_group
with Machine(sys.argv[1]).present():
    measurer.main()
"""


class Fleet:
    """A scheduler, and workers that are started as tests want them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.address = self._start("scheduler", "-c", SCHEDULER)

    def _start(self, name: str, *words: str, **more: str) -> str:
        tests = Path(__file__).parent
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ROOFLAB_")}
        environment["PYTHONPATH"] = os.pathsep.join((str(paths.ROOT / "lib"), str(tests)))
        log = (self.folder / f"{name}.log").open("w")
        process = subprocess.Popen(
            [sys.executable, *words],
            env={**environment, **more},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, (self.folder / f"{name}.log").read_text()
        self.processes[address] = process
        return address

    def worker(self, gpu: str = "", *resources: str, **environment: str) -> str:
        """Start a worker and return its address."""
        code = WORKER.replace("MEASURER, gpu", repr(MEASURER) + ", gpu")
        words = (self.address, str(self.folder), gpu, " ".join(resources))
        return self._start(f"worker-{len(self.processes)}", "-c", code, *words, **environment)

    def workers(self) -> list[str]:
        """The workers that are alive."""
        found = [name for name, process in self.processes.items() if process.poll() is None]
        return [name for name in found if name != self.address]

    def kill(self, address: str) -> None:
        self.processes[address].kill()
        self.processes[address].wait()


@contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    """Within it a scheduler runs; its processes end with it."""
    made = Fleet(folder)
    try:
        yield made
    finally:
        for address in made.processes:
            made.kill(address)
