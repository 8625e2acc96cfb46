"""A check of 8 drafts with other divisions of one product at a time, in turns."""
import sys, time, math
from rooflab import engine
from rooflab.ops import batch_ops, batch_plan, decoder
from rooflab.ops.batch_plan import Plan
Q = "qwen2.5-1.5b"
HEAD = {"fp16": "fp16", "q8_0": "q8_0", "int4_g128": "fp16"}
SEQ, STEPS, CAP = 128, 96, 256
plan_for, macros_for = batch_plan.plan_for, batch_plan.macros_for
G8, D8 = {"gate_up": (120,1,12,2)}, {"down": (24,5,7,4)}
GI = {"gate_up": (112,1,12,1)}
B = G8 | D8
ALL = ("gate_up", "down", "qkv", "out")
def of(d, **more): return {"down": d} | more
D6 = of((96, 4, 6))
I4 = {x: (60, 4, 0) for x in ("gate_up", "qkv", "out")} | {"down": (66, 4, 2)}
# a product's ring in KiB, its TILES and AHEAD
SETS = {("q8_0", 8): {"d6": (B, D6), "d8": (B, of((96, 4, 8))), "d12_6": (B, of((112, 4, 6))), "d8of8": (B, of((78, 4, 0))), "d6of8": (B, of((78, 4, 6))), "q2": (B, D6 | {"qkv": (96, 4, 2)}), "g8_6": (B, D6 | {"gate_up": (112, 4, 6)}), "g112": (B | {"gate_up": (112,1,12,2)}, D6), "g125": (D8, D6), "14_4": (G8 | {"down": (24,5,14,2)}, of((96, 4, 4))), "o96": (B | {"out": (96,1,12,2)}, D6), "o96_2": (B | {"out": (96,1,12,2), "qkv": (128,1,12,2)}, D6)},
        ("int4_g128", 8): {"i": (GI, I4), "d6_2": (GI, I4 | {"down": (100, 4, 2)}), "d6_4": (GI, I4 | {"down": (100, 4, 4)}), "g120": ({"gate_up": (120,1,12,1)}, I4), "o48": (GI | {"out": (48,1,12,1)}, I4), "o48_2": (GI | {"out": (48,2,6,1)}, I4), "t2": (GI, I4 | {"gate_up": (60, 2, 0)})},
        ("fp16", 8): {"law": ({}, {}), "d5": ({}, of((128, 4, 5))), "d7": ({}, of((128, 4, 7))), "d3": ({}, of((128, 4, 3)))},
        ("fp16", 32): {"law": ({}, {}), "d2": ({}, of((96, 4, 2))), "d1": ({}, of((96, 4, 1))), "g2": ({}, {"gate_up": (96, 4, 2)})},
        ("int4_g128", 32): {"law": ({}, {}), "d2": ({}, of((48, 8, 2))), "g2": ({}, {"gate_up": (48, 8, 2)}), "g60": ({}, {"gate_up": (60, 8, 2)})}}
NOW = {}
def planned(n, k, batch, format, divided, sms): return NOW.get((n, k, divided)) or plan_for(n, k, batch, format, divided, sms)
batch_ops.plan_for = planned
def use(key, v):
    fmt, size = key
    plans, rings = SETS[key][v]
    NOW.clear()
    for name, p in plans.items(): NOW[(*engine.spec(Q).shape.matrices[name], name in ("out", "down"))] = Plan(*p)
    OWN.clear()
    for name, r in rings.items(): OWN[engine.spec(Q).shape.matrices[name][0], planned(*engine.spec(Q).shape.matrices[name], size, fmt, name in ("out", "down"), 132)] = r
