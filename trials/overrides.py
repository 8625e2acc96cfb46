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
SETS = {"q8_0": {"law": ({}, 96), "both": (G8 | D8, 96), "g112": ({"gate_up": (112,1,12,2)} | D8, 96), "r88": (G8|D8, 88), "r104": (G8|D8, 104), "r112": (G8|D8, 112), "o48": (G8|D8|{"out": (48,1,12,2)}, 96), "d20": (G8|{"down": (20,5,7,4)}, 96), "q43": (G8|D8|{"qkv": (43,1,12,2)}, 96)},
        "int4_g128": {"law": ({}, 128), "r72": ({}, 72), "r60": ({}, 60), "r48": ({}, 48), "r84": ({}, 84), "g72": (GI, 72), "g60": (GI, 60), "g48": (GI, 48), "g128": (GI, 128), "o72": (GI | {"out": (48,1,12,1)}, 72), "g94": ({"gate_up": (94,1,12,1)}, 72), "q72": (GI | {"qkv": (43,1,12,1)}, 72)}}
NOW = {}
def planned(n, k, batch, format, divided, sms): return NOW.get((n, k, divided)) or plan_for(n, k, batch, format, divided, sms)
batch_ops.plan_for = planned
def use(fmt, v):
    plans, ring = SETS[fmt][v]
    NOW.clear()
    for name, p in plans.items(): NOW[(*engine.spec(Q).shape.matrices[name], name in ("out", "down"))] = Plan(*p)
    r = list(RING); r[decoder.FORMATS.index(fmt)] = ring; batch_plan._RING = tuple(r)
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
                m, _ = macros_for(p, n, 8, kd, "90")
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
