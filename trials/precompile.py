import multiprocessing as mp, sys
from rooflab import engine
from rooflab.ops import batch_choice, batch_ops, batch_plan, decoder, decoder_ops
todo = {}
(P,), (R,) = batch_ops.LADDERS["batch_product"], batch_ops.LADDERS["batch_rmsnorm"]
for model, batches in (("qwen2.5-1.5b", (8, 16, 32)), ("llama-3-8b", (1, 8))):
    shape = engine.spec(model).shape
    for kind, fmt in enumerate(decoder.FORMATS):
        for B in batches:
            for name in ("qkv", "out", "gate_up", "down", "head"):
                heads = {"fp16": ["fp16"], "q8_0": ["q8_0"], "int4_g128": ["fp16"]}[fmt] if name == "head" else [fmt]
                for f in heads:
                    n, k = shape.matrices[name]; kd = decoder.FORMATS.index(f)
                    p = batch_plan.plan_for(n, k, B, f, name in ("out", "down"), 132)
                    if p is None: continue
                    m, _ = batch_plan.macros_for(p, n, B, kd, "90")
                    for then, d in {"qkv": [(1, 0), (1, 1)], "gate_up": [(2, 0)], "head": [(0, 0), (4, 0)]}.get(name, [(3, 0)]):
                        todo[P, tuple(sorted((m | {"FORMAT": kd, "EPILOGUE": then, "DRAFTS": d}).items()))] = 1
                    if name in ("out", "down"):
                        w = shape.hidden; held = 1 if w <= 4096 else 2
                        todo[R, tuple(sorted({"PARTS": held, "THREADS": 32 * -(-w // (128 * held)), "SPLITS": p.splits}.items()))] = 1
for r in (batch_choice.LADDERS["draft_accept"][0],): todo[r, ()] = 1
for f in (0, 1):
    for h in (0, 10): todo[decoder_ops.LADDERS["embedding"][0], (("FORMAT", f), ("HANDED", h))] = 1
def one(w):
    rung, m = w
    c = rung.cubin("90", rung.with_defaults(dict(m)) if not m else dict(m)); r = c.resources[rung.entry]
    return (rung.key, m, r) if r.spill_bytes else None
with mp.get_context("fork").Pool(2) as pool:
    for b in pool.imap_unordered(one, list(todo)):
        if b: print("SPILLS", b)
print(len(todo))
