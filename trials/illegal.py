"""Which division of Q8_0's DOWN ends in an illegal instruction."""
import sys, torch
from rooflab import engine
from rooflab.engine.weights import packed, dequantised
from rooflab.ops import batch_ops, batch_plan
from rooflab.ops.batch_plan import Plan
plans = [Plan(*map(int, a.split(","))) for a in sys.argv[1:]]
n, k = 1536, 8960
rows = torch.randn(n, k, dtype=torch.float16, device="cuda") / k**0.5
x = torch.randn(8, k, dtype=torch.float16, device="cuda")
w = packed(rows, "q8_0"); expected = x.float() @ dequantised(rows, "q8_0").t()
real = batch_plan.plan_for
for p in plans:
    batch_ops.plan_for = lambda *a, p=p: p
    parts = torch.full((p.splits, 8, n), torch.nan, device="cuda")
    try:
        for _ in range(int(200)): batch_ops.product(x, w, out=parts, then=batch_ops.PARTS)
        torch.cuda.synchronize()
        print(p, "ok", float((parts.sum(0) - expected).abs().max() / expected.abs().max()), flush=True)
    except Exception as error: print(p, "FAILED", repr(error)[:120], flush=True); break
