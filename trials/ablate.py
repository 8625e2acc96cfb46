"""Which kernels of a check of 8 drafts take how long: each kind left out, in turns, beside a batch's step."""
import sys, time
import torch, numpy as np
from rooflab import engine
from rooflab.engine import drafts as D, chain as C
from rooflab.engine.base import captured
from rooflab.ops import batch_choice, batch_ops, decoder_ops
from rooflab.studies import decode, decode_work

def timed(rep, n=16):
    e = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    e[0].record()
    for _ in range(n): rep()
    e[1].record(); torch.cuda.synchronize()
    return e[0].elapsed_time(e[1]) * 1e3 / n

KINDS = ["", "qkv", "attention", "out", "gate_up", "down", "head", "norm", "sample", "accept", "sample accept embed"]
real = dict(product=batch_ops.product, attention=batch_ops.attention, norm=batch_ops.rmsnorm, sample=batch_choice.sample, accept=batch_choice.accept, embed=decoder_ops.embedding)
for fmt in sys.argv[1:] or ("int4_g128", "q8_0"):
    case = next(c for c in decode.checks_of_drafts() if c.batch == 8 and c.format == fmt and c.model == decode.MODEL)
    one, start, begin = decode_work._begun(case, engine.Paths())
    begin(); one.generate(4); begin()
    d = D.Drafts(one, 8)
    d._numbers[...] = 200, 201, 0, 1, *range(1, 9)
    names = {"qkv": batch_ops.ROPE, "gate_up": batch_ops.GATE}
    reps = {}
    for kind in KINDS:
        off = kind.split()
        down = [0]
        def product(x, w, *, out, then=0, heads=None):
            which = {batch_ops.ROPE: "qkv", batch_ops.GATE: "gate_up", batch_ops.ROWS: "head"}.get(then)
            if which is None: which = "out" if x.shape[1] == one.spec.shape.heads * one.spec.shape.head_dim and x.shape[1] != one.spec.shape.mlp else "down"
            if which in off: return out
            return real["product"](x, w, out=out, then=then, heads=heads)
        batch_ops.product = product
        batch_ops.attention = (lambda *a, **k: None) if "attention" in off else real["attention"]
        batch_ops.rmsnorm = (lambda *a, **k: None) if "norm" in off else real["norm"]
        batch_choice.sample = (lambda *a, **k: None) if "sample" in off else real["sample"]
        batch_choice.accept = (lambda *a, **k: None) if "accept" in off else real["accept"]
        decoder_ops.embedding = (lambda *a, **k: None) if "embed" in off else real["embed"]
        reps[kind] = captured(d.step, [])
    batch_ops.product, batch_ops.attention, batch_ops.rmsnorm = real["product"], real["attention"], real["norm"]
    batch_choice.sample, batch_choice.accept, decoder_ops.embedding = real["sample"], real["accept"], real["embed"]
    found = {k: [] for k in reps}
    for turn in range(7):
        for k, rep in reps.items(): found[k].append(timed(rep))
    med = {k: sorted(v)[3] for k, v in found.items()}
    print(fmt, {k or "whole": round(v, 1) for k, v in med.items()})
    print(" a layer:", {k: round((med[""] - v) / (28 if k in ("qkv", "attention", "out", "gate_up", "down", "norm") else 1), 2) for k, v in med.items() if k}, flush=True)
    del one, start, begin, d, reps
