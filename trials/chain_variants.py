"""A/B of the chain's kernels in one process (with .pe/tree2/lib)."""
import math, os, sys, time
import numpy as np
from rooflab import engine
from rooflab.ops import batch_ops, batch_plan, decoder
Q, LL = "qwen2.5-1.5b", "llama-3-8b"
HEAD = {"fp16": "fp16", "q8_0": "q8_0", "int4_g128": "fp16"}
SEQ, STEPS = 128, 96
CAP = SEQ + 128
plan_for = batch_plan.plan_for
def plan(name):
    """no: as is; wide: QKV in as many blocks as tiles"""
    if name == "wide":
        def f(n, k, batch, format, divided, sms):
            p = plan_for(n, k, batch, format, divided, sms)
            return p._replace(blocks=n // 16) if p and not divided and n // 16 <= 132 else p
        return f
    return plan_for
VARIANTS = {"A A": 0, "A 1": 0, "B 1": 0, "C 1": 0, "D 1": 0, "E 1": 0, "F 1": 0, "G 1": 0, "A 1 wide": 0, "C 1 wide": 0, "F 1 wide": 0}
def use(v):
    a, b, *w = v.split()
    batch_ops.USED = {"product": a, "attention": "A" if b == "A" else "1_pdl"}
    batch_ops.plan_for = batch_plan.plan_for_used = plan(w[0] if w else "no")
TODO = [(Q, "int4_g128", (("drafts", 8), ("batch", 8), ("drafts", 2))), (Q, "q8_0", (("drafts", 8), ("batch", 8))), (Q, "fp16", (("drafts", 8), ("batch", 32))), (Q, "int4_g128", (("batch", 32),)), (LL, "fp16", (("chain", 1),)), (LL, "int4_g128", (("chain", 1),))]
def one(w):
    rung, m = w
    r = rung.cubin("90", m).resources[rung.entry]
    return (rung.key, m, r) if r.spill_bytes else None
def compile_all(workers):
    todo = {}
    for model, fmt, kinds in TODO:
        shape = engine.spec(model).shape
        for (kind, size), v in ((k, v) for k in kinds for v in VARIANTS):
            use(v)
            rung = next(r for r in batch_ops.LADDERS["batch_product"] if r.name == batch_ops.USED["product"])
            for name in shape.matrices:
                f = HEAD[fmt] if name == "head" else fmt
                then = {"qkv": 1, "gate_up": 2, "head": 0}.get(name, 3)
                n, k = shape.matrices[name]; kd = decoder.FORMATS.index(f)
                p = batch_ops.plan_for(n, k, size, f, name in ("out", "down"), 132)
                m, _ = batch_plan.macros_for(p, n, size, kd, "90")
                todo[rung.key, tuple(sorted((m | {"FORMAT": kd, "EPILOGUE": then, "DRAFTS": int(kind == "drafts" and then == 1)}).items()))] = rung
                if then == 3:
                    w = shape.hidden; held = 1 if w <= 4096 else 2
                    r = batch_ops.LADDERS["batch_rmsnorm"][0]
                    todo[r.key, tuple(sorted({"PARTS": held, "THREADS": 32 * math.ceil(w / (128 * held)), "SPLITS": p.splits}.items()))] = r
            pairs = shape.kv_heads * (-(-size * (shape.heads // shape.kv_heads) // 8) if kind == "drafts" else size)
            warps, stages = batch_plan.warps_for(shape.head_dim, CAP, batch_plan.splits_for(CAP, pairs, 132), "90")
            r = next(r for r in batch_ops.LADDERS["batch_attention"] if r.name == batch_ops.USED["attention"])
            todo[r.key, tuple(sorted({"WARPS": warps, "STAGES": stages, "HEAD_DIM": shape.head_dim, "TOKENS": size if kind == "drafts" else 1}.items()))] = r
    import multiprocessing as mp
    with mp.get_context("fork").Pool(workers) as pool:
        for b in pool.imap_unordered(one, [(r, dict(m)) for (_, m), r in todo.items()]):
            if b: print("SPILLS", b)
    print(len(todo))
def seconds(fn, n):
    import torch
    torch.cuda.synchronize(); t = time.perf_counter(); fn(); torch.cuda.synchronize()
    return (time.perf_counter() - t) * 1e6 / n
def run(limit):
    import torch
    from rooflab.engine.batch import Batch
    from rooflab.engine.drafts import Drafts
    from rooflab.engine.single import Single
    t0 = time.time(); print(torch.cuda.get_device_name())
    for model, fmt, todo in TODO:
        if time.time() - t0 > limit: print("OUT OF TIME"); break
        spec = engine.spec(model); torch.cuda.empty_cache()
        weights = engine.random_weights(spec, fmt, HEAD[fmt], capacity=1024)
        e = engine.Engine(spec, weights, capacity=CAP)
        e.state.cache_k[:, :SEQ].normal_(); e.state.cache_v[:, :SEQ].normal_()
        e.position = SEQ; e.state.position.fill_(SEQ)
        e.state.candidates[:, 0] = float("-inf"); e.state.candidates[0, 0] = 0; e.state.candidates.view(torch.int32)[0, 1] = 7
        def alone():
            e.position = SEQ; e.state.position.fill_(SEQ); e.decode(STEPS)
        use("A A"); alone(); t1 = min(seconds(alone, STEPS) for _ in range(4))
        print(f"== {model} {fmt}; alone {t1:.1f} by {e.decoding(1)} [{time.time()-t0:.0f} s]", flush=True)
        for kind, size in todo:
            made, logits = {}, {}
            for v in VARIANTS:
                use(v)
                if kind == "drafts":
                    d = Drafts(e, size); e.position = SEQ; e.state.position.fill_(SEQ); d.check([7] * size); logits[v] = d.logits.float().clone()
                    def go(d=d):
                        for _ in range(STEPS): e.position = SEQ; d.check([7] * size)
                else:
                    d = Batch(e, size, CAP) if kind == "batch" else Single(e)
                    if kind == "batch":
                        d.cache_k[:, :SEQ].copy_(e.state.cache_k[:, :SEQ, None]); d.cache_v[:, :SEQ].copy_(e.state.cache_v[:, :SEQ, None])
                    def go(d=d, steps=STEPS):
                        if kind == "batch": d.position = SEQ; d.places[0] = SEQ; d.places[1] = SEQ + 1; d.tokens[SEQ] = 7
                        else: d.follow(SEQ, 7)
                        Batch.decode(d, steps)
                    go(steps=1); logits[v] = d.logits.float().clone()
                go(); made[v] = go
            best = {}
            for _ in range(5):
                for v, go in made.items(): best.setdefault(v, []).append(seconds(go, STEPS))
            base = logits["A A"]
            print(f"  {kind} {size}: " + ", ".join(f"[{v}] {min(us):.1f} ({min(us)/t1:.3f}, off {float((logits[v]-base).abs().max()/base.abs().max()):.4f})" for v, us in best.items()), f"[{time.time()-t0:.0f} s]", flush=True)
compile_all(int(sys.argv[2])) if sys.argv[1] == "compile" else run(float(sys.argv[2]))