OWN = {}
def macros_of(plan, n, batch, kind, arch):
    if (n, plan) not in OWN: return macros_for(plan, n, batch, kind, arch)
    ring, tiles, ahead = OWN[n, plan]
    old = batch_plan._RING, batch_plan._TOGETHER, batch_plan._WIDE_RING, batch_plan._QUICK
    batch_plan._RING, batch_plan._TOGETHER, batch_plan._WIDE_RING, batch_plan._QUICK = (ring,) * 3, tiles, (ring,) * 3, tiles
    found = macros_for(plan, n, batch, kind, arch)
    batch_plan._RING, batch_plan._TOGETHER, batch_plan._WIDE_RING, batch_plan._QUICK = old
    if ahead: found[0]['AHEAD'] = ahead
    return found
batch_ops.macros_for = macros_of
RING = batch_plan._RING
def one(w):
    rung, m = w
    r = rung.cubin("90", m).resources[rung.entry]
    return (rung.key, m, r) if r.spill_bytes else None
def compile_all(workers):
    todo = {}; shape = engine.spec(Q).shape
    for key in SETS:
        fmt, size = key; kd = decoder.FORMATS.index(fmt)
        for v in SETS[key]:
            use(key, v)
            for name in ("qkv", "out", "gate_up", "down"):
                n, k = shape.matrices[name]; then = {"qkv": 1, "gate_up": 2}.get(name, 3)
                p = planned(n, k, size, fmt, then == 3, 132)
                assert p.splits * p.warps * p.chunks * batch_plan._CHUNK[kd] == k, (name, p)
                m, sh = macros_of(p, n, size, kd, "90"); print(fmt, v, name, tuple(p), m, sh)
                for d in {0, int(then == 1)}: todo[tuple(sorted((m | {"FORMAT": kd, "EPILOGUE": then, "DRAFTS": d}).items()))] = batch_ops.LADDERS["batch_product"][0]
                if then == 3: todo[tuple(sorted({"PARTS": 1, "THREADS": 384, "SPLITS": p.splits}.items()))] = batch_ops.LADDERS["batch_rmsnorm"][0]
    import multiprocessing as mp
    with mp.get_context("fork").Pool(workers) as pool:
        for b in pool.imap_unordered(one, [(r, dict(m)) for m, r in todo.items()]):
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
    t0 = time.time()
    for key in SETS:
        fmt, size = key
        spec = engine.spec(Q); shape = spec.shape
        w = engine.random_weights(spec, fmt, HEAD[fmt], capacity=1024); e = engine.Engine(spec, w, capacity=CAP)
        e.state.cache_k[:, :SEQ].normal_(); e.state.cache_v[:, :SEQ].normal_(); e.state.candidates[:, 0] = float("-inf")
        def begin(): e.position = SEQ; e.state.position.fill_(SEQ); e.state.candidates[0, 0] = 0; e.state.candidates.view(torch.int32)[0, 1] = 7
        def alone(): begin(); e._decode("9_flags_in_data", STEPS)
        alone(); t1 = min(seconds(alone, STEPS) for _ in range(5))
        for kind in (("drafts", "batch") if fmt == "q8_0" else ("drafts",) if size == 8 else ("batch",)):
            made = {}
            for v in SETS[key]:
                use(key, v); begin()
                if kind == "drafts":
                    d = Drafts(e, size); d.check([7] * size)
                    def go(d=d):
                        for _ in range(STEPS): e.position = SEQ; d.check([7] * size)
                else:
                    d = Batch(e, size, CAP)
                    def go(d=d, steps=STEPS):
                        d.position = SEQ; d.places[0] = SEQ; d.places[1] = SEQ + 1; d.tokens[SEQ] = 7; Batch.decode(d, steps)
                    go(steps=1)
                go(); made[v] = go
            best = {}
            for _ in range(6):
                for k, go in made.items(): best.setdefault(k, []).append(seconds(go, STEPS))
            print(fmt, kind, size, f"alone {t1:.1f}:", ", ".join(f"{k} {min(v):.1f} ({min(v)/t1:.3f})" for k, v in best.items()), f"[{time.time()-t0:.0f} s]", flush=True)
if __name__ == "__main__": compile_all(int(sys.argv[2])) if sys.argv[1] == "compile" else run(float(sys.argv[2]))
