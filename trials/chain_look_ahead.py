"""Look ahead: how much, by whom."""
import os, sys, time
import numpy as np
from rooflab import engine, ops
from rooflab.engine import chain
from rooflab.engine.batch import Batch
from rooflab.engine.drafts import Drafts
from rooflab.engine.single import Single
from rooflab.ops import batch_ops, batch_plan
Q, LL = "qwen2.5-1.5b", "llama-3-8b"
HEAD = {"fp16": "fp16", "q8_0": "q8_0", "int4_g128": "fp16"}
SEQ, STEPS = 128, 96
CAP = SEQ + 128
M = 1 << 20
VARIANTS = {  # who looks ahead, rings, columns together
    "base": ({}, (128, 96, 128), 4), "ring": ({}, (128, 128, 144), 4), "tiles2": ({}, (128, 112, 144), 2), "small": ({}, (96, 72, 96), 4),
    "o16": ({"out": "down"}, (128, 96, 128), 4), "large": ({}, (160, 144, 160), 4), "large2": ({}, (160, 144, 160), 2),
}
def seconds(fn, n):
    import torch
    torch.cuda.synchronize(); t = time.perf_counter(); fn(); torch.cuda.synchronize()
    return (time.perf_counter() - t) * 1e6 / n
def run(limit, only):
    import torch
    t0 = time.time(); print(torch.cuda.get_device_name())
    for model, fmt, todo in [(Q, "q8_0", (("drafts", 2), ("drafts", 8), ("batch", 8), ("batch", 32))), (Q, "int4_g128", (("drafts", 2), ("drafts", 8), ("batch", 8), ("batch", 32))),
                             (Q, "fp16", (("drafts", 8), ("batch", 8), ("batch", 32))), (LL, "fp16", (("chain", 1), ("drafts", 8))), (LL, "int4_g128", (("chain", 1),)), (LL, "q8_0", (("chain", 1),))]:
        if time.time() - t0 > limit: print("OUT OF TIME"); break
        if only and not any(o in f"{model} {fmt}" for o in only.split(",")): continue
        spec = engine.spec(model); torch.cuda.empty_cache()
        weights = engine.random_weights(spec, fmt, HEAD[fmt], capacity=1024)
        e = engine.Engine(spec, weights, capacity=CAP)
        e.state.cache_k[:, :SEQ].normal_(); e.state.cache_v[:, :SEQ].normal_()
        e.position = SEQ; e.state.position.fill_(SEQ)
        e.state.candidates[:, 0] = float("-inf"); e.state.candidates[0, 0] = 0; e.state.candidates.view(torch.int32)[0, 1] = 7
        def alone():
            e.position = SEQ; e.state.position.fill_(SEQ); e.decode(STEPS)
        alone(); t1 = min(seconds(alone, STEPS) for _ in range(4))
        print(f"== {model} {fmt}; alone {t1:.1f} by {e.decoding(1)} [{time.time()-t0:.0f} s]", flush=True)
        for kind, size in todo:
            made, logits = {}, {}
            for name, (who, ring, together) in VARIANTS.items():
                chain._AHEAD = who; batch_plan._RING = ring; batch_plan._TOGETHER = together; batch_plan.plan_for.cache_clear()
                if kind == "drafts":
                    d = Drafts(e, size); e.position = SEQ; e.state.position.fill_(SEQ); d.check([7] * size); logits[name] = d.logits.float().clone()
                    def go(d=d):
                        for _ in range(STEPS): e.position = SEQ; d.check([7] * size)
                elif kind == "batch":
                    d = Batch(e, size, CAP)
                    def go(d=d):
                        d.position = SEQ; d.places[0] = SEQ; d.places[1] = SEQ + 1; d.tokens[SEQ] = 7; d.decode(STEPS)
                else:
                    d = Single(e)
                    def go(d=d):
                        d.follow(SEQ, 7); Batch.decode(d, STEPS)
                go(); made[name] = go
            best = {}
            for _ in range(4):
                for name, go in made.items(): best.setdefault(name, []).append(seconds(go, STEPS))
            print(f"  {kind} {size}: " + ", ".join(f"{name} {min(us):.1f} ({min(us)/t1:.3f})" for name, us in best.items()), f"[{time.time()-t0:.0f} s]", flush=True)
if __name__ == "__main__": run(float(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
