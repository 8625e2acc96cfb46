"""A decoder by the transformers library, as users run it: what lesson 02 takes apart.

Decoding is one step at a fixed place: a token at position `context` over a static key-value cache that holds
what came before, its logits, and the greedy next token. Every step starts from the same state, so it can be
repeated, timed and checked. Three ways to run it: eager, captured in a CUDA graph, and compiled by
torch.compile and then captured. Prefilling is one forward pass over a whole prompt.

The oracle is an implementation of its own, in float64, on the same FP16 weights and cached keys and values.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rooflab.engine import exact
from rooflab.engine.exact import Past
from rooflab.engine.spec import Spec
from rooflab.errors import UsageError
from rooflab.numerics import model_shapes
from rooflab.ops.decoder_operands import Shape
from rooflab.studies.buffers import SEED

WEIGHTS = "ROOFLAB_WEIGHTS"  # environment: a local path or hub id of real weights; unset means random ones
MODELS = ("qwen2.5-1.5b", "qwen2.5-7b", "qwen2-7b")  # of the table of shapes, what is built as a Qwen2
VARIANTS = ("transformers.eager", "transformers.graph", "transformers.compile")
EPSILON, THETA = 1e-6, 1e6  # of Qwen2.5's norms and rotary angles


def use_weights(weights: str) -> str:
    """Choose weights for this process and its children: "random", or a local path or hub id.

    Returns the word for a case's column: "random" or "real". The path itself stays out of records.
    UsageError for what can only be a path and is no folder of weights.
    """
    if weights in ("", "random"):
        os.environ.pop(WEIGHTS, None)
        return "random"
    path = Path(weights).expanduser()
    if path.is_dir() or weights[0] in "/~." or weights.count("/") > 1:
        if not (path / "config.json").is_file():
            raise UsageError(
                f"WEIGHTS={weights!r} is no folder with a config.json: give one that holds a transformers "
                'checkpoint, a hub id such as "Qwen/Qwen2.5-1.5B", or "random".'
            )
        weights = str(path.resolve())  # profilers' children may run elsewhere
    os.environ[WEIGHTS] = weights
    return "real"


def weights_word() -> str:
    """ "real" if $ROOFLAB_WEIGHTS names weights, else "random"."""
    return "real" if os.environ.get(WEIGHTS) else "random"


@functools.cache
def model(name: str, weights: str = "random", device: str = "cuda") -> Any:
    """The transformers model of that name in FP16 on `device`; random weights are made there, seeded.

    UsageError for a model that is no Qwen2, or real weights of another shape than the table's.
    """
    if name not in MODELS:
        raise UsageError(f"The attribution is of {', '.join(MODELS)}, not of {name!r}.")
    return build(model_shapes.get(name), os.environ.get(WEIGHTS, "") if weights == "real" else "", device)


def build(shape: model_shapes.Model, source: str = "", device: str = "cuda") -> Any:
    """A Qwen2 of that shape: random weights, or those that `source` (a path or hub id) holds.

    UsageError, before the weights are loaded, for a source that cannot be read or holds another model.
    """
    import torch
    import transformers

    sizes = _sizes(shape)
    if source:
        config = _pretrained(transformers.AutoConfig, source)
        for size, wanted in {"model_type": "qwen2", **sizes, "tie_word_embeddings": shape.tied}.items():
            given = getattr(config, size, None)
            if given != wanted:
                raise UsageError(f"The weights in {source} have {size} {given}; {shape.name} has {wanted}.")
        found = _pretrained(transformers.AutoModelForCausalLM, source, dtype=torch.float16).to(device)
    else:
        config = transformers.Qwen2Config(
            **sizes,
            max_position_embeddings=32768,
            tie_word_embeddings=shape.tied,
            rms_norm_eps=EPSILON,
            rope_parameters={"rope_type": "default", "rope_theta": THETA},
            dtype=torch.float16,
        )
        torch.manual_seed(SEED)
        with torch.device(device):
            found = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float16)
        with torch.no_grad():  # made to show mistakes: the library would leave biases at 0 and norms at 1
            for parameter in found.parameters():
                if parameter.ndim == 1:
                    parameter.add_(torch.randn_like(parameter), alpha=0.05)
    _built.append(found)
    return found.eval().requires_grad_(False)


def _sizes(shape: Any) -> dict[str, int]:
    return {
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "vocab_size": shape.vocab,
    }


def llama(spec: Any, get: Callable[[str], Any], device: str = "cuda") -> Any:
    """A Llama of transformers in FP16, of an engine.Spec's shape and with the tensors that `get` names."""
    import torch
    import transformers

    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": spec.theta}
    if spec.scaling is not None:
        factor, low, high, original = spec.scaling
        rope |= {"rope_type": "llama3", "factor": factor, "original_max_position_embeddings": original}
        rope |= {"low_freq_factor": low, "high_freq_factor": high}
    config = transformers.LlamaConfig(
        **_sizes(spec.shape),
        max_position_embeddings=8192,
        tie_word_embeddings=spec.tied,
        rms_norm_eps=spec.shape.epsilon,
        rope_parameters=rope,
        dtype=torch.float16,
    )
    with torch.device(device):
        found = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float16)
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            parameter.copy_(get(name))
    return found.eval().requires_grad_(False)


