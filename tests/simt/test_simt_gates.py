"""The same door: an op with target="cpu", and the studies' own contestants under the gate without a GPU."""

import inspect

import numpy as np
import pytest
from rooflab import ops, studies
from rooflab.bench import gate
from rooflab.errors import GateError, LaunchError, MissingTool, UsageError
from rooflab.ops import probes, stream
from rooflab.records import case
from rooflab.simt import KernelFault, build
from rooflab.studies import environment

try:
    build.compiler()
except MissingTool as error:  # named, and not forgiven where ROOFLAB_REQUIRE_ALL is set
    pytest.skip(str(error), allow_module_level=True)


def test_a_wrong_launch_does_not_pass_it():
    """The path above can fail: the same contestant with a launch that leaves the tail out."""
    one = case.Case("bandwidth", "copy", "1_scalar", n=1021, cache="cold", clock="graph")
    with ops.on("cpu"):
        (work,) = studies.get("bandwidth").contestants([one])
        short = lambda i: stream.copy(work.inputs[i][0][:-1], out=work.outputs[i][0][:-1], rung="1_scalar")  # noqa: E731
        work.launch = short
        with pytest.raises(GateError, match="1 of 1021 outputs are wrong, the first at index 1020"):
            gate.admit(work)


@pytest.mark.parametrize("entry", probes.CHEATS)
def test_the_studys_own_cheats_are_refused_on_the_cpu(entry):
    one = case.Case("environment", "cheat", entry, n=1003, clock="graph")
    with ops.on("cpu"):
        work = environment.cheat_work(one)
        with pytest.raises(GateError):
            admitted = gate.admit(work)
            for _ in range(10):
                work.launch(0)
            admitted.recheck()


def test_every_op_takes_its_target_as_a_keyword():
    x = np.arange(1021, dtype=np.uint32)
    copied = stream.copy(x, rung="1_scalar", target="cpu")
    assert isinstance(copied, np.ndarray) and (copied == x).all()
    assert (stream.write(np.empty(64, np.uint32), 3, target="cpu") == (np.arange(64) ^ 3)).all()
    y = np.ones(64, np.float32)
    assert (stream.saxpy(2.0, y, y, target="cpu") == 3).all()
    assert (stream.triad(y, y, 2.0, rung="4_grid", target="cpu") == 3).all()
    with pytest.raises(UsageError, match="runs on the gpu or the cpu, not on 'tpu'"):
        stream.copy(x, target="tpu")
    with pytest.raises(LaunchError, match="must be a CuPy array or a torch CUDA tensor"):
        stream.copy(x, out=x, rung="1_scalar", target="gpu")
    with ops.on("cpu"), pytest.raises(LaunchError, match="must be a CuPy array"):  # the nearer word counts
        stream.copy(x, out=x, rung="1_scalar", target="gpu")


def test_no_op_is_left_out():
    """Every function that takes a rung's name takes a target."""
    found = []
    for module in ops.modules():
        for name, function in inspect.getmembers(module, inspect.isfunction):
            parameters = inspect.signature(function).parameters
            own = function.__module__ == module.__name__ and not name.startswith("_")
            if own and "rung" in parameters and "out" in parameters or name == "read":
                assert "target" in parameters, f"{module.__name__}.{name}"
                found.append(name)
    assert {"read", "copy", "gemv", "gemv_rows", "matvec", "product", "matmul", "attention"} <= set(found)


@pytest.mark.parametrize("rung", [rung.name for rung in stream.LADDERS["read"]])
def test_read_needs_no_room_and_a_standing_grid_no_number_of_blocks(rung):
    x = np.random.default_rng(1).integers(0, 1 << 32, 3 * 8192 + 4, dtype=np.uint32)
    partial = stream.read(x, rung=rung, target="cpu", UNROLL=2) if rung[0] in "345" else None
    if partial is None:
        partial = stream.read(x, rung=rung, target="cpu")
    assert int(partial.sum(dtype=np.uint64)) % 2**32 == int(x.sum(dtype=np.uint64)) % 2**32
    if rung == "4_grid":
        assert len(partial) == 4  # of the made-up GPU's SMs
        assert len(stream.read(x, rung=rung, blocks=7, UNROLL=1, target="cpu")) == 7


def test_probes_take_it_too():
    out = np.zeros(1, np.uint32)
    assert probes.touch(out, 9, target="cpu")[0] == 9
    counter, mail, seen = (np.zeros(size, np.uint32) for size in (1, 6, 6))
    assert (probes.barrier(counter, mail, seen, 3, target="cpu") == 3).all() and counter[0] == 0
    with pytest.raises(LaunchError, match="mail must hold 6 elements, not 5"):
        probes.barrier(counter, mail[:5], seen, 3, target="cpu")
    with pytest.raises(LaunchError, match="rounds x blocks must stay below 2.32 and above 0"):
        probes.barrier(counter, mail, seen, 0, target="cpu")
    with pytest.raises(LaunchError, match="keeps all threads alive: at most"):
        many = np.zeros(1000, np.uint32)
        probes.barrier(counter, many, many.copy(), 1, target="cpu")
    links = np.zeros((8, 32), np.uint32)
    links[:, 0] = np.roll(np.arange(8), -1)
    assert probes.chase(links, out, 2, 5, target="cpu")[0] == 7


def test_a_fault_comes_through_the_door():
    broken = ops.Rung("faults", "early_exit", "early_exit", "leaves before a barrier", defines={})
    from rooflab.ops import faults

    a, x, y = np.ones((256, 40), np.float32), np.ones(256, np.float32), np.zeros(40, np.float32)
    with (
        ops.on("cpu"),
        pytest.raises(KernelFault, match="divergent barrier: early_exit, faults/early_exit.cu:"),
    ):
        ops.loaded(broken).launch(*faults.launch_of(40), faults.arguments(a, x, y))


def test_the_keyword_shows_and_is_no_part_of_an_identity():
    assert "target=None" in str(inspect.signature(stream.read)).replace(" ", "")
    rule = stream.launch_rule(stream.LADDERS["read"][0])
    assert "with_target" not in rule
    assert "cupy" in rule  # it is the launcher itself that is digested
