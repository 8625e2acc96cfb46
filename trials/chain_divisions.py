"""Other divisions of each product, one at a time."""
import math, os, sys, time
import numpy as np
from rooflab import engine
from rooflab.ops import batch_ops, batch_plan, decoder
from rooflab.ops.batch_plan import Plan
Q, LL = "qwen2.5-1.5b", "llama-3-8b"
HEAD = {"fp16": "fp16", "q8_0": "q8_0", "int4_g128": "fp16"}
SEQ, STEPS = 128, 64
CAP = SEQ + 128
plan_for = batch_plan.plan_for
TODO = [(Q, "q8_0", "drafts", 8), (Q, "int4_g128", "drafts", 8), (Q, "int4_g128", "batch", 32), (Q, "fp16", "batch", 32), (LL, "fp16", "chain", 1)]
def candidates(n, k, batch, format, divided):
    kind, columns = decoder.FORMATS.index(format), math.ceil(batch / 8)
    tiles, found = n // 16, {}
    others = batch_plan._OTHERS + batch_plan._WIDE_FP16 * (kind == 0 and columns > 2)
    for splits in range(1, 17 if divided else 2):
        fits = [w for w in range(4, 17) if k % (64 * splits * w) == 0 and 8 * columns * (k // (64 * splits * w)) <= batch_plan._room(w, others)]
        for warps in fits:
            least = math.ceil(tiles / (132 // splits))
            for turns in range(least, least + 4):
                p = Plan(math.ceil(tiles / turns), splits, warps, k // (64 * splits * warps))
                found[p] = batch_plan.cost(p, turns, k, batch, kind)
    best = plan_for(n, k, batch, format, divided, 132)
    order = sorted((p for p in found if p != best), key=lambda p: found[p] + 0.15 * abs(p.warps - 13) / 4)
    return best, order[:7]
def sets():
    for model, fmt, kind, size in TODO:
        shape = engine.spec(model).shape
        for name in ("qkv", "out", "gate_up", "down"):
            divided = name in ("out", "down")
            best, others = candidates(*shape.matrices[name], size, fmt, divided)
            yield model, fmt, kind, size, name, divided, best, others
OVER = {}
def planned(n, k, batch, format, divided, sms):
    return OVER.get((n, k, divided)) or plan_for(n, k, batch, format, divided, sms)
batch_ops.plan_for = planned
def one(w):
    rung, m = w
    r = rung.cubin("90", m).resources[rung.entry]
    return (rung.key, m, r) if r.spill_bytes else None
def compile_all(workers):
    todo = {}
    for model, fmt, kind, size, name, divided, best, others in sets():
        print(model, fmt, kind, size, name, tuple(best), [tuple(p) for p in others])
        n, k = engine.spec(model).shape.matrices[name]; kd = decoder.FORMATS.index(fmt)
        then = {"qkv": 1, "gate_up": 2, "head": 0}.get(name, 3)
        shape = engine.spec(model).shape
        for p in (best, *others):
            m, _ = batch_plan.macros_for(p, n, size, kd, "90")
            rung = batch_ops.LADDERS["batch_product"][0]
            todo[rung.key, tuple(sorted((m | {"FORMAT": kd, "EPILOGUE": then, "DRAFTS": int(kind == "drafts" and then == 1)}).items()))] = rung
            if then == 3:
                w = shape.hidden; held = 1 if w <= 4096 else 2
                r = batch_ops.LADDERS["batch_rmsnorm"][0]
                todo[r.key, tuple(sorted({"PARTS": held, "THREADS": 32 * math.ceil(w / (128 * held)), "SPLITS": p.splits}.items()))] = r
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
    known = None
    for model, fmt, kind, size, name, divided, best, others in sets():
        if time.time() - t0 > limit: print("OUT OF TIME"); break
        spec = engine.spec(model)
        if known != (model, fmt):
            weights = None; e = None; torch.cuda.empty_cache()
            weights = engine.random_weights(spec, fmt, HEAD[fmt], capacity=1024); known = (model, fmt)
            e = engine.Engine(spec, weights, capacity=CAP)
            e.state.cache_k[:, :SEQ].normal_(); e.state.cache_v[:, :SEQ].normal_()
            e.position = SEQ; e.state.position.fill_(SEQ)
            e.state.candidates[:, 0] = float("-inf"); e.state.candidates[0, 0] = 0; e.state.candidates.view(torch.int32)[0, 1] = 7
        made = {}
        for p in (best, *others, best):
            OVER.clear(); OVER[(*spec.shape.matrices[name], divided)] = p
            key = tuple(p) if tuple(p) not in made else "again"
            try:
                if kind == "drafts":
                    d = Drafts(e, size); e.position = SEQ; e.state.position.fill_(SEQ); d.check([7] * size)
                    def go(d=d):
                        for _ in range(STEPS): d._replay()
                else:
                    d = Batch(e, size, CAP) if kind == "batch" else Single(e)
                    def go(d=d):
                        if kind == "batch": d.position = SEQ; d.places[0] = SEQ; d.places[1] = SEQ + 1; d.tokens[SEQ] = 7
                        else: d.follow(SEQ, 7)
                        Batch.decode(d, STEPS)
                go(); made[key] = go
            except Exception as error: print("failed", p, repr(error)[:100])
        times = {}
        for _ in range(4):
            for key, go in made.items(): times.setdefault(key, []).append(seconds(go, STEPS))
        print(f"{fmt} {kind} {size} {name}: " + ", ".join(f"{key} {min(us):.1f}" for key, us in times.items()), f"[{time.time()-t0:.0f} s]", flush=True)
compile_all(int(sys.argv[2])) if sys.argv[1] == "compile" else run(float(sys.argv[2]))
