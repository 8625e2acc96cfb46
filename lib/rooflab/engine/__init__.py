"""A small decoder built from the course's kernels: what each lesson is worth in tokens per second.

spec = engine.spec("qwen2.5-1.5b")
weights = engine.random_weights(spec, "int4_g128")  # or pack(spec, from_gguf(spec, path), ...)
decoder = engine.Engine(spec, weights, capacity=4096)
decoder.prefill(prompt); tokens = decoder.generate(128)
many = decoder.batch(8); many.prefill([prompt] * 8); eight = many.generate(128)
held, due = decoder.verify(drafted); tokens = decoder.speculate(smaller, 128)

own, tensors = engine.share(spec, get, rank, size)  # a process's share; see engine.world
part = engine.Split(own, engine.pack(own, tensors), world=world)

engine.gemma is a second decoder, of Gemma 4's kind; engine.checkpoints asks a checkpoint what it is.
"""

from rooflab.engine.batch import Batch
from rooflab.engine.decoder import PROMPTS, Engine, Paths
from rooflab.engine.files import from_gguf, from_safetensors
from rooflab.engine.shares import share
from rooflab.engine.spec import Spec, spec
from rooflab.engine.split import Split
from rooflab.engine.weights import pack, random_weights

__all__ = [
    "PROMPTS",
    "Batch",
    "Engine",
    "Paths",
    "Spec",
    "Split",
    "from_gguf",
    "from_safetensors",
    "pack",
    "random_weights",
    "share",
    "spec",
]
