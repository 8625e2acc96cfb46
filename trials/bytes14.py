import sys
from rooflab.ops import int4, int4_choice
SHAPES = [(28672, 8192), (8192, 8192), (10240, 2560), (5120, 5120), (14336, 4096), (24320, 1280), (20480, 6144), (3200, 1408), (12288, 3072), (1536, 8960)]
def variants(n, k):
    out = {"table": None}
    d = int4.own_k(k)
    for s in (2, 3, 4, 6, 8):
        for a in (1, 2, 3, 4):
            for t in (4, 8):
                if a > s or (t == 4 and s * d["CHUNKS"] < 12): continue
                if d["WARPS"] * (s * d["CHUNKS"] * 1152 + t * 128) < 227 << 10: out[f"s{s}a{a}t{t}"] = {"STAGES": s, "AHEAD": a, "TILES": t}
    return out
if sys.argv[1:] == ["compile"]:
    import multiprocessing as mp
    todo = {}
    r14 = next(r for r in int4.LADDERS["int4"] if r.name == "14_bytes")
    for n, k in SHAPES:
        for v, o in variants(n, k).items():
            if o is None:
                name, m = int4_choice.choose(n, k, 1, True, "h200"); r = next(r for r in int4.LADDERS["int4"] if r.name == name); m = r.with_defaults(m)
            else: r, m = r14, r14.with_defaults({**int4.own_k(k), **o})
            todo[r, tuple(sorted(m.items()))] = 1
    def one(w):
        c = w[0].cubin("90a" if "90a" in w[0].archs and len(w[0].archs) == 1 else "90", dict(w[1])).resources[w[0].entry]
        return (w[0].key, w[1], c) if c.spill_bytes else None
    with mp.get_context("fork").Pool(2) as pool:
        for b in pool.imap_unordered(one, list(todo)):
            if b: print("SPILLS", b)
    print(len(todo)); sys.exit()
import cupy, numpy as np
def timed(n, k, o, blocks, x, outs):
    copies = len(blocks)
    s = cupy.cuda.Stream(non_blocking=True)
    def go(i):
        w = int4.Tiles(blocks[i], n, k)
        if o is None: int4.matmul(x, w, out=outs)
        else: int4.matmul(x, w, out=outs, rung="14_bytes", **o)
    with s:
        go(0); s.synchronize(); s.begin_capture()
        for i in range(copies): go(i)
        g = s.end_capture()
        for _ in range(2): g.launch(s)
        t = []
        for _ in range(7):
            a, b = cupy.cuda.Event(), cupy.cuda.Event()
            a.record(s); g.launch(s); b.record(s); b.synchronize(); t.append(cupy.cuda.get_elapsed_time(a, b) * 1e3 / copies)
    return sorted(t)[3], sorted(t)[0]
for n, k in SHAPES:
    size = -(-n // 64) * (k // 128) * 4224
    copies = max(8, min(64, int(6e8 / size)))
    blocks = []
    for i in range(copies):
        b = cupy.random.randint(0, 2**31 - 1, (-(-n // 64), k // 128, 1056), dtype=cupy.int32).view(cupy.uint32)
        b[:, :, :32] = 0x1c001c00; blocks.append(b)
    x = cupy.random.standard_normal((1, k), dtype=cupy.float32).astype(cupy.float16); out = cupy.empty((1, n), cupy.float16)
    found = {}
    for v, o in variants(n, k).items():
        try: found[v] = timed(n, k, o, blocks, x, out)
        except Exception as e: found[v] = (str(e)[:60],) * 2
    a = int4.matmul(x, int4.Tiles(blocks[0], n, k)).astype(cupy.float32); 
    if 1:
        b = int4.matmul(x, int4.Tiles(blocks[0], n, k), rung="14_bytes").astype(cupy.float32); err = float(abs(a - b).max() / abs(a).max())
    print(n, k, f"bytes at 4.6: {size / 4.6e6:.2f}", {v: (round(f[0], 2) if not isinstance(f[0], str) else f[0]) for v, f in found.items()}, f"err {err:.1e}", flush=True)
    del blocks
