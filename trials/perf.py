import sys, torch
from rooflab import engine
from rooflab.studies import decode, decode_work
asked = sys.argv[2:] or ["drafts", "batch_dependent"]
def timed(w, steps, n):
    w.launch(0); w.launch(0); torch.cuda.synchronize()
    e = [torch.cuda.Event(enable_timing=True) for _ in range(2)]; t = []
    for _ in range(n):
        e[0].record(); w.launch(0); e[1].record(); torch.cuda.synchronize(); t.append(e[0].elapsed_time(e[1]) * 1e3 / steps)
    return sorted(t)[n // 2]
out = []
for c in decode.checks_of_drafts():
    if "drafts" in asked and c.model == decode.MODEL and c.batch in (4, 8):
        out.append((f"d{c.batch} {c.format[:4]}", c))
for c in decode.batches():
    if "batch_dependent" in asked and c.impl == "batch_dependent": out.append((f"b{c.batch} {c.format[:4]}", c))
if "chain" in asked:
    for c in decode.cases("full") if hasattr(decode, "cases") else decode.STUDY.cases("full"):
        if c.impl == "chain": out.append((f"chain {c.format[:4]}", c))
print(sys.argv[1], end=" ")
for name, c in out:
    w = decode_work.work_of(c)
    steps = decode.turns_of(c)
    print(f"{name} {timed(w, steps, 15 if c.impl != 'chain' else 5):.1f};", end=" ", flush=True)
    del w
print()
