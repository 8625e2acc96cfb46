"""Study split: which models it asks of one GPU, and of which GPUs a model is too large."""

import sys
from types import SimpleNamespace

import pytest
from rooflab.numerics import model_shapes
from rooflab.studies import links, links_tokens, split


def test_a_gpu_holds_its_share_of_the_layers_and_embedding_and_head_whole():
    large, tied = model_shapes.get("llama-3-70b"), model_shapes.get("qwen2.5-1.5b")
    assert model_shapes.held_bytes(large, "fp16", "fp16") == pytest.approx(141.1e9, rel=1e-3)
    halves = 2 * model_shapes.held_bytes(large, "fp16", "fp16", 2) - model_shapes.held_bytes(
        large, "fp16", "fp16"
    )
    assert halves == 2 * 2 * model_shapes.head(large), "embedding and head, a second time"
    once = model_shapes.held_bytes(tied, "fp16", "fp16")
    assert once == model_shapes.weight_bytes(tied, "fp16", "fp16"), "the head is the embedding"


@pytest.mark.parametrize(("free_gb", "lost"), [(150.0, set()), (80.0, {links.ALONE}), (60.0, None)])
def test_a_model_that_a_gpu_cannot_hold_is_skipped_with_the_memory_that_it_needs(monkeypatch, free_gb, lost):
    free = int(free_gb * 1e9)
    runtime = SimpleNamespace(memGetInfo=lambda: (free, 0))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    monkeypatch.setattr(links_tokens, "gathered", lambda value: [value, value + 1])
    cases = [c for c in split.tokens() if (c.model, c.format) == ("llama-3-70b", "fp16")]
    assert {c.impl for c in cases} >= {links.ALONE, links.NCCL, split.FUSED}
    found = links_tokens.too_large(cases, 2)
    assert {c.impl for c in cases if c.id in found} == ({c.impl for c in cases} if lost is None else lost)
    assert all(one.reason.startswith("it needs ") and "GiB and" in one.reason for one in found.values())
