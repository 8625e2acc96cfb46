import sys, torch
from rooflab import engine
from rooflab.ops import decoder
HEAD = {"fp16": "fp16", "q8_0": "q8_0", "int4_g128": "fp16"}
model, fmt = sys.argv[1:3]
spec = engine.spec(model); w = engine.random_weights(spec, fmt, HEAD[fmt], capacity=1024); e = engine.Engine(spec, w, capacity=256)
e.state.cache_k[:, :128].normal_(); e.state.cache_v[:, :128].normal_(); e.state.candidates[:, 0] = float("-inf")
for _ in range(2):
    e.position = 128; e.state.position.fill_(128); e.state.candidates[0, 0] = 0; e.state.candidates.view(torch.int32)[0, 1] = 7
    e._decode("9_flags_in_data", 2)
torch.cuda.synchronize()
