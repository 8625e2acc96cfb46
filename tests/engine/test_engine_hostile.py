"""Checkpoints that anybody may have written: whatever is wrong with them, one sentence says so, at once and
in little memory. $ROOFLAB_FUZZ says how many of each kind are made (100).
"""

import gc
import json
import math
import os
import struct
import time
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rooflab import cli, engine
from rooflab.engine import checkpoints
from rooflab.engine.files import LARGEST_JSON, _gguf_name
from rooflab.engine.spec import Spec
from rooflab.engine.weights import names, random_tensors
from rooflab.errors import LaunchError, RooflabError, UsageError
from rooflab.numerics import gguf
from rooflab.ops import decoder
from test_engine_checkpoints import CONFIG, QWEN, SHAPE
from test_engine_files import write_safetensors

MANY = settings(
    max_examples=int(os.environ.get("ROOFLAB_FUZZ", "100")),
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
DEEP = json.loads("[" * 200 + "]" * 200)
ODD = [0, -5, 1.5, 256.0, 2**31, 2**63, 10**9, 10**400, True, None, "2", "", [2], {"a": 1}, DEEP]
ODD += [math.inf, -math.inf, math.nan, 1e308, -1.0, 3, 5, 7, 1 << 30]


@contextmanager
def at_once():
    gc.disable()  # else thousands of examples before this one are counted with it
    began = time.thread_time()
    try:
        yield
        assert time.thread_time() - began < 1
    finally:
        gc.enable()


def refused(call, *arguments):
    """The sentence that a call is refused with, or None."""
    with at_once():
        try:
            call(*arguments)
        except RooflabError as error:
            said = str(error)
            assert said.endswith(".") and "\n" not in said and len(said) < 600, said
            return said
    return None


# --- config.json --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A whole checkpoint whose config.json the tests write."""
    made = tmp_path_factory.mktemp("checkpoint") / "made"
    made.mkdir()
    get = random_tensors(QWEN, on="cpu")
    write_safetensors(made / "model.safetensors", {name: ("F16", get(name)) for name in names(QWEN)})
    return made


def described(folder, config):
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return refused(checkpoints.opened, folder, "cpu")


SIZES = [name for name, value in CONFIG.items() if type(value) is int and name != "sliding_window"]


def test_biases_that_the_config_does_not_describe_are_refused(folder):
    said = described(folder, {**CONFIG, "model_type": "llama"})
    assert "_proj.bias, which its description of the model leaves out" in said


@pytest.mark.parametrize("name", [*SIZES, "head_dim", "rms_norm_eps"])
@pytest.mark.parametrize("value", [v for v in ODD if v is not None], ids=lambda value: repr(value)[:12])
def test_no_odd_size_is_taken(folder, name, value):
    if name == "rms_norm_eps" and type(value) in (int, float) and 0 < value < math.inf:
        return
    assert described(folder, {**CONFIG, name: value})


JSON = st.recursive(
    st.sampled_from(ODD) | st.text(max_size=5) | st.sampled_from(["qwen2", "llama", "gemma4_text", "yarn"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(CONFIG)), inner),
    max_leaves=4,
)
GEMMA = {
    "model_type": "gemma4_text",
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_hidden_layers": 4,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 64,
    "num_kv_shared_layers": 2,
    "final_logit_softcapping": 30.0,
    "head_dim": 64,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
KEYS = sorted({*CONFIG, *GEMMA, "text_config", "head_dim", "rope_scaling", "per_layer_config", "mlp_bias"})


@MANY
@given(st.booleans(), st.dictionaries(st.sampled_from(KEYS), JSON, min_size=1, max_size=3), st.data())
def test_a_made_up_config_is_refused_or_fits_the_file(folder, gemma, changed, data):
    config = {**CONFIG, **(GEMMA if gemma else {}), **changed}
    if data.draw(st.booleans()):
        config.pop(data.draw(st.sampled_from(sorted(config))))
    if described(folder, config) is None:
        spec = checkpoints.spec_of(folder)
        assert names(spec) == names(QWEN) and spec.shape.layers == SHAPE.layers


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "3",
        '"text"',
        "[" * 100_000,
        '{"a":' * 100_000,
        "\ud800",
        " " * (LARGEST_JSON + 1),
    ],
    ids=lambda text: repr(text[:8]),
)
def test_what_is_no_config_is_refused(folder, text):
    file = folder / "config.json"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    assert "is not what transformers writes" in refused(checkpoints.opened, folder, "cpu")


# --- safetensors --------------------------------------------------------------------------------------------


def headed(folder, header):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    file = folder / "hostile.safetensors"
    file.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(4096))
    return refused(engine.from_safetensors, QWEN, file, "cpu")


