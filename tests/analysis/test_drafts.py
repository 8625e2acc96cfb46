"""What checks of drafts cost, and what speculation makes of the drafts that hold."""

import numpy as np
import pandas as pd
import pytest
from rooflab.analysis import ablation, drafts
from rooflab.analysis.evidence import NoEvidence
from rooflab.studies import decode


def checked(rows, cost=1.1):
    """Rows of study decode with a check of every case, at `cost` tokens' time and 1% more a draft."""
    rows = rows[rows["operator"] == "decode"]
    added = []
    for case in decode.checks_of_drafts():
        one = ablation.best(rows, case.model, case.format)
        us = one["median_us"] * (cost + 0.01 * case.batch)
        times = {"median_us": us, "q1_us": us, "q3_us": us, "tok_s": case.batch * 1e6 / us}
        added.append({**one.to_dict(), **case.row(), **times, "predicted_us": us, "roof_fraction": 0.7})
    return pd.concat([rows, pd.DataFrame(added).astype(rows.dtypes.to_dict())], ignore_index=True)


def test_a_check_is_set_beside_the_engine_s_fastest_token(h200):
    rows = checked(h200.store.read("decode"))
    found = drafts.costs(rows)
    assert len(found) == len(decode.checks_of_drafts()) and set(found["batch"]) == set(decode.DRAFTS)
    assert np.allclose(found["cost"], 1.1 + 0.01 * found["batch"].astype(float))
    fp16 = found[(found["model"] == decode.MODEL) & (found["format"] == "fp16")]
    assert fp16["draft_bytes"].between(0.25, 0.4).all()  # 0.49 of 1.54 billion weights
    assert (fp16["draft"] > fp16["draft_bytes"]).all()  # its phases cost, too
    without = rows[(rows["model"] != decode.LARGE) | (rows["operator"] == "verify")]
    assert len(drafts.costs(without)) == 9  # of a model of which no token is there
    refused = rows.assign(median_us=rows["median_us"].where(rows["operator"] == "decode"))
    for missing in (rows[rows["operator"] == "decode"], rows[rows["operator"] == "verify"], refused):
        with pytest.raises(NoEvidence, match="no check of drafted tokens"):
            drafts.costs(missing)


def test_a_draft_costs_its_bytes_and_its_phases_unless_it_was_measured(h200):
    rows = h200.store.read("decode")
    found = drafts.costs(rows).drop_duplicates(["model", "format"]).set_index(["model", "format"])
    one = ablation.best(rows, decode.MODEL, "int4_g128")
    bytes_us = one["roof_fraction"] * one["median_us"]
    each = (one["median_us"] - bytes_us) / ablation.phases_of(decode.MODEL)
    mine = found.loc[(decode.MODEL, "int4_g128")]
    law = mine["draft_bytes"] * bytes_us + each * ablation.phases_of(drafts.SMALLER[decode.MODEL])
    assert mine["draft"] == pytest.approx(law / one["median_us"])
    large = found.loc[(decode.LARGE, "fp16")]
    measured = ablation.best(rows, drafts.SMALLER[decode.LARGE], "fp16")["median_us"]
    assert large["draft"] == pytest.approx(measured / large["one_us"])
    without = drafts.costs(rows[rows["model"] != drafts.SMALLER[decode.LARGE]])
    by_law = without[without["model"] == decode.LARGE].iloc[0]
    assert by_law["draft"] > by_law["draft_bytes"] and by_law["draft"] != large["draft"]


def test_a_check_is_set_beside_a_batch_of_as_many_rows(h200):
    rows = h200.store.read("decode")
    both = drafts.beside_batches(rows).set_index("format")
    assert set(both.index) == set(decode.FORMATS) and set(both["batch"]) == {8}
    one = rows[(rows["impl"] == "drafts") & (rows["model"] == decode.MODEL) & (rows["batch"] == 8)]
    assert (both["check_us"] == one.set_index("format")["median_us"]).all()
    assert drafts.beside_batches(rows[rows["impl"] != "drafts"]).empty


@pytest.mark.parametrize("tokens", [1, 2, 4, 8])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.8, 1.0])
def test_tokens_kept_are_what_drawing_drafts_comes_to(tokens, share):
    rng = np.random.default_rng(5)
    holds = rng.random((20_000, tokens - 1)) < share
    drawn = 1 + np.cumprod(holds, axis=1).sum(axis=1).mean()
    assert drafts.kept(share, tokens) == pytest.approx(drawn, abs=0.06)
    if share < 1:
        assert drafts.kept(share, tokens) == pytest.approx((1 - share**tokens) / (1 - share))


def test_what_speculation_gains_is_what_a_check_adds_over_what_it_costs(h200):
    assert drafts.gain(1.0, 0.0, 4) == 1 and drafts.gain(1.0, 1.0, 4) == 4
    assert drafts.gain(1.1, 0.8, 4, 0.3) == pytest.approx((1 + 0.8 + 0.64 + 0.512) / (1.1 + 0.9))
    found = drafts.costs(checked(h200.store.read("decode")))
    lines = drafts.speculated(found, {"free": "free", "model": "from a model"})
    assert len(lines) == len(found) * 2 * 21
    for _, line in lines.groupby(["case", "drafted"]):
        assert line.sort_values("percent")["tok_s"].is_monotonic_increasing
    wide = lines.pivot_table(index=["case", "percent"], columns="drafted", values="tok_s")
    assert (wide["free"] > wide["from a model"]).all()
