"""decode_step at Llama's sizes with other options: us a token."""
import sys, time
from rooflab import engine
from rooflab.ops import decoder, decoder_plan
LL = "llama-3-8b"
HEAD = {"q8_0": "q8_0", "int4_g128": "fp16"}
MF = [(LL, "int4_g128")]
SEQ, STEPS = 128, 96
QW = "qwen2.5-1.5b"
def sets(model, fmt):
    Z = {"HELD_BACK": 0, "FIRST_HELD": 0}
    for rung in ("9_flags_in_data", "10_int4_bytes"):
        yield rung, {}
        yield rung, Z
        for look, at in ((4, 4), (8, 4), (12, 4), (16, 4), (8, 2), (8, 6), (4, 6), (8, 7), (12, 6), (16, 2)): yield rung, Z | {"LOOK": look, "LOOK_AT": at}
def one(w):
    rung, m = w
    try: r = rung.cubin("90", m).resources[rung.entry]
    except Exception as e: return (rung.name, m, repr(e)[:200])
    return (rung.key, m, r) if r.spill_bytes else None
def compile_all(workers):
    todo = []
    ladder = {r.name: r for r in decoder.LADDERS["decode_step"]}
    for model, fmt in MF:
        shape = engine.spec(model).shape
        for rung, options in sets(model, fmt):
            try: todo.append((ladder[rung], decoder_plan.macros_for(ladder[rung], shape, fmt, HEAD[fmt], "90", options, 132)))
            except Exception as e: print("refused", fmt, rung, options, e)
    import multiprocessing as mp
    with mp.get_context("fork").Pool(workers) as pool:
        for b in pool.imap_unordered(one, todo):
            if b: print("SPILLS", str(b)[-120:])
    print(len(todo))
def seconds(fn, n):
    import torch
    torch.cuda.synchronize(); t = time.perf_counter(); fn(); torch.cuda.synchronize()
    return (time.perf_counter() - t) * 1e6 / n
def run(limit, only):
    import torch
    t0 = time.time()
    for model, fmt in MF:
        if only and only != model: continue
        spec = engine.spec(model); torch.cuda.empty_cache()
        weights = engine.random_weights(spec, fmt, HEAD[fmt], capacity=1024)
        e = engine.Engine(spec, weights, capacity=SEQ + 128)
        e.state.cache_k[:, :SEQ].normal_(); e.state.cache_v[:, :SEQ].normal_(); e.state.candidates[:, 0] = float("-inf")
        made = {}
        for rung, options in sets(model, fmt):
            def go(rung=rung, options=options, steps=STEPS):
                e.position = SEQ; e.state.position.fill_(SEQ)
                e.state.candidates[0, 0] = 0; e.state.candidates.view(torch.int32)[0, 1] = 7
                decoder.step(spec.shape, weights, e.state, steps=steps, inverse_temperature=0.0, seed=0, rung=rung, **options)
            try: go(steps=1); torch.cuda.synchronize(); made[rung[:2] + str(options).replace("'", "")] = go
            except Exception as error: print("failed", rung, options, repr(error)[:150])
        best = {}
        for _ in range(5):
            for name, go in made.items():
                if time.time() - t0 > limit: break
                best.setdefault(name, []).append(seconds(go, STEPS))
        base = {}
        for name, us in sorted(best.items(), key=lambda x: min(x[1])): print(f"{model[:5]} {name}: {min(us):.1f}", flush=True)
        print(f"[{time.time()-t0:.0f} s]")
        del e, weights
if __name__ == "__main__": compile_all(int(sys.argv[2])) if sys.argv[1] == "compile" else run(float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
