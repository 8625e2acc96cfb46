import sys, torch
from rooflab import engine
from rooflab.profile import timeline
HEAD = {"fp16": "fp16", "q8_0": "q8_0", "int4_g128": "fp16"}
for model in ("llama-3-8b", "qwen2.5-1.5b"):
    for fmt in ("int4_g128",):
        spec = engine.spec(model); torch.cuda.empty_cache()
        w = engine.random_weights(spec, fmt, HEAD[fmt], capacity=1024); e = engine.Engine(spec, w, capacity=256)
        e.state.cache_k[:, :128].normal_(); e.state.cache_v[:, :128].normal_(); e.state.candidates[:, 0] = float("-inf")
        for rung in ('9_flags_in_data', '10_int4_bytes'):
          for _ in range(3):
              e.position = 128; e.state.position.fill_(128); e.state.candidates[0, 0] = 0; e.state.candidates.view(torch.int32)[0, 1] = 7
              m = timeline.marks(spec.shape, w, e.state, rung)
          t = timeline.token(m); print(model, fmt, rung, "token us", round(float(t["end_us"].max()), 1)); print(timeline.phases(t).round(2).to_string(), flush=True)
        del e, w
