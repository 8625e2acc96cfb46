"""A second decoder, of Gemma 4's kind, out of the same kernels: the readable one.

Five layers of six see a window of the latest tokens with heads of 256, the sixth sees everything with heads
of 512; a tail of layers has no keys and values of its own and reads those of the last layer of its kind that
has; every layer is told of the token by an embedding of its own; logits are softly capped.

    spec = gemma.spec()                                    # E4B's shapes
    weights = gemma.random_weights(spec, "int4_g128")      # or gemma.pack(spec, from_safetensors(spec, path))
    decoder = gemma.Engine(spec, weights, capacity=4096)
    decoder.prefill(prompt); tokens = decoder.generate(128)

Left out of the real model: images and sound, mixture of experts, MLPs of double width, keys that serve as
values. Every cache holds all tokens, those of sliding layers too: a window is read, a ring is not kept.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rooflab import ops
from rooflab.engine import weights as plain
from rooflab.engine.weights import Tensors
from rooflab.errors import UsageError
from rooflab.numerics import model_shapes
from rooflab.numerics.quant import Planes
from rooflab.ops import attention, decoder, decoder_ops, gemma_ops, gemv, int4, mmq, q8_0

_MOST = 64  # tokens of an INT4 product; for more the course's kernel makes FP16 weights first


@dataclass(frozen=True)
class Spec:
    """A decoder of Gemma 4's kind: its shape, and of its rotary angles the bases and, in layers that see
    everything, the share of a head that is turned.
    """

    name: str
    model: model_shapes.Model
    theta: float = 1e4
    global_theta: float = 1e6
    turned: float = 0.25
    epsilon: float = 1e-6

    @property
    def layers(self) -> list[model_shapes.Layer]:
        return model_shapes.layers(self.model)

    @property
    def sources(self) -> list[int]:
        """The layer whose keys and values each layer reads: its own, or the last of its kind that has any."""
        layers = self.layers
        owners = {layer.window: i for i, layer in enumerate(layers) if layer.owns_kv}
        return [i if layer.owns_kv else owners[layer.window] for i, layer in enumerate(layers)]

    @property
    def head(self) -> decoder.Shape:
        """The head as decode_step knows it: a decoder without layers."""
        m = self.model
        return decoder.Shape(0, m.hidden, m.hidden, 1, 1, 128, m.vocab, self.epsilon, m.softcap or 0.0)

    def names(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of a checkpoint that the engine reads and its shape, as transformers names them."""
        m = self.model
        found: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (m.vocab, m.hidden),
            "model.embed_tokens_per_layer.weight": (m.vocab, m.layers * m.ple),
            "model.per_layer_model_projection.weight": (m.layers * m.ple, m.hidden),
            "model.per_layer_projection_norm.weight": (m.ple,),
        }
        for index, layer in enumerate(self.layers):
            at, d = f"model.layers.{index}.", layer.head_dim
            heads = {"q": m.heads, **({"k": m.kv_heads, "v": m.kv_heads} if layer.owns_kv else {})}
            for name, count in heads.items():
                found[f"{at}self_attn.{name}_proj.weight"] = (count * d, m.hidden)
                if name != "v":
                    found[f"{at}self_attn.{name}_norm.weight"] = (d,)
            found[f"{at}self_attn.o_proj.weight"] = (m.hidden, m.heads * d)
            for name in ("gate", "up"):
                found[f"{at}mlp.{name}_proj.weight"] = (m.mlp, m.hidden)
            found[f"{at}mlp.down_proj.weight"] = (m.hidden, m.mlp)
            found[f"{at}per_layer_input_gate.weight"] = (m.ple, m.hidden)
            found[f"{at}per_layer_projection.weight"] = (m.hidden, m.ple)
            for name in _NORMS:
                found[f"{at}{name}.weight"] = (m.hidden,)
            found[f"{at}layer_scalar"] = (1,)
        found["model.norm.weight"] = (m.hidden,)
        return found


_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "post_per_layer_input_norm",
)


def spec(name: str = "gemma-4-e4b") -> Spec:
    """The engine's view of a model of the table of shapes. UsageError for one that is not of this kind."""
    model = model_shapes.get(name)
    if not (model.ple and model.global_every and model.window and model.tied):
        raise UsageError(f"engine.gemma runs models of the kind of Gemma 4 E4B, which {name} is not.")
    return Spec(name, model)


# --- weights ------------------------------------------------------------------------------------------------


