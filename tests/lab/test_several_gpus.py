"""Several GPUs of one host: a recording of their own, made by processes that this machine cannot start."""

import pytest
from rooflab import cli, engine, lab, studies
from rooflab.engine import world
from rooflab.errors import UsageError
from rooflab.hardware import device
from rooflab.records.store import Store
from rooflab.studies import links, links_tokens, links_work, split
from rooflab.studies.links_tokens import Found
from stand_in import Machine

H200 = device.get("h200")


def told(size, work, case_ids, **options):
    """What the processes would say: the bound and a tenth more, and a peer that is not there."""
    study, found = studies.get("split" if work is links_work.of_split else "links"), {}
    for case_id in case_ids:
        case = study.case(case_id)
        us = 1.1 * study.predict(case, studies.base.Context(device=H200, gpus=size))
        absent = "not implemented" if case.impl == links.ONE_SHOT else ""
        found[case_id] = Found([] if absent else [us] * 20, 0.001, 0.004, absent)
    return [found] * size


@pytest.fixture
def two(monkeypatch, tmp_path):
    """A machine with two H200s, and where it records."""
    machine = Machine("h200")
    with machine.present():
        monkeypatch.setattr(device, "count", lambda: 2)
        monkeypatch.setattr(device, "links", lambda: "18 NVLinks of 26.562 GB/s each way")
        monkeypatch.setattr(world, "run", told)
        monkeypatch.setenv("ROOFLAB_STORE", str(tmp_path))
        yield tmp_path


def test_they_are_recorded_under_a_name_of_their_own(two, capsys):
    assert cli.main(["record", "links", "--store", str(two)]) == 0
    store = Store(two, "h200-x2")
    rows, (run,) = store.read("links"), store.runs().to_dict("records")
    assert len(rows) == len(studies.get("links").cases("full")) > 100
    assert run["note"] == "2 GPUs, 18 NVLinks of 26.562 GB/s each way" and run["gpu"] == "NVIDIA H200"
    skipped = rows[rows["identity"].str.startswith("skipped")]
    assert set(skipped["impl"]) == {links.ONE_SHOT}
    assert not Store(two, "h200").folder.exists()
    found = [str(each) for each in lab.freshness(str(store.folder)) if each.severity == "error"]
    assert found == []
    fitted = links.law(rows[rows["median_us"].notna() & (rows["operator"] != "decode")], 2)
    push = fitted[(fitted["impl"] == "2_push")].iloc[0]
    assert push["latency_us"] == pytest.approx(1.1 * (links.LAUNCH_US + 2 * links.HOP_US), rel=0.02)
    assert push["rate_gb_s"] == pytest.approx(links.SHEET_GB_S / 1.1, rel=0.02)
    again = lab.open("live", gpus=2)
    assert not again.stale(studies.get("links"), again.cases("links")), "what is fresh is not measured again"


def test_who_has_one_gpu_hears_so(two, monkeypatch, capsys):
    with pytest.raises(UsageError, match="links has a recording of its own: record it without gemv"):
        lab.record(["links", "gemv"])
    monkeypatch.setattr(device, "count", lambda: 1)
    for command in (["record", "links", "--store", str(two)], ["measure", "links", "--store", str(two)]):
        assert cli.main(command) == 2
        assert "links measures 2 GPUs of one host" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "least"), [("links", 10), ("split", 7)])
def test_every_case_is_named_once_and_its_name_parses_back(name, least):
    for effort in ("full", "quick"):
        cases = studies.get(name).cases(effort, H200)
        assert len({case.id for case in cases}) == len(cases) >= least
        assert [studies.get(name).case(case.id) for case in cases] == cases
    assert "links" not in studies.names() and studies.names(2) == ["links", "split"]


def test_what_crosses_a_link():
    assert links.crossing("all_reduce", links.NCCL, 1000, 2) == 1000
    assert links.crossing("all_reduce", links.NCCL, 1000, 4) == 1500
    assert links.crossing("all_reduce", "2_push", 1000, 4) == 3000
    assert links.crossing("all_reduce", "3_flag_in_data", 1000, 2) == 2000
    assert links.crossing("all_gather", links.NCCL, 1000, 4) == 750


def test_a_token_s_bound_counts_memories_sums_and_the_head():
    alone, fused, separate = (
        split.token_us("llama-3-8b", "fp16", impl, gpus, 4800.0)
        for impl, gpus in ((links.ALONE, 1), (split.FUSED, 2), (split.SEPARATE, 2))
    )
    sums = 64 * split.sum_us(split.FUSED, 8192, 2)
    assert fused == pytest.approx(alone / 2 + sums), "layers and head are divided"
    head = 128256 * 4096 * 2 / 4800e3
    assert separate - fused == pytest.approx(head / 2 + 64 * (links.LAUNCH_US), rel=0.01)
    assert split.prompt_us("llama-3-8b", 1848, 2, 989.0) > split.prompt_us("llama-3-8b", 1848, 1, 989.0) / 2


def test_whole_models_are_recorded_beside_links(two, capsys):
    """`rooflab record split` on a host whose recording holds links; a process that is too large says so."""
    assert cli.main(["record", "split", "--store", str(two), "--effort", "quick"]) == 0
    rows = Store(two, "h200-x2").read("split")
    cases = studies.get("split").cases("quick", H200)
    assert len(rows) == len(cases)
    prompt = rows[rows["operator"] == "prefill"].iloc[0]
    assert prompt["tok_s"] == pytest.approx(1e6 * prompt["seq"] / prompt["median_us"], rel=1e-4)
    errors = [str(each) for each in lab.freshness(str(two / "h200-x2")) if each.severity == "error"]
    assert errors == [], "a recording may lack links"


def test_a_model_that_four_gpus_cannot_share_is_skipped_with_the_reason():
    cases = [case for case in split.tokens() if case.model == "qwen2.5-1.5b"]
    found = links_tokens.refused(engine.spec("qwen2.5-1.5b"), cases, 4)
    assert {each.reason for each in found.values()} == {
        "The 2 key and value heads of qwen2.5-1.5b cannot be shared evenly by 4 processes; "
        "take a number that divides 12, 2, 8960."
    }
    assert [case.impl for case in cases if case.id not in found] == [links.ALONE]
    assert not links_tokens.refused(engine.spec("qwen2.5-1.5b"), cases, 2)
