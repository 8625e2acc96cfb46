"""A check of 8 drafts with other rings of gate_up and DOWN, in turns. `compile`: fill the cache, no GPU."""
import sys
from rooflab import engine
from rooflab.ops import batch_ops, batch_plan, decoder
from rooflab.ops.batch_plan import Plan
Q = "qwen2.5-1.5b"
shape = engine.spec(Q).shape
plan_for, macros_for = batch_plan.plan_for, batch_plan.macros_for
G, D = shape.matrices["gate_up"], shape.matrices["down"]
# gate_up: blocks, stages, tiles; down: plan, stages, ahead, tiles; attention (warps, stages); qkv plan; out plan
N = None
I = {"now": (N, N, N, N, N), "s6": ((125, 6, 10), N, N, N, N), "s8": ((125, 8, 10), N, N, N, N), "g112s4": ((112, 4, 10), N, N, N, N), "g112s6": ((112, 6, 10), N, N, N, N), "g112s8": ((112, 8, 10), N, N, N, N),
     "g102s6": ((102, 6, 12), N, N, N, N), "g94s6": ((94, 6, 12), N, N, N, N), "s6 o48": ((125, 6, 10), N, N, N, (48, 1, 12, 1)), "s6 q43": ((125, 6, 10), N, N, (43, 1, 12, 1), N),
     "s6 q32": ((125, 6, 10), N, N, (32, 1, 12, 1), N), "s6 d4": ((125, 6, 10), ((24, 5, 14, 1), 4, 4, 4), N, N, N), "s6 d20": ((125, 6, 10), ((20, 5, 14, 1), 4, 2, 6), N, N, N), "s6 d16x7": ((125, 6, 10), ((16, 7, 10, 1), 6, 4, 6), N, N, N)}
Q8 = {"now": (N, N, N, N, N), "s8": ((125, 8, 9), N, N, N, N), "g112s8": ((112, 8, 10), N, N, N, N), "g102s8": ((102, 8, 11), N, N, N, N), "g94s8": ((94, 8, 12), N, N, N, N), "s8 o96": ((125, 8, 9), N, N, N, (96, 1, 12, 2)),
      "s8 o48": ((125, 8, 9), N, N, N, (48, 1, 12, 2)), "s8 q43": ((125, 8, 9), N, N, (43, 1, 12, 2), N), "s8 q32": ((125, 8, 9), N, N, (32, 1, 12, 2), N), "s8 d20": ((125, 8, 9), ((20, 5, 7, 4), 10, 6, 5), N, N, N), "s8 da10": ((125, 8, 9), ((24, 5, 7, 4), 10, 10, 4), N, N, N), "s8 da4": ((125, 8, 9), ((24, 5, 7, 4), 10, 4, 4), N, N, N)}
SETS = {"int4_g128": I, "q8_0": Q8}
NOW = [None] * 5
O = shape.matrices['out']
warps_for = batch_plan.warps_for
def warps_of(*a): return NOW[2] or warps_for(*a)
batch_ops.warps_for = warps_of
K = shape.matrices['qkv']
def planned(n, k, batch, format, divided, sms):
    plan = plan_for(n, k, batch, format, divided, sms)
    if (n, k) == G and NOW[0]: plan = plan._replace(blocks=NOW[0][0])
    if (n, k) == K and NOW[3]: plan = Plan(*NOW[3])
    if (n, k) == O and divided and NOW[4]: plan = Plan(*NOW[4])
    if (n, k) == D and divided and NOW[1]: plan = Plan(*NOW[1][0])
    return plan
def macros_of(plan, n, batch, kind, arch):
    m, shared = macros_for(plan, n, batch, kind, arch)
    own = None
    if n == G[0] and NOW[0]: _, stages, tiles = NOW[0]; ahead = stages; own = 1
    if NOW[1] and plan == Plan(*NOW[1][0]): _, stages, ahead, tiles = NOW[1]; own = 1
    if not own: return m, shared
    m = {**m, "STAGES": stages, "AHEAD": ahead, "TILES": tiles}
    return m, plan.warps * batch_plan.slot_of(plan.chunks, kind) * stages + (2 * tiles if n == D[0] else min(2 * tiles, -(-(n // 16) // plan.blocks) + 1)) * plan.warps * 512
batch_ops.plan_for, batch_ops.macros_for = planned, macros_of
def one(w):
    rung, m = w
    r = rung.cubin("90", m).resources[rung.entry]
    return (rung.key, m, r) if r.spill_bytes else None
def compile_all():
    import multiprocessing as mp
    todo = {}
    for fmt, sets in SETS.items():
        kind = decoder.FORMATS.index(fmt)
        for v, now in sets.items():
            NOW[:] = now
            for name in ("gate_up", "down", "qkv", "out"):
                n, k = shape.matrices[name]; then = {"gate_up": 2, "qkv": 1}.get(name, 3)
                p = planned(n, k, 8, fmt, then == 3, 132)
                m, sh = macros_of(p, n, 8, kind, "90"); print(fmt, v, name, tuple(p), m["STAGES"], m["AHEAD"], m["TILES"], sh)
                todo[tuple(sorted((m | {"FORMAT": kind, "EPILOGUE": then, "DRAFTS": int(then == 1)}).items()))] = batch_ops.LADDERS["batch_product"][0]
                if then == 3: todo[tuple(sorted({"PARTS": 1, "THREADS": 384, "SPLITS": p.splits}.items()))] = batch_ops.LADDERS["batch_rmsnorm"][0]
    for w, st in ((16, 1), (4, 4)): todo[tuple(sorted({"WARPS": w, "STAGES": st, "HEAD_DIM": 128, "TOKENS": 8}.items()))] = batch_ops.LADDERS["batch_attention"][0]
    with mp.get_context("fork").Pool(2) as pool:
        for b in pool.imap_unordered(one, [(r, dict(m)) for m, r in todo.items()]):
            if b: print("SPILLS", b)
if sys.argv[1:] == ["compile"]: compile_all(); sys.exit()
import torch
from rooflab.engine import drafts as DR
from rooflab.engine.base import captured
from rooflab.studies import decode, decode_work
def timed(rep, n=16):
    e = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    e[0].record()
    for _ in range(n): rep()
    e[1].record(); torch.cuda.synchronize()
    return e[0].elapsed_time(e[1]) * 1e3 / n
for fmt, sets in SETS.items():
    case = next(c for c in decode.checks_of_drafts() if c.batch == 8 and c.format == fmt and c.model == Q)
    one_, start, begin = decode_work._begun(case, engine.Paths())
    begin(); one_.generate(4); begin()
    reps, keep = {}, []
    for v, now in sets.items():
        NOW[:] = now
        try:
            d = DR.Drafts(one_, 8); keep.append(d)
            d._numbers[...] = 200, 201, 0, 1, *range(1, 9)
            reps[v] = captured(d.step, [])
        except Exception as e: print(v, type(e).__name__, str(e)[:100])
    found = {k: [] for k in reps}
    for turn in range(9):
        for k, rep in reps.items(): found[k].append(timed(rep))
    print(fmt, {k: round(sorted(v)[4], 1) for k, v in found.items()}, flush=True)
    del one_, start, begin, reps, keep, d