@MANY
@given(
    st.dictionaries(st.sampled_from(list(names(QWEN))), JSON, max_size=3),
    st.fixed_dictionaries({"dtype": JSON | st.just("F16"), "shape": JSON, "data_offsets": JSON}),
)
def test_a_made_up_header_is_refused(tmp_path_factory, wild, entry):
    folder = tmp_path_factory.mktemp("made")
    assert headed(folder, wild)
    assert headed(folder, {"model.norm.weight": entry, **wild})


@pytest.mark.parametrize(
    "shape",
    [[2**32, 2**32], [2.0, 128], [True], [-1, -256], [256, 0], ["256"], [math.inf], 256, [10**30]],
    ids=str,
)
def test_a_shape_is_whole_numbers_that_fit_the_bytes(tmp_path, shape):
    entry = {"dtype": "F16", "shape": shape, "data_offsets": [0, 512]}
    assert "cut short or damaged" in headed(tmp_path, {"model.norm.weight": entry})


def test_a_header_as_long_as_the_file_says_is_not_taken_on_trust(tmp_path):
    file = tmp_path / "long.safetensors"
    file.write_bytes((1 << 40).to_bytes(8, "little") + bytes(100))
    assert "its header does not fit it" in refused(engine.from_safetensors, QWEN, file, "cpu")
    with file.open("wb") as handle:
        handle.write((1 << 26).to_bytes(8, "little") + b'[{"a":1},' * 9)
        handle.truncate(1 << 27)
    assert "its header does not fit it" in refused(engine.from_safetensors, QWEN, file, "cpu")
    assert "cut short or damaged" in headed(tmp_path, b"[" * 100_000)


# --- GGUF ---------------------------------------------------------------------------------------------------