class Layer(NamedTuple):
    """A layer's matrices (FP16 [n, k], Planes or Tiles), its norms in the order of _NORMS and those of
    queries and keys, all FP16, and the factor of what leaves it.
    """

    qkv: Any
    out: Any
    gate_up: Any
    down: Any
    told_gate: Any
    told_out: Any
    norms: Sequence[Any]
    query_norm: Any
    key_norm: Any
    factor: float


class Weights(NamedTuple):
    """What the decoder reads. The tables of embeddings (FP16 or Planes) are in the head's format; turns
    [capacity, head_dim / 2, 2] FP32 are of windowed layers and of the others.
    """

    format: str
    head_format: str
    layers: Sequence[Layer]
    told_model: Any
    told_norm: Any
    told_table: Any
    embedding: Any
    norm: Any
    turns: tuple[Any, Any]


def random_tensors(spec: Spec, seed: int = 20261121, on: str = "gpu") -> Tensors:
    """A checkpoint of random numbers (see engine.weights), queries and keys weighted so that their scores
    are of the size of those of other models; layers leave out about what they were given.
    """
    base = plain.random_tensors(spec, seed, on)

    def get(name: str) -> Any:
        values = base(name)
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            values *= len(values) ** -0.25
        return values + 1 if name.endswith("layer_scalar") else values

    return get


def random_weights(
    spec: Spec,
    format: str = "fp16",
    head_format: str = "fp16",
    *,
    capacity: int = 4096,
    on: str = "gpu",
    seed: int = 20261121,
) -> Weights:
    """Random weights of the exact shapes."""
    return pack(spec, random_tensors(spec, seed, on), format, head_format, capacity=capacity)


def pack(
    spec: Spec, get: Tensors, format: str = "fp16", head_format: str = "fp16", *, capacity: int = 4096
) -> Weights:
    """A checkpoint's tensors in what the kernels read: queries, keys and values in one matrix, gate and up in
    another.
    """
    if format not in decoder.FORMATS or head_format not in decoder.FORMATS[:2]:
        raise UsageError(
            f"Weights are {', '.join(decoder.FORMATS)}, a head {' or '.join(decoder.FORMATS[:2])}, "
            f"not {format} and {head_format}."
        )

    def matrix(*names: str, format: str = format) -> Any:
        parts = [get(f"{name}.weight") for name in names]
        whole = plain._join(parts) if len(parts) > 1 else parts[0]
        packed = plain._packed(whole, format)
        return int4.Tiles(packed, *whole.shape) if format == "int4_g128" else packed

    def norm(name: str) -> Any:
        return plain._halves(get(f"{name}.weight"))

    layers = []
    for index, layer in enumerate(spec.layers):
        at = f"model.layers.{index}."
        own = "qkv" if layer.owns_kv else "q"
        layers.append(
            Layer(
                qkv=matrix(*(f"{at}self_attn.{name}_proj" for name in own)),
                out=matrix(f"{at}self_attn.o_proj"),
                gate_up=matrix(f"{at}mlp.gate_proj", f"{at}mlp.up_proj"),
                down=matrix(f"{at}mlp.down_proj"),
                told_gate=matrix(f"{at}per_layer_input_gate"),
                told_out=matrix(f"{at}per_layer_projection"),
                norms=[norm(at + name) for name in _NORMS],
                query_norm=norm(f"{at}self_attn.q_norm"),
                key_norm=norm(f"{at}self_attn.k_norm") if layer.owns_kv else None,
                factor=float(get(f"{at}layer_scalar")[0]),
            )
        )
    last = norm("model.norm")
    turns = [plain._like(turns_of(spec, capacity, everything), last) for everything in (False, True)]
    return Weights(
        format,
        head_format,
        layers,
        told_model=matrix("model.per_layer_model_projection"),
        told_norm=norm("model.per_layer_projection_norm"),
        told_table=matrix("model.embed_tokens_per_layer", format=head_format),
        embedding=matrix("model.embed_tokens", format=head_format),
        norm=last,
        turns=(turns[0], turns[1]),
    )


