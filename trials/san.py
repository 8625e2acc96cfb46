import sys
from rooflab import ops
from rooflab.ops import batch_choice, batch_ops, int4
import cupy
for name, ladder, module in (("batch_product", batch_ops.LADDERS, batch_ops), ("draft_accept", batch_choice.LADDERS, batch_choice)):
    for rung in ladder[name]:
        for shape, work in module.trials(name, rung):
            if name == "draft_accept" or "best" in shape: work.launch(0); print(name, shape)
import numpy as np
from rooflab.numerics import quant
rng = np.random.default_rng(1)
for B, n, k in ((1, 130, 2560), (3, 72, 4096), (5, 200, 640)):
    w = rng.standard_normal((n, k)).astype(np.float32); q = quant.quantise_int4(w); x = cupy.asarray(rng.standard_normal((B, k)).astype(np.float16))
    y = int4.matmul(x, int4.repack(*map(cupy.asarray, q)), rung="14_bytes"); e = x.get().astype(np.float64) @ quant.dequantise_int4(q).astype(np.float64).T
    print("int4", B, n, k, abs(y.get() - e).max())
cupy.cuda.Device().synchronize()