def _pretrained(kind: Any, source: str, **how: Any) -> Any:
    """What `kind` finds at a path or hub id; UsageError with the first line of what the library says."""
    try:
        return kind.from_pretrained(source, **how)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise UsageError(f"The weights {source!r} cannot be loaded: {reason}.") from None


def tokens(count: int, vocab: int, device: str = "cuda") -> Any:
    """Token ids [1, count], the same in every process."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(0, vocab, (1, count), generator=generator).to(device)


# --- names for what a profiler sees -------------------------------------------------------------------------

_MODULES = {
    **{f"{name}_proj": name for name in ("q", "k", "v", "o", "gate", "up", "down")},
    **dict.fromkeys(("input_layernorm", "post_attention_layernorm", "norm"), "norm"),
    **{"act_fn": "act", "rotary_emb": "rope", "embed_tokens": "embed", "lm_head": "lm_head"},
}


def _nothing(*_: Any, **__: Any) -> None:
    pass


_push: Callable[..., None] = _nothing
_pop: Callable[..., None] = _nothing
_built: list[Any] = []  # models without hooks as yet


@contextmanager
def part(name: str) -> Iterator[None]:
    """A named part of the work inside it, for a profiler that watches; nothing otherwise."""
    _push(name)
    try:
        yield
    finally:
        _pop()


@contextmanager
def named_parts(push: Callable[[str], None], pop: Callable[[], None]) -> Iterator[None]:
    """While this lasts, name the parts of the models made before as they run: layers, projections, attention.

    push and pop open and close a profiler's range. For a process whose task is to be profiled: what is
    wrapped stays wrapped, though it says nothing afterwards.
    """
    global _push, _pop
    while _built:
        _hook(_built.pop())
    _wrap()
    _push, _pop = push, pop
    try:
        yield
    finally:
        _push = _pop = _nothing


@functools.cache
def _wrap() -> None:
    """Name what is no module: rotating, updating the cache, attending."""
    cache: Any = importlib.import_module("transformers.cache_utils")
    code: Any = importlib.import_module("transformers.models.qwen2.modeling_qwen2")
    for layer in (cache.StaticLayer, cache.DynamicLayer):
        layer.update = _named(layer.update, "cache")
    code.apply_rotary_pos_emb = _named(code.apply_rotary_pos_emb, "rope")
    code.ALL_ATTENTION_FUNCTIONS["sdpa"] = _named(code.ALL_ATTENTION_FUNCTIONS["sdpa"], "attention")


def _hook(found: Any) -> None:
    for path, module in found.named_modules():
        *above, last = path.split(".")
        name = f"layer.{last}" if above[-1:] == ["layers"] else _MODULES.get(last)
        if name:
            module.register_forward_pre_hook(functools.partial(_opened, name))
            module.register_forward_hook(_closed)


def _opened(name: str, module: Any, inputs: Any) -> None:
    _push(name)


def _closed(module: Any, inputs: Any, output: Any) -> None:
    _pop()  # a hook that returns something would replace the module's output


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def within(*arguments: Any, **named: Any) -> Any:
        with part(name):
            return function(*arguments, **named)

    return within


# --- decoding and prefilling --------------------------------------------------------------------------------


class Decode:
    """One decode step of `found` at position `context`, repeatable: the cache's counters are put back.

    The cache has room for `context` tokens and this one, as generate() allocates it for one new token.
    """

    def __init__(self, found: Any, context: int):
        import torch
        import transformers

        self.model, self.context = found, context
        device, vocab = found.device, found.config.vocab_size
        ids = tokens(context + 1, vocab, device)
        self.prompt, self.token = ids[:, :context], ids[:, context:].contiguous()
        self.position = torch.tensor([[context]], device=device)
        self.places = torch.arange(context + 1, device=device)
        self.cache = transformers.StaticCache(config=found.config, max_cache_len=context + 1)
        with torch.no_grad():
            found(self.prompt, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        if not hasattr(self.cache.layers[0], "cumulative_length"):
            raise UsageError(
                "This transformers keeps no counters in its static cache; install 5.17 or later."
            )
        self.counters = [layer.cumulative_length for layer in self.cache.layers]

    def forward(self, token: Any, position: Any, mask: Any) -> tuple[Any, Any]:
        """Logits [1, vocab] and the greedy next token [1]."""
        masks = {"full_attention": mask}
        out = self.model(
            token, attention_mask=masks, position_ids=position, past_key_values=self.cache, use_cache=True
        )
        logits = out.logits[:, -1]
        with part("sample"):
            return logits, logits.argmax(-1)

    def step(self, forward: Callable[..., tuple[Any, Any]] | None = None) -> tuple[Any, Any]:
        """The step by `forward` (default: as written above), then the counters back."""
        import torch

        with torch.no_grad():
            with part("mask"):
                mask = (self.places <= self.position)[None, None]
            result = (forward or self.forward)(self.token, self.position, mask)
            with part("rewind"):
                torch._foreach_sub_(self.counters, 1)
        return result


def runner(decode: Decode, impl: str) -> Callable[[], tuple[Any, Any]]:
    """What runs one step of `decode` the way of `impl` and returns (logits, token)."""
    if impl == "transformers.eager":
        return decode.step
    forward = as_run(decode.forward, impl)
    return captured(lambda: decode.step(forward))


def as_run(forward: Callable[..., Any], impl: str) -> Callable[..., Any]:
    """`forward` as a variant runs it: compiled by torch, or as it is."""
    if impl != "transformers.compile":
        return forward
    import torch

    # The recipe for compiled decoding with a static cache; the capture is ours, by hand.
    return torch.compile(forward, fullgraph=True, dynamic=False)


def lacks(impl: str) -> str | None:
    """What a variant cannot do without and this machine has not, in a sentence; None if it has all."""
    if impl != "transformers.compile":
        return None
    if importlib.util.find_spec("triton") is None:
        return "torch.compile needs triton, which is not installed"
    if not any(shutil.which(name) for name in (os.environ.get("CC", "cc"), "gcc", "clang")):
        return "torch.compile needs a C compiler, and there is none"
    return None


def captured(step: Callable[[], Any]) -> Callable[[], Any]:
    """`step` in a CUDA graph, after three runs of it: a function that replays it and gives what it gave."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles, and lets libraries allocate what they keep
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def replay() -> Any:
        graph.replay()
        return result

    replay.operands = step  # type: ignore[attr-defined]  # a graph holds addresses, and keeps nothing alive
    return replay


