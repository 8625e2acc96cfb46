"""What bounds a product of a few tokens: itself again and again over several matrices, with parts of its work left out."""
import sys, time
import numpy as np
from rooflab import engine
from rooflab.ops import batch_ops, batch_plan, decoder, int4
from rooflab.numerics.quant import Planes
Q, LL = "qwen2.5-1.5b", "llama-3-8b"
THEN = {"qkv": 0, "gate_up": 2, "out": 3, "down": 3}
loaded = batch_ops.loaded
MODE = {"rung": None, "ABLATE": 0}
RUNGS = {r.name: r for r in batch_ops.LADDERS["batch_product"]}
def patched(rung, macros):
    m = dict(macros)
    return loaded(rung, tuple(sorted(m.items())))
batch_ops.loaded = patched
VARIANTS = {"fp16": ["1"], "q8_0": ["1"], "int4_g128": ["1"]}
CASES = [(LL, "int4_g128", n, 1) for n in ("gate_up", "down", "qkv", "out")] + [(Q, f, n, 8) for f in ("q8_0", "int4_g128") for n in ("gate_up", "down", "qkv", "out")]
def use(v):
    parts = v.split()
    batch_ops.RUNG = parts[0]
    MODE["ABLATE"] = int(parts[1][1:]) if len(parts) > 1 else 0
def weights(n, k, fmt, count):
    import torch
    out = []
    for _ in range(count):
        if fmt == "fp16": out.append((torch.randn(n, k, device="cuda", dtype=torch.float16)) / 64)
        elif fmt == "q8_0":
            out.append(Planes(quants=torch.randint(-127, 127, (n, k), dtype=torch.int8, device="cuda"), scales=(torch.rand(n, k // 32, device="cuda") * 1e-3).half()))
        else:
            b = torch.randint(-2**31, 2**31 - 1, (n // 64 * (k // 128), 1056), dtype=torch.int32, device="cuda")
            b[:, :32] = (torch.rand(len(b), 64, device="cuda") * 1e-3).half().view(torch.int32)
            out.append(int4.Tiles(b.view(torch.uint32) if hasattr(torch, "uint32") else b, n, k))
    return out
def macro_sets():
    for model, fmt, name, size in CASES:
        n, k = engine.spec(model).shape.matrices[name]
        for v in VARIANTS[fmt]:
            yield model, fmt, name, size, n, k, v
def compile_all(workers):
    todo = set()
    for model, fmt, name, size, n, k, v in macro_sets():
        use(v); kd = decoder.FORMATS.index(fmt)
        p = batch_plan.plan_for(n, k, size, fmt, THEN[name] == 3, 132)
        batch_plan.RUNG2 = v[0] == "2"
        m, sh = batch_plan.macros_for(p, n, size, kd, "90")
        m |= {"EPILOGUE": THEN[name], "DRAFTS": 0}
        m |= {"FORMAT": kd}
        todo.add((v[0], tuple(sorted(m.items()))))
        if len(v) == 1: print(model, fmt, name, size, tuple(p), m, sh)
    import multiprocessing as mp
    with mp.get_context("fork").Pool(workers) as pool:
        for b in pool.imap_unordered(one, sorted(todo)):
            if b: print("SPILLS", b)
    print(len(todo))
def one(w):
    v, m = w
    rung = RUNGS["1_pdl" if v == "1" else "2_whole_blocks"]
    r = rung.cubin("90", dict(m)).resources[rung.entry]
    return (v, m, r) if r.spill_bytes else None
def seconds(fn, n):
    import torch
    torch.cuda.synchronize(); t = time.perf_counter(); fn(); torch.cuda.synchronize()
    return (time.perf_counter() - t) * 1e6 / n
def run(limit, only):
    import torch
    t0 = time.time(); print(torch.cuda.get_device_name())
    for model, fmt, name, size in CASES:
        if only and only not in f"{model} {fmt} {name} {size}": continue
        if time.time() - t0 > limit: print("OUT OF TIME"); break
        n, k = engine.spec(model).shape.matrices[name]
        each = n * k * (2, 1.0625, 0.515625)[decoder.FORMATS.index(fmt)]
        count = max(2, int(np.ceil(4e8 / each)))
        ws = weights(n, k, fmt, count); x = torch.randn(size, k, dtype=torch.float16, device="cuda")
        then = THEN[name]; graphs, first, off = {}, None, {}
        for v in VARIANTS[fmt]:
            use(v); batch_plan.RUNG2 = v[0] == "2"
            if then == 3:
                splits = batch_ops.parts_of(n, k, size, fmt, 132)
                out = torch.zeros(splits, size, n, device="cuda")
            else: out = torch.zeros(size, n // 2 if then == 2 else n, dtype=torch.float16, device="cuda")
            def launch(i, out=out): batch_ops.product(x, ws[i % count], out=out, then=then)
            launch(0); torch.cuda.synchronize()
            got = out.sum(0) if then == 3 else out.clone()
            if first is None: first = got.float()
            off[v] = float((got.float() - first).abs().max() / first.abs().max())
            g = torch.cuda.CUDAGraph(); side = torch.cuda.Stream(); launches = max(56, count)
            with torch.cuda.graph(g, stream=side):
                for i in range(launches): launch(i)
            graphs[v] = (g, launches)
        best = {}
        for _ in range(6):
            for v, (g, l) in graphs.items(): best.setdefault(v, []).append(seconds(g.replay, l))
        print(f"{model[:5]} {fmt} {name} {size}: roof {each / 4.5e6:.2f}; " + ", ".join(f"[{v}] {min(us):.2f}" + (f" off {off[v]:.4f}" if v in "12" else "") for v, us in best.items()), f"[{time.time()-t0:.0f} s]", flush=True)
        del ws; torch.cuda.empty_cache()
def profiled(fmt, name, size, model, v):
    import torch
    n, k = engine.spec(model).shape.matrices[name]
    ws = weights(n, k, fmt, 2); x = torch.randn(size, k, dtype=torch.float16, device="cuda")
    use(v); batch_plan.RUNG2 = v[0] == "2"; then = THEN[name]
    if then == 3: out = torch.zeros(batch_ops.parts_of(n, k, size, fmt, 132), size, n, device="cuda")
    else: out = torch.zeros(size, n // 2 if then == 2 else n, dtype=torch.float16, device="cuda")
    for i in range(3): batch_ops.product(x, ws[i % 2], out=out, then=then)
    torch.cuda.synchronize()
if __name__ == "__main__":
    if sys.argv[1] == "compile": compile_all(int(sys.argv[2]))
    elif sys.argv[1] == "profile": profiled(*sys.argv[2:4], int(sys.argv[4]), *sys.argv[5:7])
    else: run(float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
