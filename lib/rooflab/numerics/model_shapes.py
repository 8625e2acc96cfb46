"""Shapes of the model families in the course's sources, and what one token costs in bytes and FLOPs.

Only matrix weights count: norms, biases and rotary tables are under half a percent of any model here. An
embedding lookup reads one row, so it costs no weight traffic; the output head (`lm_head`) is read whole for
every token, also where it shares its storage with the embedding.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from rooflab.errors import UsageError

# Bytes per weight, scales included: Q8_0 is a 34-byte block of 32, int4_g128 packs two to a byte and adds an
# FP16 scale for every 128.
WEIGHT_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "int4_g128": 0.5 + 2 / 128}


@dataclass(frozen=True)
class Model:
    """Shape of a decoder. mlp is the MLP's inner width (of one expert where `experts` > 1, `active` of
    which run per token); gated MLPs have gate, up and down, others up and down. fused lists projections the
    checkpoint stores as one matrix ("qkv", "gate_up"). window is the sliding-attention window in tokens, on
    every layer unless global_every says that each so-manieth layer attends to everything, with
    global_head_dim where that differs. The last shared_kv layers read the keys and values of an earlier one
    and have none of their own. ple is the width of a per-layer embedding, softcap the bound on output
    logits. parameters is the published count, `source` says where the shape comes from."""

    name: str
    hf: str
    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    parameters: float
    tied: bool = False
    gated: bool = True
    experts: int = 1
    active: int = 1
    fused: tuple[str, ...] = ()
    window: int | None = None
    global_every: int = 0
    global_head_dim: int | None = None
    shared_kv: int = 0
    ple: int = 0
    softcap: float | None = None
    source: str = "config.json of the checkpoint on the Hugging Face hub"


class Projection(NamedTuple):
    """A matrix of n rows and k columns (n outputs, k inputs) that decoding one token multiplies by
    `times` times, with different weights each time."""

    name: str
    n: int
    k: int
    times: int


class Layer(NamedTuple):
    """How one layer attends: head width, window in tokens or None for all, and whether it has keys and
    values of its own."""

    head_dim: int
    window: int | None
    owns_kv: bool


# fmt: off
_TABLE = (
    #     name, checkpoint, layers, hidden, mlp, heads, kv_heads, head_dim, vocab, parameters
    Model("llama-2-7b", "meta-llama/Llama-2-7b-hf", 32, 4096, 11008, 32, 32, 128, 32000, 6.738e9),
    Model("llama-2-13b", "meta-llama/Llama-2-13b-hf", 40, 5120, 13824, 40, 40, 128, 32000, 13.016e9),
    Model("llama-2-70b", "meta-llama/Llama-2-70b-hf", 80, 8192, 28672, 64, 8, 128, 32000, 68.977e9),
    Model("llama-3-8b", "meta-llama/Meta-Llama-3-8B", 32, 4096, 14336, 32, 8, 128, 128256, 8.030e9),
    Model("llama-3-70b", "meta-llama/Meta-Llama-3-70B", 80, 8192, 28672, 64, 8, 128, 128256, 70.554e9),
    Model("llama-3.2-1b", "meta-llama/Llama-3.2-1B", 16, 2048, 8192, 32, 8, 64, 128256, 1.236e9, tied=True),
    Model("llama-3.2-3b", "meta-llama/Llama-3.2-3B", 28, 3072, 8192, 24, 8, 128, 128256, 3.213e9, tied=True),
    Model("mistral-7b", "mistralai/Mistral-7B-v0.1", 32, 4096, 14336, 32, 8, 128, 32000, 7.242e9,
          window=4096),
    Model("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1", 32, 4096, 14336, 32, 8, 128, 32000, 46.703e9,
          experts=8, active=2),
    Model("mistral-nemo", "mistralai/Mistral-Nemo-Base-2407", 40, 5120, 14336, 32, 8, 128, 131072, 12.248e9),
    Model("phi-2", "microsoft/phi-2", 32, 2560, 10240, 32, 32, 80, 51200, 2.780e9, gated=False),
    Model("phi-3-mini", "microsoft/Phi-3-mini-4k-instruct", 32, 3072, 8192, 32, 32, 96, 32064, 3.821e9,
          fused=("qkv", "gate_up"), window=2047),
    Model("phi-3-medium", "microsoft/Phi-3-medium-4k-instruct", 40, 5120, 17920, 40, 10, 128, 32064, 13.960e9,
          fused=("qkv", "gate_up"), window=2047),
    Model("qwen-7b", "Qwen/Qwen-7B", 32, 4096, 11008, 32, 32, 128, 151936, 7.721e9, fused=("qkv",)),
    Model("qwen-14b", "Qwen/Qwen-14B", 40, 5120, 13696, 40, 40, 128, 152064, 14.167e9, fused=("qkv",)),
    Model("qwen2-7b", "Qwen/Qwen2-7B", 28, 3584, 18944, 28, 4, 128, 152064, 7.616e9),
    Model("qwen2-72b", "Qwen/Qwen2-72B", 80, 8192, 29568, 64, 8, 128, 152064, 72.706e9),
    Model("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B", 24, 896, 4864, 14, 2, 64, 151936, 0.494e9, tied=True),
    Model("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B", 28, 1536, 8960, 12, 2, 128, 151936, 1.544e9, tied=True),
    Model("qwen2.5-3b", "Qwen/Qwen2.5-3B", 36, 2048, 11008, 16, 2, 128, 151936, 3.086e9, tied=True),
    Model("qwen2.5-7b", "Qwen/Qwen2.5-7B", 28, 3584, 18944, 28, 4, 128, 152064, 7.616e9),
    Model("qwen3-0.6b", "Qwen/Qwen3-0.6B", 28, 1024, 3072, 16, 8, 128, 151936, 0.596e9, tied=True),
    Model("qwen3-1.7b", "Qwen/Qwen3-1.7B", 28, 2048, 6144, 16, 8, 128, 151936, 1.721e9, tied=True),
    Model("qwen3-4b", "Qwen/Qwen3-4B", 36, 2560, 9728, 32, 8, 128, 151936, 4.022e9, tied=True),
    Model("qwen3-8b", "Qwen/Qwen3-8B", 36, 4096, 12288, 32, 8, 128, 151936, 8.191e9),
    Model("falcon-7b", "tiiuae/falcon-7b", 32, 4544, 18176, 71, 1, 64, 65024, 6.922e9,
          tied=True, gated=False, fused=("qkv",)),
    Model("yi-6b", "01-ai/Yi-6B", 32, 4096, 11008, 32, 4, 128, 64000, 6.061e9),
    Model("yi-34b", "01-ai/Yi-34B", 60, 7168, 20480, 56, 8, 128, 64000, 34.389e9),
    Model("gemma-2b", "google/gemma-2b", 18, 2048, 16384, 8, 1, 256, 256000, 2.506e9, tied=True),
    Model("gemma-7b", "google/gemma-7b", 28, 3072, 24576, 16, 16, 256, 256000, 8.538e9, tied=True),
    Model("gemma-4-e4b", "google/gemma-4-E4B-it", 42, 2560, 10240, 8, 2, 256, 262144, 7.5e9, tied=True,
          window=512, global_every=6, global_head_dim=512, shared_kv=18, ple=256, softcap=30.0,
          source="layers, head widths, window, 5:1 pattern, softcap and shared tail: SharpInference pull"
          " request 143; hidden, MLP, heads, vocabulary, embedding width: config.json on the hub"),
    Model("gpt-j-6b", "EleutherAI/gpt-j-6b", 28, 4096, 16384, 16, 16, 256, 50400, 6.053e9, gated=False),
    Model("gpt-neox-20b", "EleutherAI/gpt-neox-20b", 44, 6144, 24576, 64, 64, 96, 50432, 20.555e9,
          gated=False, fused=("qkv",)),
)
# fmt: on
_BY_NAME = {model.name: model for model in _TABLE}


def names() -> list[str]:
    """Names of every model in the table, in the table's order."""
    return list(_BY_NAME)


