"""INT4's persistent rung with other options beside rung 9, cold weights, in turns."""
import sys, time
import numpy as np
from rooflab.ops import int4
S = {"9_shared_x": [{"K_WARPS": 4, "RESIDENT": 3, "ROW_WARPS": 1, "STAGES": 2, "TILES": 4, "TOKENS": 8}],
     "14_persistent": [{"WARPS": w, "STAGES": s, "TOKENS": 1} for w, s in ((8, 4), (8, 5), (8, 6), (8, 3), (12, 3), (12, 4), (16, 2), (16, 3), (6, 6), (4, 8))]}
def compile_all():
    for r in int4.LADDERS["int4"]:
        for o in S.get(r.name, []):
            x = r.cubin("90", o).resources[r.entry]; print(r.name, o, x.registers, x.spill_bytes, int4.launch_of(r, 28672, 8192, 1, r.with_defaults(o)).shared)
def run():
    import torch
    n, k = 28672, 8192
    count = 5
    ws = []
    for _ in range(count):
        b = torch.randint(-2**31, 2**31 - 1, (n // 64 * (k // 128), 1056), dtype=torch.int32, device="cuda")
        b[:, :32] = (torch.rand(len(b), 64, device="cuda") * 1e-3).half().view(torch.int32)
        ws.append(int4.Tiles(b, n, k))
    x = torch.randn(1, k, dtype=torch.float16, device="cuda"); made = {}; first = None
    for name, options in S.items():
        for o in options:
            out = torch.zeros(1, n, dtype=torch.float16, device="cuda")
            def launch(i, name=name, o=o, out=out): int4.matmul(x, ws[i % count], out=out, rung=name, **o)
            try: launch(0); torch.cuda.synchronize()
            except Exception as error: print("failed", name, o, repr(error)[:200]); continue
            first = out.float().clone() if first is None else first
            off = float((out.float() - first).abs().max() / first.abs().max())
            g = torch.cuda.CUDAGraph(); side = torch.cuda.Stream()
            with torch.cuda.graph(g, stream=side):
                for i in range(20): launch(i)
            made[name + str(o)] = (g, off)
    best = {}
    for _ in range(12):
        for key, (g, _) in made.items():
            torch.cuda.synchronize(); t = time.perf_counter(); g.replay(); torch.cuda.synchronize()
            best.setdefault(key, []).append((time.perf_counter() - t) * 1e6 / 20)
    for key, us in best.items(): print(key, round(min(us), 2), "off", round(made[key][1], 5))
run() if sys.argv[1] == "run" else compile_all()
