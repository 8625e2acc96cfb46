"""Marks of a chain's kernels: when blocks start, have x, are done (run with .pe/tree/lib on PYTHONPATH)."""
import sys, time
import numpy as np
from rooflab import engine
from rooflab.engine.drafts import Drafts
from rooflab.engine.batch import Batch
from rooflab.ops import batch_ops
Q = "qwen2.5-1.5b"
HEAD = {"fp16": "fp16", "q8_0": "q8_0", "int4_g128": "fp16"}
SEQ, CAP = 128, 256
CAL = r'''
extern "C" __global__ void calibrate(unsigned long long* out) {
    unsigned sm; asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    if (threadIdx.x) return;
    unsigned long long a, b;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(a));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(b)); while (a == b);
    out[2 * sm] = b; out[2 * sm + 1] = clock64();
}'''
def run():
    import cupy, torch
    kernel = cupy.RawKernel(CAL, "calibrate")
    for fmt, kind, size in (("q8_0", "drafts", 8), ("int4_g128", "drafts", 8)):
        spec = engine.spec(Q); shape = spec.shape
        w = engine.random_weights(spec, fmt, HEAD[fmt], capacity=1024)
        e = engine.Engine(spec, w, capacity=CAP)
        e.state.cache_k[:, :SEQ].normal_(); e.state.cache_v[:, :SEQ].normal_()
        e.position = SEQ; e.state.position.fill_(SEQ)
        buf = cupy.zeros(400 * 160 * 8, np.uint64)
        batch_ops.MARKS = (buf.data.ptr, [])
        if kind == "drafts":
            d = Drafts(e, size); d.check([7] * size); go = d._replay
        else:
            d = Batch(e, size, CAP); d.position = SEQ; d.places[0] = SEQ; d.places[1] = SEQ + 1; d.tokens[SEQ] = 7; d.decode(1)
            go = d._replay
        names = batch_ops.MARKS[1]; batch_ops.MARKS = None
        count = len(names) // 2; first = len(names) - count   # warm-up then capture
        cal = cupy.zeros(2 * 132, np.uint64)
        for _ in range(30): go()
        rows = []
        for _ in range(12):
            torch.cuda.synchronize(); buf[...] = 0; cupy.cuda.runtime.deviceSynchronize()
            for _ in range(3): go()
            torch.cuda.synchronize()
            kernel((132,), (32,), (cal,), shared_mem=200 * 1024) if False else kernel((264,), (1024,), (cal,))
            cupy.cuda.runtime.deviceSynchronize()
            c0 = cal.get().reshape(132, 2).astype(np.int64)
            kernel((264,), (1024,), (cal,)); cupy.cuda.runtime.deviceSynchronize()
            c1 = cal.get().reshape(132, 2).astype(np.int64)
            rate = np.median((c1[:, 1] - c0[:, 1]) / (c1[:, 0] - c0[:, 0]))  # clocks a ns
            m = buf.get().reshape(400, 160, 8)[first:first + count].astype(np.int64)
            rows.append((m, c1, rate))
        out = {}; detail = []
        for m, c, rate in rows[2:]:
            sm = m[:, :, 7] - 1
            there = sm >= 0
            t = np.where(there[..., None], (m[..., :6] - c[np.maximum(sm, 0), 1][..., None]) / rate + (c[np.maximum(sm, 0), 0] - c[:, 0].min())[..., None], np.nan)
            t = np.where(m[..., :6] == 0, np.nan, t) / 1e3
            for i in range(1, count):
                if i < 14 or i > count - 3: continue   # past the first layers
                prev_end = np.nanmax(t[i - 1, :, 5])
                key = names[first + i - 1] + ">" + names[first + i] + ("" if not names[first+i].startswith("product3") else ("o" if int(there[i].sum()) in (96, 48) else "d"))
                if names[first+i].startswith('product2') and len(detail) < 3:
                    j = np.argsort(t[i, :125, 5]); normsm = set(sm[i-1][there[i-1]].tolist())
                    detail.append([(int(b), int(sm[i][b]), int(sm[i][b]) in normsm, *np.round(t[i, b, :6] - prev_end, 2).tolist()) for b in list(j[:6]) + list(j[58:62]) + list(j[-14:])])
                out.setdefault(key, []).append([np.nanmin(t[i, :, 0]) - prev_end, np.nanmedian(t[i, :, 0]) - prev_end, np.nanmax(t[i, :, 0]) - prev_end, np.nanmedian(t[i, :, 1]) - prev_end, np.nanmedian(t[i, :, 2]) - prev_end, np.nanmax(t[i, :, 2]) - prev_end, np.nanmedian(t[i, :, 3]) - prev_end, np.nanmax(t[i, :, 3]) - prev_end, np.nanmedian(t[i, :, 4]) - prev_end, np.nanmedian(t[i, :, 5]) - prev_end, np.nanmax(t[i, :, 5]) - prev_end, there[i].sum(), len(np.unique(sm[i][there[i]]))])
        print(f"== {fmt} {kind} {size}, {count} launches, {rate:.3f} clocks a ns; us after the last block of the kernel before has ended (medians)")
        print(f"{'':24s} start: first median last | ring | waited median last | tile 1 median last | last tile | end median last | blocks SMs")
        for key, v in out.items():
            a = np.median(np.array(v, float), 0)
            print(f"{key:24s} {a[0]:7.2f} {a[1]:7.2f} {a[2]:7.2f} | {a[3]:7.2f} | {a[4]:6.2f} {a[5]:6.2f} | {a[6]:6.2f} {a[7]:6.2f} | {a[8]:6.2f} | {a[9]:6.2f} {a[10]:6.2f} | {a[11]:.0f} {a[12]:.0f}   x{len(v)}", flush=True)
        for d in detail[1:]:
            print('block SM norm start ring waited tile1 last end'); [print(*x) for x in d]
run()
