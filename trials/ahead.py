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
def of(g, d): return {"gate_up": g, "down": d}
# a product's ring in KiB, its TILES and AHEAD
SETS = {"q8_0": {"both": (B, {}), "g4": (B, of((96, 4, 4), (96, 4, 0))), "g2": (B, of((96, 4, 2), (96, 4, 0))), "g8_6": (B, of((112, 4, 6), (96, 4, 0))), "g8_4": (B, of((112, 4, 4), (96, 4, 0))), "g10_6": (B, of((140, 4, 6), (96, 4, 0))),
                 "d6": (B, of((96, 4, 0), (96, 4, 6))), "d4": (B, of((96, 4, 0), (96, 4, 4))), "d14_8": (B, of((96, 4, 0), (128, 4, 8))), "gd": (B, of((112, 4, 4), (128, 4, 8)))},
        "int4_g128": {"g60": (GI, {x: (60, 4, 0) for x in ALL}), "g2": (GI, of((60, 4, 2), (60, 4, 0))), "g6_4": (GI, of((84, 4, 4), (60, 4, 0))), "g8_4": (GI, of((112, 4, 4), (60, 4, 0))), "d4_2": (GI, of((60, 4, 0), (66, 4, 2))), "g6_4d": (GI, of((84, 4, 4), (66, 4, 2)))}}
NOW = {}
def planned(n, k, batch, format, divided, sms): return NOW.get((n, k, divided)) or plan_for(n, k, batch, format, divided, sms)
batch_ops.plan_for = planned
def use(fmt, v):
    plans, rings = SETS[fmt][v]
    NOW.clear()
    for name, p in plans.items(): NOW[(*engine.spec(Q).shape.matrices[name], name in ("out", "down"))] = Plan(*p)
    OWN.clear()
    for name, r in rings.items(): OWN[engine.spec(Q).shape.matrices[name][0], planned(*engine.spec(Q).shape.matrices[name], 8, fmt, name in ("out", "down"), 132)] = r
OWN = {}
def macros_of(plan, n, batch, kind, arch):
    if (n, plan) not in OWN: return macros_for(plan, n, batch, kind, arch)
    ring, tiles, ahead = OWN[n, plan]
    old = batch_plan._RING, batch_plan._TOGETHER
    batch_plan._RING, batch_plan._TOGETHER = (ring,) * 3, tiles
    found = macros_for(plan, n, batch, kind, arch)
    batch_plan._RING, batch_plan._TOGETHER = old
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
    for fmt in SETS:
        kd = decoder.FORMATS.index(fmt)
        for v in SETS[fmt]:
            use(fmt, v)
            for name in ("qkv", "out", "gate_up", "down"):
                n, k = shape.matrices[name]; then = {"qkv": 1, "gate_up": 2}.get(name, 3)
                p = planned(n, k, 8, fmt, then == 3, 132)
                assert p.splits * p.warps * p.chunks * batch_plan._CHUNK[kd] == k, (name, p)
                m, sh = macros_of(p, n, 8, kd, "90"); print(fmt, v, name, tuple(p), m, sh)
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
    for fmt in SETS:
        spec = engine.spec(Q); shape = spec.shape
        w = engine.random_weights(spec, fmt, HEAD[fmt], capacity=1024); e = engine.Engine(spec, w, capacity=CAP)
        e.state.cache_k[:, :SEQ].normal_(); e.state.cache_v[:, :SEQ].normal_(); e.state.candidates[:, 0] = float("-inf")
        def begin(): e.position = SEQ; e.state.position.fill_(SEQ); e.state.candidates[0, 0] = 0; e.state.candidates.view(torch.int32)[0, 1] = 7
        def alone(): begin(); e._decode("9_flags_in_data", STEPS)
        alone(); t1 = min(seconds(alone, STEPS) for _ in range(5))
        for kind in ("drafts", "batch"):
            made = {}
            for v in SETS[fmt]:
                use(fmt, v); begin()
                if kind == "drafts":
                    d = Drafts(e, 8); d.check([7] * 8)
                    def go(d=d):
                        for _ in range(STEPS): e.position = SEQ; d.check([7] * 8)
                else:
                    d = Batch(e, 8, CAP)
                    def go(d=d, steps=STEPS):
                        d.position = SEQ; d.places[0] = SEQ; d.places[1] = SEQ + 1; d.tokens[SEQ] = 7; Batch.decode(d, steps)
                    go(steps=1)
                go(); made[v] = go
            best = {}
            for _ in range(6):
                for k, go in made.items(): best.setdefault(k, []).append(seconds(go, STEPS))
            print(fmt, kind, f"alone {t1:.1f}:", ", ".join(f"{k} {min(v):.1f} ({min(v)/t1:.3f})" for k, v in best.items()), f"[{time.time()-t0:.0f} s]", flush=True)
if __name__ == "__main__": compile_all(int(sys.argv[2])) if sys.argv[1] == "compile" else run(float(sys.argv[2]))
