import sys, torch
sys.path.insert(0, "/tmp/t/trials")
import old_plan
from rooflab import engine
from rooflab.engine import drafts as D, chain as C
from rooflab.engine.base import captured
from rooflab.ops import batch_choice, batch_ops, batch_plan
from rooflab.studies import decode, decode_work
def timed(rep, n=16):
    e = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    e[0].record()
    for _ in range(n): rep()
    e[1].record(); torch.cuda.synchronize()
    return e[0].elapsed_time(e[1]) * 1e3 / n
real = batch_ops.product
new = batch_ops.plan_for, batch_ops.macros_for
for fmt in ("int4_g128", "q8_0", "fp16"):
    case = next(c for c in decode.checks_of_drafts() if c.batch == 8 and c.format == fmt and c.model == decode.MODEL)
    one, start, begin = decode_work._begun(case, engine.Paths())
    begin(); one.generate(4); begin()
    reps, keep = {}, []
    for law in ("new", "old"):
        batch_ops.plan_for, batch_ops.macros_for = new if law == "new" else (old_plan.plan_for, old_plan.macros_for)
        for how in ("best", "sample", "rows"):
            d = D.Drafts(one, 8); d._numbers[...] = 200, 201, *range(1, 9)
            choice = batch_choice.choice_for(8, d.chain.sms, one.zeros)
            chosen, places = one.zeros((2, 8), "int32"), one.zeros((2,), "int32")
            keep.append((d, choice, chosen, places))
            if how != "best":
                def product(x, w, *, out, then=0, heads=None, best=None, choice=choice, chosen=chosen, places=places):
                    if then == batch_ops.BEST:
                        real(x, w, out=out, then=0)
                        if how == "sample":
                            places.zero_() if False else None
                            batch_choice.sample(out, chosen, places, choice=choice)
                        return out
                    return real(x, w, out=out, then=then, heads=heads)
                batch_ops.product = product
            # `places` grows with every sample: a table of 2 rows is left after that, so it is set again in the step
            if how == "sample":
                step0 = d.step
                def step(step0=step0, places=places): places.zero_(); step0()
                reps[law, how] = captured(step, [])
            else: reps[law, how] = captured(d.step, [])
            batch_ops.product = real
    found = {k: [] for k in reps}
    for turn in range(15):
        for k, rep in reps.items(): found[k].append(timed(rep))
    print(fmt, {" ".join(k): round(sorted(v)[7], 1) for k, v in found.items()}, flush=True)
    del one, start, begin, reps, keep, d
