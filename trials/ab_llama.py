"""One tree's steps, to be compared with another tree's in the same call: us a token or step."""
import math, sys, time
from rooflab import engine
from rooflab.ops import batch_ops, batch_plan, decoder, decoder_plan
Q, LL = "qwen2.5-1.5b", "llama-3-8b"
HEAD = {"fp16": "fp16", "q8_0": "q8_0", "int4_g128": "fp16"}
SEQ, STEPS = 128, 96
CAP = SEQ + 128
RUNGS = {"q": ("9_flags_in_data", "7_split_k", "5_prefetch_at_barrier"), "l": ("9_flags_in_data", "7_split_k", "6_producer_warps")}
TODO = [(LL, "q8_0", ()), (LL, "int4_g128", ())]
def rungs_of(model, fmt):
    return RUNGS[model[0]] if fmt != "fp16" else RUNGS[model[0]][:1]
def one(w):
    rung, m = w
    r = rung.cubin("90", m).resources[rung.entry]
    return (rung.key, m, r) if r.spill_bytes else None
def compile_all(workers):
    todo = {}
    def add(rung, m): todo[rung.key, tuple(sorted(m.items()))] = rung
    for model, fmt, kinds in TODO:
        shape = engine.spec(model).shape
        for rung in decoder.LADDERS["decode_step"]:
            if rung.name in rungs_of(model, fmt):
                blocks = decoder_plan.blocks_for(shape, fmt, 132)
                add(rung, decoder_plan.macros_for(rung, shape, fmt, HEAD[fmt], "90", {}, blocks))
        for kind, size in kinds:
            for name in shape.matrices:
                f = HEAD[fmt] if name == "head" else fmt
                then = {"qkv": 1, "gate_up": 2, "head": 0}.get(name, 3)
                n, k = shape.matrices[name]; kd = decoder.FORMATS.index(f)
                p = batch_plan.plan_for(n, k, size, f, name in ("out", "down"), 132)
                m, _ = batch_plan.macros_for(p, n, size, kd, "90")
                add(batch_ops.LADDERS["batch_product"][0], m | {"FORMAT": kd, "EPILOGUE": then, "DRAFTS": int(kind == "drafts" and then == 1)})
                if then == 3:
                    w = shape.hidden; held = 1 if w <= 4096 else 2
                    add(batch_ops.LADDERS["batch_rmsnorm"][0], {"PARTS": held, "THREADS": 32 * math.ceil(w / (128 * held)), "SPLITS": p.splits})
            pairs = shape.kv_heads * (-(-size * (shape.heads // shape.kv_heads) // 8) if kind == "drafts" else size)
            warps, stages = batch_plan.warps_for(shape.head_dim, CAP, batch_plan.splits_for(CAP, pairs, 132), "90")
            add(batch_ops.LADDERS["batch_attention"][0], {"WARPS": warps, "STAGES": stages, "HEAD_DIM": shape.head_dim, "TOKENS": size if kind == "drafts" else 1})
    import multiprocessing as mp
    with mp.get_context("fork").Pool(workers) as pool:
        for b in pool.imap_unordered(one, [(r, dict(m)) for (_, m), r in todo.items()]):
            if b: print("SPILLS", b)
    print(len(todo))
def seconds(fn, n):
    import torch
    torch.cuda.synchronize(); t = time.perf_counter(); fn(); torch.cuda.synchronize()
    return (time.perf_counter() - t) * 1e6 / n
def run(limit, only):
    import torch
    from rooflab.engine.batch import Batch
    from rooflab.engine.drafts import Drafts
    from rooflab.engine.single import Single
    t0 = time.time(); print(torch.cuda.get_device_name())
    for model, fmt, todo in TODO:
        if only and only not in f"{model} {fmt}": continue
        if time.time() - t0 > limit: print("OUT OF TIME"); break
        spec = engine.spec(model); torch.cuda.empty_cache(); torch.manual_seed(0)
        weights = engine.random_weights(spec, fmt, HEAD[fmt], capacity=1024)
        e = engine.Engine(spec, weights, capacity=CAP)
        torch.manual_seed(1)
        e.state.cache_k[:, :SEQ].normal_(); e.state.cache_v[:, :SEQ].normal_()
        e.state.candidates[:, 0] = float("-inf")
        line, sums = [], []
        def begin():
            e.position = SEQ; e.state.position.fill_(SEQ)
            e.state.candidates[0, 0] = 0; e.state.candidates.view(torch.int32)[0, 1] = 7
        t1 = None
        for rung in rungs_of(model, fmt):
            begin(); e._decode(rung, 1); sums.append(round(float(e.state.logits.float().abs().mean()), 4))
            def alone(rung=rung): begin(); e._decode(rung, STEPS)
            alone(); us = min(seconds(alone, STEPS) for _ in range(12)); line.append(f"{rung} {us:.1f}")
            t1 = min(t1 or us, us)
        for kind, size in todo:
            begin()
            if kind == "drafts":
                d = Drafts(e, size); d.check([7] * size); sums.append(round(float(d.logits[0].float().abs().mean()), 4))
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
                go(steps=1); sums.append(round(float(d.logits.reshape(-1, d.logits.shape[-1])[0].float().abs().mean()), 4))
            go(); us = min(seconds(go, STEPS) for _ in range(6))
            line.append(f"{kind} {size} {us:.1f}" + (f" ({us / t1:.3f})" if kind == "drafts" else ""))
        print(f"{model[:5]} {fmt}: " + ", ".join(line), sums, f"[{time.time()-t0:.0f} s]", flush=True)
        del e, weights
if __name__ == "__main__": compile_all(int(sys.argv[2])) if sys.argv[1] == "compile" else run(float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
