"""The process under the profiler: gate first, one range per launch, exit codes that say why."""

import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from rooflab.bench.gate import Work
from rooflab.errors import GateError, MissingTool, UsageError
from rooflab.profile import child, execute, raise_child_error


class FakeGpu:
    def __init__(self, events):
        self.events = events

    def start(self):
        self.events.append("start")

    def stop(self):
        self.events.append("stop")

    def push(self, name):
        self.events.append(f"push {name}")

    def pop(self):
        self.events.append("pop")

    def wait(self):
        pass


class Doubling:
    """A study whose contestants double a NumPy array; the case "wrong" does not."""

    name = "doubling"

    def __init__(self, events):
        self.events = events

    def case(self, case_id):
        if case_id == "unheard of":
            raise UsageError("Study doubling has no case unheard of.")
        return SimpleNamespace(id=case_id)

    def contestants(self, cases):
        return [self.work(case.id) for case in sorted(cases, key=lambda case: case.id)]

    @contextmanager
    def watch(self, gpu, case_ids, whole):
        yield False

    def work(self, name):
        x, y = np.arange(5.0), np.zeros(5)

        def launch(i):
            self.events.append(f"launch {name}")
            y[:] = x * (3 if name == "wrong" else 2)

        return Work(name, launch, [[x]], [[y]], lambda: np.arange(5.0) * 2)


def run(*argv):
    events = []
    code = child.main([*argv], get_study=lambda name: Doubling(events), get_gpu=lambda: FakeGpu(events))
    return code, events


def profiled(events):
    """What happened between each start and its stop."""
    text = "|".join(events)
    return [part.split("|stop")[0].strip("|").split("|") for part in text.split("start")[1:]]


def test_each_case_is_gated_before_its_own_range_opens():
    code, events = run("doubling", "a", "b")
    assert code == 0
    assert profiled(events) == [["push a", "launch a", "pop"], ["push b", "launch b", "pop"]]
    assert events.index("launch a") < events.index("start"), "the gate launches before anything is profiled"


def test_whole_gates_every_case_before_the_single_range():
    code, events = run("--whole", "--repeat", "2", "doubling", "b", "a")
    assert code == 0
    a, b = ["push a", "launch a", "pop"], ["push b", "launch b", "pop"]
    assert profiled(events) == [[*b, *b, *a, *a]], "whatever order the study gives its contestants in"
    assert "launch a" in events[: events.index("start")]


def test_a_study_may_open_the_profilers_range_around_parts_of_a_launch():
    class InParts(Doubling):
        watched = None

        @contextmanager
        def watch(self, gpu, case_ids, whole):
            self.watched = gpu, (tuple(case_ids), whole)
            yield not whole
            self.watched = None

        def work(self, name):
            plain = super().work(name)

            def launch(i):
                if self.watched:
                    gpu, facts = self.watched
                    gpu.push(f"part of {facts}")
                    gpu.start()
                    plain.launch(i)
                    gpu.stop()
                    gpu.pop()
                else:
                    plain.launch(i)

            return Work(name, launch, plain.inputs, plain.outputs, plain.oracle)

    events = []
    assert (
        child.main(["x", "a"], get_study=lambda name: InParts(events), get_gpu=lambda: FakeGpu(events)) == 0
    )
    assert profiled(events) == [["launch a"]]
    inside = ["push a", "push part of (('a',), False)", "start", "launch a", "stop", "pop", "pop"]
    assert events[-len(inside) :] == inside


def test_a_wrong_kernel_is_never_profiled(capsys):
    code, events = run("doubling", "a", "wrong")
    assert code == 3
    assert len(profiled(events)) == 1
    said = capsys.readouterr().err
    assert said.startswith("rooflab.profile.child: gate: wrong at the gate: 4 of 5 outputs are wrong")
    with pytest.raises(GateError, match="4 of 5 outputs are wrong"):
        raise_child_error(f"noise\n{said}more noise")


def test_an_unknown_case_is_an_error_in_a_sentence(capsys):
    assert run("doubling", "unheard of")[0] == 2
    with pytest.raises(UsageError, match="no case unheard of"):
        raise_child_error(capsys.readouterr().err)


def test_repeat_counts_launches(capsys):
    assert run("--repeat", "0", "doubling", "a")[0] == 2
    assert "at least 1, not 0" in capsys.readouterr().err


def test_a_silent_child_raises_nothing():
    raise_child_error("Warning: something else entirely\n")


def test_without_a_gpu_the_real_process_says_so_and_exits_2():
    try:
        child.Cuda()
    except MissingTool:
        pass
    else:
        pytest.skip("a GPU is here")
    done = execute([sys.executable, "-m", "rooflab.profile.child", "bandwidth", "some case"], 60)
    assert isinstance(done, subprocess.CompletedProcess) and done.returncode == 2
    assert done.stderr.startswith("rooflab.profile.child: error: ") and done.stderr.count("\n") == 1


def test_a_study_must_give_one_contestant_per_case(capsys):
    class Mute(Doubling):
        def contestants(self, cases):
            return []

    assert child.main(["x", "a"], get_study=lambda name: Mute([]), get_gpu=lambda: FakeGpu([])) == 2
    assert "gave 0 contestants for the case a" in capsys.readouterr().err
