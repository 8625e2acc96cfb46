"""What each launch of a chain costs: the step without it, and itself again and again."""
import os, sys, time
import numpy as np
from rooflab import engine, ops
from rooflab.engine.batch import Batch
from rooflab.engine.drafts import Drafts
from rooflab.engine.single import Single
from rooflab.ops import batch_ops, batch_plan, attention
Q, LL = "qwen2.5-1.5b", "llama-3-8b"
HEAD = {"fp16": "fp16", "q8_0": "q8_0", "int4_g128": "fp16"}
SEQ, STEPS = 128, 96
CAP = SEQ + 128
def seconds(fn, n):
    import torch
    torch.cuda.synchronize(); t = time.perf_counter(); fn(); torch.cuda.synchronize()
    return (time.perf_counter() - t) * 1e6 / n
product, rmsnorm, attend = batch_ops.product, batch_ops.rmsnorm, batch_ops.attention
THEN = {"qkv": batch_ops.ROPE, "gate_up": batch_ops.GATE, "head": batch_ops.ROWS}
def without(what):
    def p(x, w, *, out, then=0, heads=None, **k):
        name = {batch_ops.ROPE: "qkv", batch_ops.GATE: "gate_up", batch_ops.ROWS: "head"}.get(then)
        if name is None: name = "out" if int(x.shape[1]) <= int(out.shape[2]) else "down"
        if what == name: return out
        return product(x, w, out=out, then=then, heads=heads, **k)
    def r(residual, weights, *, out, parts=None, **k):
        if what == "norms" and parts is not None: return out
        return rmsnorm(residual, weights, out=out, parts=parts, **k)
    def a(*args, out, **k):
        if what == "attention": return out
        return attend(*args, out=out, **k)
    batch_ops.product, batch_ops.rmsnorm, batch_ops.attention = p, r, a
def run(limit, only):
    import torch
    t0 = time.time(); print(torch.cuda.get_device_name())
    for model, fmt, kind, size in [(Q, "int4_g128", "drafts", 8), (Q, "int4_g128", "batch", 32), (Q, "q8_0", "drafts", 8), (Q, "fp16", "batch", 32), (LL, "q8_0", "drafts", 8), (LL, "int4_g128", "chain", 1), (LL, "fp16", "chain", 1)]:
        if time.time() - t0 > limit: print("OUT OF TIME"); break
        if only and only not in f"{model} {fmt} {kind}": continue
        spec = engine.spec(model); shape = spec.shape
        torch.cuda.empty_cache()
        weights = engine.random_weights(spec, fmt, HEAD[fmt], capacity=1024)
        e = engine.Engine(spec, weights, capacity=CAP)
        e.state.cache_k[:, :SEQ].normal_(); e.state.cache_v[:, :SEQ].normal_()
        e.position = SEQ; e.state.position.fill_(SEQ)
        e.state.candidates[:, 0] = float("-inf"); e.state.candidates[0, 0] = 0; e.state.candidates.view(torch.int32)[0, 1] = 7
        e.decode(1); e.position = SEQ
        def alone():
            e.position = SEQ; e.state.position.fill_(SEQ); e.decode(STEPS)
        alone(); t1 = min(seconds(alone, STEPS) for _ in range(4))
        print(f"== {model} {fmt} {kind} {size}; alone {t1:.1f} by {e.decoding(1)} [{time.time()-t0:.0f} s]", flush=True)
        made = {}
        for what in ("", "norms", "attention", "qkv", "out", "gate_up", "down", "head"):
            without(what)
            if kind == "drafts":
                d = Drafts(e, size); e.position = SEQ; d.check([7] * size)
                def go(d=d):
                    for _ in range(STEPS): d._replay()
                if not what:
                    def hosted(d=d):
                        for _ in range(STEPS): e.position = SEQ; d.check([7] * size)
                    made["(check)"] = hosted
            elif kind == "batch":
                d = Batch(e, size, CAP)
                def go(d=d):
                    d.position = SEQ; d.places[0] = SEQ; d.places[1] = SEQ + 1; d.tokens[SEQ] = 7; d.decode(STEPS)
            else:
                d = Single(e)
                def go(d=d):
                    d.follow(SEQ, 7); Batch.decode(d, STEPS)
            go(); made[what] = go
        batch_ops.product, batch_ops.rmsnorm, batch_ops.attention = product, rmsnorm, attend
        best = {}
        for _ in range(4):
            for what, go in made.items(): best.setdefault(what, []).append(seconds(go, STEPS))
        base = min(best[""])
        for what, us in best.items():
            each = (base - min(us)) / (1 if what in ("head", "", "(check)") else shape.layers * (2 if what == "norms" else 1))
            print(f"  without {what:10s} {min(us):8.1f}  saves a launch {each:6.2f}   /alone {min(us)/t1:.3f}", flush=True)
        # each launch after itself
        c = d.chain
        keys, values = (c_[0] for c_ in ((e.state.cache_k, e.state.cache_v) if kind == "drafts" else (d.cache_k, d.cache_v)))
        position = torch.tensor([SEQ, SEQ + 1, 0, 1], dtype=torch.int32, device="cuda")
        outs = {"qkv": c.queries, "gate_up": c.inner, "head": d.logits, **c._parts}
        giv = {"qkv": c.x, "gate_up": c.x, "head": c.x, "out": c.attended.reshape(size, -1), "down": c.inner}
        def launch(name, layer):
            if name == "norm":
                batch_ops.rmsnorm(c.residual, weights.norms[layer], out=c.x, parts=c._parts["down"], epsilon=1e-6); return
            if name == "attention":
                seen = c.queries.shape if kind == "drafts" else (size * shape.heads, shape.head_dim)
                wide = (c.capacity, (1 if kind == "drafts" else size) * shape.kv_heads, shape.head_dim)
                ck, cv = ((e.state.cache_k[layer], e.state.cache_v[layer]) if kind == "drafts" else (d.cache_k[layer], d.cache_v[layer]))
                batch_ops.attention(c.queries.reshape(seen), ck.reshape(wide), cv.reshape(wide), position[1:2], out=c.attended.reshape(seen), workspace=c.workspace); return
            heads = None
            if name == "qkv":
                ck, cv = ((e.state.cache_k[layer], e.state.cache_v[layer]) if kind == "drafts" else (d.cache_k[layer], d.cache_v[layer]))
                heads = batch_ops.Heads(weights.biases[layer], weights.rotations, position[:1], ck, cv)
            then = THEN.get(name, batch_ops.PARTS)
            batch_ops.product(giv[name], c._matrix(name, None if name == "head" else layer), out=outs[name], then=then, heads=heads)
        line = []
        for name in ("norm", "attention", "qkv", "out", "gate_up", "down", "head"):
            side = torch.cuda.Stream(); g = torch.cuda.CUDAGraph()
            launch(name, 0); torch.cuda.synchronize()
            with torch.cuda.graph(g, stream=side):
                for i in range(56 if name != "head" else 6): launch(name, i % shape.layers)
            us = min(seconds(g.replay, 56 if name != "head" else 6) for _ in range(6))
            line.append(f"{name} {us:.2f}")
        plans = {n: tuple(batch_plan.plan_for(*s, size, HEAD[fmt] if n == "head" else fmt, n in ("out", "down"), 132)) for n, s in shape.matrices.items()}
        print("  after itself:", ", ".join(line), "\n  ", plans, f"[{time.time()-t0:.0f} s]", flush=True)
if __name__ == "__main__": run(float(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