def get(name: str) -> Model:
    """The shape of one model, e.g. "qwen2.5-1.5b". Raises UsageError naming those that exist."""
    if name not in _BY_NAME:
        raise UsageError(f"there is no model {name!r} in the table; it holds {', '.join(_BY_NAME)}.")
    return _BY_NAME[name]


def layers(model: Model) -> list[Layer]:
    """How each layer attends, first layer first."""
    found = []
    for index in range(model.layers):
        everything = model.global_every > 0 and index % model.global_every == model.global_every - 1
        found.append(
            Layer(
                head_dim=model.global_head_dim or model.head_dim if everything else model.head_dim,
                window=None if everything else model.window,
                owns_kv=index < model.layers - model.shared_kv,
            )
        )
    return found


def _attention(model: Model, layer: Layer) -> list[tuple[str, int, int]]:
    wide = "_global" if layer.head_dim != model.head_dim else ""
    q, kv = model.heads * layer.head_dim, model.kv_heads * layer.head_dim
    out = (f"o{wide}", model.hidden, q)
    if "qkv" in model.fused:
        return [("qkv", q + 2 * kv, model.hidden), out]
    if not layer.owns_kv:
        return [(f"q{wide}", q, model.hidden), out]
    return [
        (f"q{wide}", q, model.hidden),
        (f"k{wide}", kv, model.hidden),
        (f"v{wide}", kv, model.hidden),
        out,
    ]


def _mlp(model: Model) -> list[tuple[str, int, int]]:
    down = ("down", model.hidden, model.mlp)
    if not model.gated:
        return [("up", model.mlp, model.hidden), down]
    if "gate_up" in model.fused:
        return [("gate_up", 2 * model.mlp, model.hidden), down]
    return [("gate", model.mlp, model.hidden), ("up", model.mlp, model.hidden), down]


