import sys, time
import numpy as np
from rooflab import engine
def run(limit):
    import torch
    t0 = time.time(); print(torch.cuda.get_device_name())
    for model, fmt, n in (("qwen2.5-1.5b", "fp16", 1848), ("qwen2.5-1.5b", "int4_g128", 1848), ("qwen2.5-1.5b", "q8_0", 1848), ("qwen2.5-1.5b", "fp16", 8192), ("llama-3-8b", "fp16", 1848)):
        if time.time() - t0 > limit: print("OUT OF TIME"); break
        spec = engine.spec(model); torch.cuda.empty_cache()
        w = engine.random_weights(spec, fmt, "fp16" if fmt != "q8_0" else "q8_0", capacity=n + 8)
        ids = np.random.default_rng(3).integers(0, 9999, n).tolist()
        made, logits = {}, {}
        for name in ("7_fused", "8_last_token"):
            e = engine.Engine(spec, w, capacity=n + 8, paths=engine.PROMPTS[name])
            for _ in range(3): e.reset(); e.prefill(ids)
            made[name] = e; logits[name] = e.state.logits.float().clone()
        best = {}
        for _ in range(8):
            for name, e in made.items():
                torch.cuda.synchronize(); time.sleep(0.06); e.reset(); torch.cuda.synchronize()
                t = time.perf_counter(); e.prefill(ids); torch.cuda.synchronize()
                best.setdefault(name, []).append((time.perf_counter() - t) * 1e6)
        off = float((logits["7_fused"] - logits["8_last_token"]).abs().max())
        print(model, fmt, n, {k: f"{np.median(v):.0f} us, {n*1e6/np.median(v):,.0f} tok/s (best {n*1e6/min(v):,.0f})" for k, v in best.items()}, f"off {off:.4f} [{time.time()-t0:.0f} s]", flush=True)
run(float(sys.argv[1]))