def turns_of(spec: Spec, capacity: int, everything: bool) -> np.ndarray:
    """Cosine and sine of every position's rotary angles, [capacity, head_dim / 2, 2] FP32: in layers that see
    everything only the first of a head's pairs are turned.
    """
    if not everything:
        return decoder.rotations(capacity, spec.model.head_dim, spec.theta)
    head_dim = spec.model.global_head_dim or spec.model.head_dim
    found = decoder.rotations(capacity, head_dim, spec.global_theta)
    found[:, int(spec.turned * head_dim // 2) :] = (1, 0)
    return found


# --- the engine ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Paths:
    """Which way the work takes. graph: launches of a token, or of a prompt like the one
    before, are captured once and replayed. tail: of a prompt
    the last token alone goes through the layers that leave no keys and values. attention: a rung for prompts,
    or "" for the fastest. mmq: prompts with Q8_0 weights by the course's products, not made FP16 first.
    """

    graph: bool = True
    tail: bool = True
    attention: str = ""
    mmq: bool = True


class Engine:
    """A decoder of Gemma 4's kind with its caches, at batch 1. `ran` counts what ran, by path; what is
    replayed by graph was counted when it was captured.
    """

    def __init__(
        self,
        spec: Spec,
        weights: Weights,
        *,
        capacity: int | None = None,
        paths: Paths | None = None,
        blocks: int | None = None,
    ):
        self.spec, self.weights, self.paths = spec, weights, paths or Paths()
        self.on_cpu = isinstance(weights.norm, np.ndarray)
        known = int(weights.turns[0].shape[0])
        self.capacity = known if capacity is None else capacity
        if not 0 < self.capacity <= known:
            raise UsageError(
                f"The weights know {known} positions, so a capacity of {self.capacity} is refused."
            )
        self.blocks = blocks or (4 if self.on_cpu else _sms())
        self.ran: collections.Counter[str] = collections.Counter()
        self.position = 0  # the device's, as the host knows it
        self.heat, self.seed = 0.0, 0
        self._replay: Callable[[], None] | None = None
        self._latest: tuple[Any, Any, Callable[[], None] | None] = (None, None, None)
        m, none = spec.model, {name: self._new(0, *size) for name, size in spec.head.matrices.items()}
        self._head = decoder.Weights(
            *("fp16", weights.head_format, none["qkv"], none["out"], none["gate_up"], none["down"]),
            *(weights.embedding, weights.embedding, weights.norm, none["out"]),
            self._new(self.capacity, 64, 2, dtype="float32"),
        )
        with self._target():
            self.state = decoder.state_for(spec.head, self.capacity, self.blocks, self._zeros)
            self.place, self.length = (self._zeros((1,), "int32") for _ in range(2))
            self.caches: dict[int, tuple[Any, Any]] = {}
            self._rooms: dict[int, attention.Room] = {}
            for index, layer in enumerate(spec.layers):
                shape = (self.capacity, m.kv_heads, layer.head_dim)
                if layer.owns_kv:
                    self.caches[index] = (self._zeros(shape, "float16"), self._zeros(shape, "float16"))
                if layer.head_dim not in self._rooms:
                    self._rooms[layer.head_dim] = self._room_for(layer)

    # --- what a caller sees -------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget all tokens."""
        self.position = 0
        self.state.position[...] = 0

    def sample(self, temperature: float, seed: int = 0) -> None:
        """Draw tokens at a temperature from now on; 0 takes the likeliest."""
        if not 0 <= temperature < 1e6:
            raise UsageError(f"A temperature lies between 0 and a million, not at {temperature}.")
        self.heat, self.seed = 1 / temperature if temperature else 0.0, seed
        self._replay, self._latest = None, (None, None, None)

    def prefill(self, tokens: Sequence[int]) -> None:
        """Take in tokens after those that are there; what comes next is chosen among `logits`. A prompt may
        come in pieces. UsageError for a token that does not exist, none at all, or more than fit: then
        nothing has changed.
        """
        ids = [int(token) for token in tokens]
        if not ids or not all(0 <= token < self.spec.model.vocab for token in ids):
            raise UsageError(f"A prompt is one token or more, each from 0 to {self.spec.model.vocab - 1}.")
        self._fits(len(ids))
        start, end = self.position, self.position + len(ids)
        with self._target():
            self._prompt(self._ids(ids), start)
        self.position = end

    def _prompt(self, ids: Any, start: int) -> None:
        """Take tokens in; by a graph from the second prompt in a row on that is as long and starts there."""
        key, (latest, kept, replay) = (int(ids.shape[0]), start), self._latest
        if not self.paths.graph or self.on_cpu or key != latest:
            self._latest = key, ids, None
            self.take(ids, start)
            return
        kept[...] = ids
        if replay is None:
            replay = self._captured(lambda: self.take(kept, start))
            self._latest = key, kept, replay
        replay()
        self.ran["prompt graph"] += 1

    def take(self, ids: Any, start: int = 0) -> None:
        """Launch what prefill does with tokens ids [n] int32 on the device, and nothing else: what can be
        captured and timed. `position` stays what it was.
        """
        n, state = int(ids.shape[0]), self.state
        state.tokens[start : start + n] = ids
        self.place[...] = start
        self.length[...] = start + n
        state.position[...] = start + n
        self._through(n, start)
        self._choose()
        self.ran["prompt"] += 1

    def generate(self, count: int) -> list[int]:
        """The next `count` tokens: all decoded on the device, and asked for in the end."""
        self.decode(count)
        return [int(token) for token in self.state.tokens[self.position - count : self.position].tolist()]

    def decode(self, count: int) -> None:
        """What generate does, without asking."""
        if count < 1:
            raise UsageError(f"The engine generates one token or more, not {count}.")
        self._fits(count)
        if not self.position:
            raise UsageError("The engine needs a prompt before it can go on.")
        step = self._step
        if self.paths.graph and not self.on_cpu:
            self._replay = step = self._replay or self._captured(self._step)
            self.ran["decode graph"] += count
        with self._target():
            for _ in range(count):
                step()
        self.ran["decode"] += count
        self.position += count

    @property
    def logits(self) -> Any:
        """Logits [vocab] FP32 that the next token is chosen by, on the device."""
        return self.state.logits

    # --- the model ----------------------------------------------------------------------------------------

    def _step(self) -> None:
        """A token: chosen on the device among what the step before left, taken through, and followed up."""
        state = self.state
        gemma_ops.sample_candidates(state.bests, state.tokens, state.position, self.place, self.length)
        self._through(1)
        self._choose()

    def _choose(self) -> None:
        """Logits out of the residual, capped, and the candidates for the next token."""
        head, state = self.spec.head, self.state
        decoder.head(head, self._head, state, heat=self.heat, seed=self.seed)

    def _through(self, n: int, start: int = 0) -> None:
        """The tokens at `place` and after it through all layers; the last one's residual is left in state.

        n = 1 asks nothing of the host; of more tokens it must know where they start.
        """
        spec, m, weights, state = self.spec, self.spec.model, self.weights, self.state
        end, tail = start + n, m.layers - m.shared_kv
        last = state.residual.reshape(1, m.hidden)
        h = last if n == 1 else self._new(n, m.hidden, dtype="float32")
        x, roots = self._new(n, m.hidden), self._new(n, dtype="float32")
        gemma_ops.embedding_scaled(
            weights.embedding, state.tokens, self.place, residual=h, out=x, factor=m.hidden**0.5
        )
        told = self._new(n, m.layers, m.ple)
        gemma_ops.per_layer_embedding(
            self._product(weights.told_model, x),
            *(weights.told_norm, weights.told_table, state.tokens, self.place),
            out=told,
            factor=m.ple**0.5,
            epsilon=spec.epsilon,
        )
        self._join(h, None, None, weights.layers[0].norms[0], x, roots)
        for index, layer in enumerate(weights.layers):
            if index == tail and n > 1 and self.paths.tail:
                last[...] = h[-1:]
                h, n = last, 1
                x, roots, told = x[-1:], roots[-1:], told[-1:]
                self.place[...] = end - 1
                self.ran["tail of the last token"] += 1
            _, after, before, after_mlp, after_told = layer.norms
            followed = weights.layers[index + 1].norms[0] if index + 1 < m.layers else weights.norm
            attended = self._attention(index, layer, self._product(layer.qkv, x), n, start, end)
            self._join(h, self._product(layer.out, attended), after, before, x, roots)
            inner = self._new(n, m.mlp)
            both = self._product(layer.gate_up, x)
            gemma_ops.gelu_mul(both, both, out=inner, column=m.mlp)
            self._join(h, self._product(layer.down, inner), after_mlp, None, x, roots)
            # The gate reads the residual itself, which may not fit FP16: x is that over its root mean square.
            gate, here = self._product(layer.told_gate, x), self._new(n, m.ple)
            gemma_ops.gelu_mul(gate, told.reshape(n, -1), out=here, column=index * m.ple, roots=roots)
            branch = self._product(layer.told_out, here)
            self._join(h, branch, after_told, followed, x, roots, layer.factor)
        if n > 1:
            last[...] = h[-1:]

    def _attention(self, index: int, weights: Layer, made: Any, n: int, start: int, end: int) -> Any:
        """Heads out of `made`, keys and values into the cache if the layer has its own, and attention."""
        m, layer = self.spec.model, self.spec.layers[index]
        keys, values = self.caches[self.spec.sources[index]]
        queries = self._new(n, m.heads, layer.head_dim)
        own = (keys, values) if layer.owns_kv else ()
        turns = self.weights.turns[layer.window is None]
        norms = weights.query_norm, weights.key_norm
        gemma_ops.rope_qk_norm(made, *norms, turns, self.place, queries, *own, epsilon=self.spec.epsilon)
        self.ran["attention " + ("everything" if layer.window is None else "window")] += 1
        if n == 1:
            room = self._rooms[layer.head_dim]
            out = attention.decode_attention(
                queries[0], keys, values, self.length, window=layer.window, scale=1.0, room=room
            )
        else:
            out = attention.attention(
                *(queries, keys, values),
                start=start,
                context=end,
                window=layer.window,
                scale=1.0,
                rung=self.paths.attention or None,
            )
        return out.reshape(n, -1)

    def _join(
        self, h: Any, branch: Any, after: Any, before: Any, x: Any, roots: Any, factor: float = 1.0
    ) -> None:
        epsilon = self.spec.epsilon
        gemma_ops.add_rmsnorm(h, branch, after, before, out=x, roots=roots, factor=factor, epsilon=epsilon)

    def _product(self, matrix: Any, x: Any) -> Any:
        """x [n, k] times a matrix, FP16: one token by the course's matrix-vector products; more by MMQ, by
        INT4 products of up to 64 tokens, or by the library in FP16.
        """
        n = int(x.shape[0])
        if isinstance(matrix, Planes):
            if n > 1 and not self.paths.mmq:
                self.ran["product dequantised q8_0"] += 1
                scaled = matrix.quants.reshape(*matrix.scales.shape, 32) * matrix.scales[..., None]
                return _times(x, scaled.reshape(matrix.quants.shape))
            self.ran["product q8_0" if n == 1 else "product mmq"] += 1
            if n > 1:
                return mmq.multiply(x, matrix)
            return q8_0.matvec(q8_0.quantise(x), matrix, rung="5_batch")  # the fastest one at k = 2560
        if isinstance(matrix, int4.Tiles):
            if n > _MOST:
                self.ran["product dequantised int4"] += 1
                return _times(x, decoder_ops.dequantise_tiles(matrix, out=self._new(matrix.n, matrix.k)))
            self.ran["product int4"] += 1
            return int4.matmul(x, matrix, out=self._new(n, matrix.n))
        if n == 1:
            self.ran["product fp16"] += 1
            return gemv.gemv_rows(matrix, x.reshape(-1)).reshape(1, -1)
        self.ran["product library"] += 1
        return _times(x, matrix)

    # --- helpers ------------------------------------------------------------------------------------------

    def _fits(self, count: int) -> None:
        if self.position + count > self.capacity:
            raise UsageError(
                f"{count} tokens after {self.position} do not fit a cache of {self.capacity}: reset the "
                "engine, or make one with more capacity."
            )

    def _captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """`work` as a graph; what making it changed is put back."""
        import torch

        state = self.state
        kept = [*(state.tokens, state.position, state.bests, state.logits, state.residual)]
        kept += [self.place, self.length]
        saved = [array.clone() for array in kept]
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # compiles, and lets libraries allocate what they keep
            work()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        for array, old in zip(kept, saved, strict=True):
            array.copy_(old)
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    def _room_for(self, layer: model_shapes.Layer) -> attention.Room:
        """Where the parts of a layer's context meet: as many as suit a full window or cache."""
        m = self.spec.model
        query = self._new(m.heads, layer.head_dim)
        if self.on_cpu:
            return attention.room_for(query, 3)
        (rung,) = (r for r in attention.LADDERS["decode_attention"] if r.name == "4_cp_async")
        blocks = m.kv_heads * -(-m.heads // m.kv_heads // attention.HEADS)
        keys = min(self.capacity, layer.window or self.capacity)
        macros = rung.with_defaults({"HEAD_DIM": layer.head_dim})
        return attention.room_for(query, attention.splits_of(rung, macros, blocks, _sms(), 1, keys))

    def _target(self) -> Any:
        return ops.on("cpu" if self.on_cpu else "gpu")

    def _ids(self, ids: list[int]) -> Any:
        if self.on_cpu:
            return np.array(ids, np.int32)
        import torch

        return torch.tensor(ids, dtype=torch.int32, device=self.state.tokens.device)

    def _new(self, *shape: int, dtype: str = "float16") -> Any:
        if self.on_cpu:
            return np.empty(shape, dtype)
        import torch

        return torch.empty(shape, dtype=getattr(torch, dtype), device=self.weights.norm.device)

    def _zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        made = self._new(*shape, dtype=dtype)
        made[...] = 0
        return made


def _times(x: Any, matrix: Any) -> Any:
    """x times the transposed matrix, both FP16, summed in FP32: cuBLAS, or on the CPU NumPy."""
    if isinstance(x, np.ndarray):
        return (x.astype(np.float32) @ matrix.astype(np.float32).T).astype(np.float16)
    return x @ matrix.t()


def _sms() -> int:
    import cupy

    return int(cupy.cuda.Device().attributes["MultiProcessorCount"])
