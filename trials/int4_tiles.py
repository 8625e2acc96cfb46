"""Trials of int4 14 (SHARE) beside 11, 13 and cuBLAS."""
import itertools, math, os, sys, time
import numpy as np
from rooflab import ops
from rooflab.ops import int4, int4_choice, stream_k, decoder_ops
SHAPES = [(2560, 1920, 382), (2048, 2048, 300), (1536, 1536, 200), (3072, 2048, 256), (1024, 2944, 258), (4096, 4096, 128),
          (2304, 1152, 94), (1792, 3584, 350), (5120, 1280, 256), (3584, 2560, 190), (2560, 4096, 160), (1280, 5120, 500), (4096, 2048, 200), (8192, 1024, 100)]
LAWS = [(1, 1, 2), (2, 2, 1), (2, 2, 2), (2, 1, 2), (1, 1, 3)]
AT = {1: 132, 2: 130, 4: 116, 3: 114, 8: 104}
def ways(n, k, batch):
    found = []
    for tiles in range(math.ceil(batch / 192), math.ceil(batch / 32) + 1):
        for share in (1, 2, 4):
            step = 8 * share
            tokens = step * math.ceil(batch / tiles / step)
            if tokens not in (32, 48, 64) and tokens < 72: continue
            if tokens > 192 or tokens % step: continue
            for units, rg, kg in LAWS:
                if (units // rg) * tokens > 192: continue
                stages = min(8, int4_choice._SHARED // (kg * (units * 4224 + 256 * tokens)))
                sums = kg * tokens * (64 * units + 4) * 4
                if stages < 2 or sums > int4_choice._SHARED: continue
                for cluster in (1, 2, 4):
                    whole = share * cluster
                    if whole > 8 or cluster * kg > k // 128: continue
                    blocks = math.ceil(math.ceil(n / (64 * units)) / share) * share * cluster * math.ceil(batch / tokens)
                    if blocks > AT[whole] or blocks < 40: continue
                    m = {"UNITS": units, "ROW_GROUPS": rg, "K_GROUPS": kg, "CLUSTER": cluster, "STAGES": stages, "RESIDENT": 1, "TOKENS": tokens}
                    if share > 1: m["SHARE"] = share
                    found.append(m)
    # the most tokens and fewest turns first
    return found
def rung(m): return "14_multicast" if "SHARE" in m else "11_tma"
def one(job):
    name, m = job
    r = next(r for r in int4.LADDERS["int4"] if r.name == name)
    try: c = r.cubin("90", m)
    except Exception as e: return (name, m, repr(e)[:200])
    res = c.resources[r.entry]
    return (name, m, res) if res.spill_bytes else None
def compile_all(workers):
    todo = {}
    for s in SHAPES:
        w = ways(*s); print(s, len(w))
        for m in w: todo[rung(m), tuple(sorted(m.items()))] = 1
        with ops.as_on("h200", "90"):
            name, m = int4_choice.many_for(*s)
            print("   chosen", name, m)
            if name == "11_tma": todo[name, tuple(sorted(m.items()))] = 1
    print(len(todo))
    import multiprocessing as mp
    with mp.get_context("fork").Pool(workers) as pool:
        bad = [b for b in pool.imap_unordered(one, [(n, dict(m)) for n, m in todo]) if b]
    for b in bad: print("BAD", b)
def graph_us(works, limit=0.05):
    import torch
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for w in works: w()
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g, stream=side):
        for w in works: w()
    a, b = torch.cuda.Event(True), torch.cuda.Event(True)
    out = []
    for _ in range(7):
        torch.cuda.synchronize(); time.sleep(0.002)
        a.record(); g.replay(); b.record(); torch.cuda.synchronize()
        out.append(a.elapsed_time(b) * 1e3 / len(works))
    return float(np.median(out))
def run(limit):
    import torch, cupy
    t0 = time.time(); print(torch.cuda.get_device_name())
    for n, k, batch in SHAPES:
        if time.time() - t0 > limit: print("OUT OF TIME"); break
        units, groups = math.ceil(n / 64), k // 128
        size = units * groups * 1056 * 4 + batch * k * 2 + batch * n * 2
        copies = min(40, max(8, math.ceil(150e6 / size)))
        blocks = []
        for i in range(copies):
            b = torch.randint(-2**31, 2**31 - 1, (units, groups, 1056), dtype=torch.int32, device="cuda")
            b[..., :32] = torch.full((units, groups, 64), 0.01, dtype=torch.float16, device="cuda").view(torch.int32)
            blocks.append(b)
        xs = [torch.randn(batch, k, dtype=torch.float16, device="cuda") for _ in range(copies)]
        ys = [torch.empty(batch, n, dtype=torch.float16, device="cuda") for _ in range(copies)]
        tiles = [int4.Tiles(b, n, k) for b in blocks]
        half = torch.empty((n, k), dtype=torch.float16, device="cuda")
        decoder_ops.dequantise_tiles(tiles[0], out=half)
        want = xs[0].float() @ half.float().t()
        halves = [half.clone() for _ in range(copies)]
        lib = graph_us([lambda i=i: torch.matmul(xs[i], halves[i].t(), out=ys[i]) for i in range(copies)])
        del halves
        rows = []
        def timed(name, m):
            for y in ys[:1]: y.fill_(float("nan"))
            def go(i): int4.matmul(xs[i], tiles[i], out=ys[i], rung=name, **m)
            go(0); torch.cuda.synchronize()
            off = float((ys[0].float() - want).abs().max() / want.abs().max())
            us = graph_us([lambda i=i: go(i) for i in range(copies)])
            if not off < 3e-3: print("WRONG", name, m, off)
            return us
        name, m = int4_choice.many_for(n, k, batch)
        now = timed(name, m)
        for m_ in ways(n, k, batch):
            try: us = timed(rung(m_), m_)
            except Exception as e: print("failed", m_, repr(e)[:120]); continue
            rows.append((us, rung(m_), m_))
            print("ROW", n, k, batch, f"{us:.2f}", rung(m_), " ".join(f"{a}={b}" for a, b in m_.items()))
        rows.sort(key=lambda r: r[0])
        best11 = next((r for r in rows if r[1] == "11_tma"), None)
        best14 = next((r for r in rows if r[1] != "11_tma"), None)
        print(f"## {n}x{k}@{batch} cublas {lib:.2f} now {now:.2f} {name} | 11 {best11[0] if best11 else 0:.2f} {best11[2] if best11 else ''} | 14 {best14[0] if best14 else 0:.2f} {best14[2] if best14 else ''} [{time.time()-t0:.0f} s]", flush=True)
if __name__ == "__main__":
    compile_all(int(sys.argv[2])) if sys.argv[1] == "compile" else run(float(sys.argv[2]))