FLASH = "flash_attn_4"  # the package flash-attn-4 as transformers' attention


@contextmanager
def flash_attention(found: Any) -> Iterator[None]:
    """Within it `found` attends by flash-attn-4, causal and without padding, and not by torch's kernels."""
    flash = importlib.import_module("flash_attn.cute").flash_attn_func
    registry = importlib.import_module("transformers.modeling_utils").AttentionInterface
    masks = importlib.import_module("transformers.masking_utils").AttentionMaskInterface

    def attend(module: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> tuple[Any, None]:
        out = flash(*(x.transpose(1, 2) for x in (q, k, v)), causal=True)
        return (out[0] if isinstance(out, tuple) else out), None

    name = "cute_attention"  # transformers takes a name with "flash" in it for a kernel of its hub
    registry.register(name, attend)
    masks.register(name, _nothing)
    before = found.config._attn_implementation
    found.set_attn_implementation(name)
    try:
        yield
    finally:
        found.set_attn_implementation(before)


def prefill(found: Any, ids: Any) -> Any:
    """Logits [1, vocab] of the last of the tokens `ids`, filling a new cache on the way."""
    import torch

    with torch.no_grad():
        return found(ids, use_cache=True, logits_to_keep=1).logits[:, -1]


# --- the oracle ---------------------------------------------------------------------------------------------


def reference(found: Any, ids: Any, past: Past | None = None, dtype: str = "float64") -> Any:
    """Logits [vocab] after the last of `ids` [1, t], in `dtype`, by the course's own implementation on the
    model's weights. `past` holds each layer's cached keys and values, which are operands.
    """
    import torch

    c = found.config
    width = c.hidden_size // c.num_attention_heads
    sizes = (c.num_hidden_layers, c.hidden_size, c.intermediate_size, c.num_attention_heads)
    shape = Shape(*sizes, c.num_key_value_heads, width, c.vocab_size, c.rms_norm_eps)
    state = found.state_dict()
    biased = "model.layers.0.self_attn.q_proj.bias" in state
    spec = Spec("", shape, c.rope_parameters["rope_theta"], biased, c.tie_word_embeddings)
    with torch.no_grad():
        return exact.logits(spec, state.__getitem__, ids, dtype=dtype, past=past, last=True)[0, 0]


def cached(decode: Decode) -> list[tuple[Any, Any]]:
    """The cached keys and values that came before the token, per layer."""
    end = decode.context
    return [(layer.keys[:, :, :end], layer.values[:, :, :end]) for layer in decode.cache.layers]


def unallocated_bytes(name: str, format: str, head: str, spare: int) -> int:
    """Bytes that a model's weights and `spare` others still take on the GPU; 0 without torch."""
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    model = model_shapes.get(name)
    original = 2 * model_shapes.parameters(model) if name in MODELS else 0
    wanted = original + model_shapes.weight_bytes(model, format, head) + spare
    return max(0, int(wanted) - torch.cuda.memory_allocated())