CODES = {"B": 0, "b": 1, "H": 2, "h": 3, "I": 4, "i": 5, "f": 6, "?": 7, "Q": 10, "q": 11, "d": 12}
FIELDS = {
    "general.architecture": "qwen2",
    "qwen2.block_count": ("I", 2),
    "qwen2.embedding_length": ("I", 256),
    "qwen2.feed_forward_length": ("I", 512),
    "qwen2.attention.head_count": ("I", 4),
    "qwen2.attention.head_count_kv": ("I", 2),
    "qwen2.attention.layer_norm_rms_epsilon": ("f", 1e-6),
    "qwen2.rope.freq_base": ("f", 1e6),
}


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def field(value):
    """A field's kind and value: a text, (a format of struct, a number), or bytes as they are."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, bytes):
        return value
    kind, number = value
    return struct.pack(f"<I{kind}", CODES[kind], number)


def gguf_bytes(fields, tensors, *, counts=None, version=3, data=b""):
    """A file of these fields and tensors: name -> (shape, kind, offset)."""
    count = counts or (len(tensors), len(fields))
    out = b"GGUF" + struct.pack("<IQQ", version, *count)
    out += b"".join(text(name) + field(value) for name, value in fields.items())
    for name, (shape, kind, offset) in tensors.items():
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        out += text(name) + dims + struct.pack("<IQ", kind, offset)
    return out + bytes(-len(out) % 32) + data


def whole():
    """The tensors of a whole file, in zeros of F16, and their bytes."""
    tensors, at = {}, 0
    for name, shape in names(QWEN).items():
        tensors[_gguf_name(name)] = (shape, 1, at)
        at += 2 * math.prod(shape)
    return tensors, bytes(at)


TENSORS, DATA = whole()


def opened(folder, raw):
    file = folder / "made.gguf"
    file.write_bytes(raw)
    return refused(checkpoints.opened, file, "cpu")


def test_the_file_that_the_tests_change_is_sound(tmp_path):
    assert opened(tmp_path, gguf_bytes(FIELDS, TENSORS, data=DATA)) is None


@pytest.mark.parametrize("name", [name for name in FIELDS if name.startswith("qwen2")])
@pytest.mark.parametrize(
    "value",
    [
        ("I", 0), ("i", -5), ("f", 1.5), ("I", 1 << 31), ("Q", 1 << 62), ("Q", 10**9), ("f", math.inf),
        ("f", math.nan), ("?", True), "4", struct.pack("<IIQ", 9, 4, 0), struct.pack("<IIQ", 9, 4, 1 << 60),
        struct.pack("<IIQ", 9, 9, 1), struct.pack("<IIQ", 9, 8, 1 << 60), struct.pack("<I", 77),
    ],
    ids=repr,
)  # fmt: skip
def test_no_odd_field_is_taken(tmp_path, name, value):
    if name in ("qwen2.rope.freq_base", "qwen2.attention.layer_norm_rms_epsilon"):
        number = value[1] if isinstance(value, tuple) else 0
        if number is not True and 0 < number < math.inf:
            return
    if name == "qwen2.rope.freq_base" and value == struct.pack("<IIQ", 9, 4, 0):
        return  # an array is as good as none, and this field may be left out
    if name == "qwen2.attention.head_count_kv" and value == struct.pack("<IIQ", 9, 4, 0):
        assert "holds" in opened(tmp_path, gguf_bytes({**FIELDS, name: value}, TENSORS, data=DATA))
        return
    assert opened(tmp_path, gguf_bytes({**FIELDS, name: value}, TENSORS, data=DATA))


@MANY
@given(
    st.dictionaries(
        st.sampled_from([*FIELDS, "general.alignment", "tokenizer.ggml.tokens"]) | st.text(max_size=4),
        st.tuples(st.sampled_from("BHIQ"), st.integers(0, 255))
        | st.tuples(st.sampled_from("fd"), st.floats(width=32))
        | st.text(max_size=4)
        | st.binary(max_size=24),
        max_size=3,
    ),
    st.dictionaries(
        st.sampled_from(list(TENSORS)),
        st.tuples(
            st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 9), max_size=5),
            st.integers(0, 40),
            st.integers(0, 2**64 - 1) | st.integers(0, 1 << 20),
        ),
        max_size=2,
    ),
    st.none() | st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
)
def test_made_up_fields_and_tensors_are_refused_or_fit(tmp_path_factory, fields, tensors, counts):
    folder = tmp_path_factory.mktemp("made")
    raw = gguf_bytes({**FIELDS, **fields}, {**TENSORS, **tensors}, counts=counts, data=DATA)
    if opened(folder, raw) is None:
        assert all(shape == TENSORS[name][0] for name, (shape, _, _) in tensors.items() if name in TENSORS)


@MANY
@given(st.data())
def test_changed_bytes_and_cuts_are_refused_or_harmless(tmp_path_factory, data):
    raw = bytearray(gguf_bytes(FIELDS, TENSORS, data=DATA))
    head = len(raw) - len(DATA)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, head - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    file = tmp_path_factory.mktemp("made") / "made.gguf"
    file.write_bytes(raw)
    refused(gguf.read, file)
    refused(checkpoints.opened, file, "cpu")


def test_nothing_is_allocated_that_the_file_is_too_short_for(tmp_path):
    hungry = [
        gguf_bytes({**FIELDS, "qwen2.block_count": ("I", 1 << 31 - 1)}, TENSORS, data=DATA),
        gguf_bytes(FIELDS, TENSORS, counts=(1 << 60, 1 << 60), data=DATA),
        gguf_bytes({**FIELDS, "a": struct.pack("<IIQ", 9, 0, 1 << 40)}, TENSORS, data=DATA),
        gguf_bytes({**FIELDS, "a": struct.pack("<IIQ", 9, 8, 1 << 20)} , TENSORS, data=bytes(16 << 20)),
        gguf_bytes({**FIELDS, "a": struct.pack("<IQ", 8, 1 << 50)}, TENSORS, data=DATA),
        gguf_bytes(FIELDS, {**TENSORS, "output_norm.weight": ([1 << 40, 1 << 30], 0, 0)}, data=DATA),
    ]  # fmt: skip
    for raw in hungry:
        tracemalloc.start()
        assert opened(tmp_path, raw)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100 << 20


FORMATS = ["fp16", "q8_0", "int4_g128"]

# --- whole models of odd sizes, and the command -------------------------------------------------------------


@MANY
@given(
    st.tuples(
        *(st.integers(1, top) for top in (2, 40, 40, 4, 4)),
        st.integers(1, 70) | st.sampled_from([64, 128]),
        st.integers(1, 9) | st.just(16),
    ),
    st.sampled_from(FORMATS),
)
def test_a_small_model_of_any_size_runs_or_is_refused(tmp_path_factory, sizes, format):
    layers, hidden, mlp, heads, kv_heads, head_dim, vocab = sizes
    shape = decoder.Shape(layers, 8 * hidden, 8 * mlp, heads, kv_heads, head_dim, vocab)
    spec = Spec("made", shape, 1e4, True, True)
    folder = tmp_path_factory.mktemp("made") / "made"
    folder.mkdir()
    config = {
        **CONFIG,
        "num_hidden_layers": layers,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
    }
    (folder / "config.json").write_text(json.dumps(config))
    get = random_tensors(spec, on="cpu")
    write_safetensors(folder / "model.safetensors", {name: ("F16", get(name)) for name in names(spec)})
    try:
        engine_ = checkpoints.engine_of(folder, format, capacity=16, on="cpu")
        assert np.isfinite(engine_.weights.norms.astype(np.float32)).all()
    except (UsageError, LaunchError) as error:
        assert str(error).endswith(".")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["1", "--count", "100000000"], "100000016 tokens"),
        (["1", "--count", str(10**30)], "tokens"),
        (["-1"], "A prompt is"),
        (["64"], "A prompt is"),
        (["1", "--format", "q4"], "Weights are"),
        (["1", "--temperature", "nan"], "temperature"),
    ],
)
def test_a_wrong_call_of_generate_is_a_sentence(folder, capsys, words, says):
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with at_once():
        code = cli.main(["generate", str(folder), "--cpu", *words])
    error = capsys.readouterr().err
    assert code == 2 and says in error and error.count("\n") == 1
