"""Checkpoints on disk: what is written comes back, in both spellings of names, and damage is told."""

import json

import numpy as np
import pytest
from rooflab import engine
from rooflab.engine.files import _gguf_name
from rooflab.engine.weights import names, random_tensors
from rooflab.errors import UsageError
from rooflab.numerics import quant
from rooflab.ops import decoder

SHAPE = decoder.Shape(1, 256, 512, 4, 2, 64, 64)
SPEC = engine.Spec("tiny", SHAPE, 1e4, True, False)
GET = random_tensors(SPEC, on="cpu")


def bfloat(values):
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write_safetensors(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (kind, values) in tensors.items():
        raw = values.tobytes()
        header[name] = {
            "dtype": kind,
            "shape": values.shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def finish_gguf(writer, spec, get, kind, form="Q8_0"):
    """Write a decoder's tensors, matrices in a form, as files of a kind hold them, and close the file."""
    gguf = pytest.importorskip("gguf")
    for name, shape in names(spec).items():
        values = get(name).astype(np.float32)
        if kind == "llama" and (".q_proj." in name or ".k_proj." in name):
            halves = values.reshape(-1, 2, spec.shape.head_dim // 2, *shape[1:])
            values = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(shape))
        if len(shape) == 1:
            writer.add_tensor(_gguf_name(name), values)
        elif form == "F16":
            writer.add_tensor(_gguf_name(name), values.astype(np.float16))
        else:
            raw = quant.to_bytes(quant.quantise_q8_0(values))
            writer.add_tensor(_gguf_name(name), raw, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", ["F16", "F32", "BF16"])
def test_safetensors_come_back(tmp_path, kind):
    made = {"F16": lambda v: v, "F32": lambda v: v.astype(np.float32), "BF16": bfloat}[kind]
    tensors = {name: (kind, made(GET(name))) for name in names(SPEC)}
    split = dict(list(tensors.items())[:3]), dict(list(tensors.items())[3:])
    for i, part in enumerate(split):
        write_safetensors(tmp_path / f"model-{i}.safetensors", part)
    read = engine.from_safetensors(SPEC, tmp_path, on="cpu")
    for name in names(SPEC):
        want = GET(name).astype(np.float32)
        if kind == "BF16":
            want = (bfloat(want).astype(np.uint32) << 16).view(np.float32)
        assert (read(name).astype(np.float32) == want).all()


def test_damaged_and_foreign_safetensors_are_refused(tmp_path):
    file = tmp_path / "model.safetensors"
    tensors = {name: ("F16", GET(name)) for name in names(SPEC)}
    write_safetensors(file, tensors)
    whole = file.read_bytes()
    for cut in (0, 7, 100, len(whole) - 1):
        file.write_bytes(whole[:cut])
        with pytest.raises(UsageError, match="is no safetensors file|is cut short or damaged"):
            engine.from_safetensors(SPEC, file, on="cpu")
    del tensors["model.norm.weight"]
    write_safetensors(file, tensors)
    with pytest.raises(UsageError, match="does not hold model.norm.weight, which tiny has"):
        engine.from_safetensors(SPEC, file, on="cpu")
    tensors["model.norm.weight"] = ("F16", np.ones(4, np.float16))
    write_safetensors(file, tensors)
    with pytest.raises(UsageError, match=r"holds model.norm.weight as \(4,\); tiny has \(256,\)"):
        engine.from_safetensors(SPEC, file, on="cpu")
    tensors["model.norm.weight"] = ("I8", np.ones(256, np.int8))
    write_safetensors(file, tensors)
    with pytest.raises(UsageError, match="is I8; the engine reads F16, F32, BF16"):
        engine.from_safetensors(SPEC, file, on="cpu")("model.norm.weight")
    with pytest.raises(UsageError, match="holds no .safetensors file"):
        engine.from_safetensors(SPEC, tmp_path / "absent", on="cpu")


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_a_gguf_files_q8_0_stays_what_it_is(tmp_path, architecture):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(str(path), architecture)
    finish_gguf(writer, SPEC, GET, architecture)
    read = engine.from_gguf(SPEC, path, on="cpu")
    assert (read("model.norm.weight") == GET("model.norm.weight").astype(np.float32)).all()
    ours, theirs = (engine.pack(SPEC, get, "q8_0", "q8_0", capacity=8) for get in (GET, read))
    for name in ("qkv", "out", "gate_up", "down", "head", "embedding"):
        for a, b in zip(getattr(ours, name), getattr(theirs, name), strict=True):
            assert (a == b).all(), name
    assert (ours.biases == theirs.biases).all()
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UsageError, match="is no whole GGUF file|does not hold"):
        engine.from_gguf(SPEC, path, on="cpu")