def projections(model: Model, experts: int | None = None) -> list[Projection]:
    """Every matrix that one decoded token multiplies by, in the order of first use, `lm_head` last;
    `experts` counts that many experts per layer instead of the active ones."""
    seen: Counter[tuple[str, int, int]] = Counter()
    if model.ple:
        seen[("ple_model", model.layers * model.ple, model.hidden)] += 1
    for layer in layers(model):
        seen.update(_attention(model, layer))
        if model.experts > 1:
            seen[("router", model.experts, model.hidden)] += 1
        for part in _mlp(model):
            seen[part] += experts or model.active
        if model.ple:
            seen.update([("ple_gate", model.ple, model.hidden), ("ple_out", model.hidden, model.ple)])
    seen[("lm_head", model.vocab, model.hidden)] += 1
    return [Projection(*shape, times) for shape, times in seen.items()]


@cache
def gemvs(model: Model) -> int:
    """Matrix-vector products that one decoded token needs, the output head aside: 7 a layer for LLaMA."""
    return sum(p.times for p in projections(model) if p.name != "lm_head")


@cache
def body(model: Model) -> int:
    """Weights read for one token, the output head aside (active experts only)."""
    return sum(p.n * p.k * p.times for p in projections(model) if p.name != "lm_head")


def head(model: Model) -> int:
    """Weights of the output head."""
    return model.vocab * model.hidden


def parameters(model: Model) -> int:
    """Matrix weights of the whole model: body with every expert, embedding, output head unless tied, and
    the per-layer embedding tables."""
    stored = sum(p.n * p.k * p.times for p in projections(model, experts=model.experts))
    embedding = 0 if model.tied else model.vocab * model.hidden
    return stored + embedding + model.vocab * model.layers * model.ple


def weight_bytes(model: Model, format: str, head_format: str | None = None) -> float:
    """Bytes of weights that decoding one token at batch 1 reads, the body in one format and the output head
    in another, by default the same."""
    for wanted in (format, head_format or format):
        if wanted not in WEIGHT_BYTES:
            raise UsageError(f"there is no weight format {wanted!r}; there are {', '.join(WEIGHT_BYTES)}.")
    return body(model) * WEIGHT_BYTES[format] + head(model) * WEIGHT_BYTES[head_format or format]


def held_bytes(model: Model, format: str, head_format: str, gpus: int = 1) -> float:
    """Bytes of weights that each of `gpus` GPUs holds: its share of the layers, and embedding and output head
    whole, once where they are tied."""
    whole = head(model) * WEIGHT_BYTES[head_format]
    return (weight_bytes(model, format, head_format) - whole) / gpus + (1 if model.tied else 2) * whole


def kv_bytes_per_token(model: Model, element_bytes: float = 2) -> float:
    """Bytes that each token of context adds to the key-value cache, windows aside."""
    return sum(2 * model.kv_heads * each.head_dim * element_bytes for each in layers(model) if each.owns_kv)


def kv_read_bytes(model: Model, context: int, element_bytes: float = 2) -> float:
    """Bytes of keys and values that decoding one token reads when it attends to `context` tokens, itself
    included; windowed layers read no more than their window, layers that share a cache read it again."""
    return sum(
        2 * model.kv_heads * each.head_dim * element_bytes * min(context, each.window or context)
        for each in layers(model)
    )


def _causal_pairs(n: int, window: int | None) -> int:
    """Query-key pairs of n tokens that each attend to themselves and what came before, inside a window."""
    w = min(n, window or n)
    return w * (w + 1) // 2 + (n - w) * w


def decode_flops(model: Model, context: int) -> int:
    """FLOPs of decoding one token that attends to `context` tokens, itself included."""
    attention = sum(
        4 * model.heads * each.head_dim * min(context, each.window or context) for each in layers(model)
    )
    return 2 * (body(model) + head(model)) + attention


def prefill_flops(model: Model, n: int) -> int:
    """FLOPs of prefilling n tokens: causal attention counted without its masked half, output head for the
    last token only."""
    attention = sum(4 * model.heads * each.head_dim * _causal_pairs(n, each.window) for each in layers(model))
    return 2 * (body(model) * n + head(model)) + attention


def unneeded_flops(model: Model, n: int, last: bool = False) -> int:
    """FLOPs of a prompt that nothing depends on: layers that leave no keys and values need to see its last
    token alone; with `last` the last layer too, once it has left them.
    """
    found, every = 0, layers(model)
    for place, layer in enumerate(every, 1):
        if layer.owns_kv and not (last and place == len(every)):
            continue
        q = model.heads * layer.head_dim
        queries = 1 if layer.owns_kv else 2  # their own product is one with keys' and values'
        weights = model.hidden * (queries * q + 3 * model.mlp + 3 * model.ple)
        pairs = _causal_pairs(n, layer.window) - min(n, layer.window or n)
        found += 2 * (n - 1) * weights + 4 * q * pairs
    return found


def needed_flops(model: Model, n: int, last: bool = False) -> int:
    """FLOPs of prefilling n tokens without those that nothing depends on, as unneeded_flops counts them."""
    return prefill_flops(model, n) - unneeded_flops(model, n, last)
