import torch
from rooflab import engine
from rooflab.studies import decode, decode_work
for fmt in ("int4_g128", "q8_0"):
    case = next(c for c in decode.batches() if c.batch == 8 and c.format == fmt and c.model == decode.MODEL and c.impl == "batch_dependent")
    w = decode_work.work_of(case)
    w.launch(0); torch.cuda.synchronize()
    e = [torch.cuda.Event(enable_timing=True) for _ in range(2)]; t = []
    for _ in range(9):
        e[0].record(); w.launch(0); e[1].record(); torch.cuda.synchronize(); t.append(e[0].elapsed_time(e[1]) * 1e3 / decode.steps_of(case))
    print(fmt, "batch of 8, a step", sorted(t)[4], flush=True)
