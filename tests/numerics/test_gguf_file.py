"""GGUF files: what the gguf package wrote and reads is byte for byte ours, and broken files are refused."""

import numpy as np
import pytest
from rooflab.errors import MissingTool, UsageError
from rooflab.numerics import gguf as gguf_file
from rooflab.numerics import quant

gguf = pytest.importorskip("gguf")


def matrix(n=5, k=96, seed=1):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, k)) + 0.1).astype(np.float32)


def test_a_file_round_trips_byte_for_byte(tmp_path):
    path = tmp_path / "two.gguf"
    tensors = {
        "a.weight": quant.quantise_q8_0(matrix()),
        "b.weight": quant.quantise_q8_0(matrix(33, 512, 2)),
    }
    gguf_file.write(path, tensors)
    back = gguf_file.read(path)
    assert list(back) == list(tensors)
    for name, blocks in tensors.items():
        assert back[name].shape == blocks.shape and back[name].tobytes() == blocks.tobytes()
        assert np.array_equal(quant.from_planes(quant.to_planes(back[name])), blocks)


def test_our_blocks_are_those_that_the_package_quantises_and_dequantises():
    w = matrix(7, 256, 3) * np.linspace(1e-4, 30, 7, dtype=np.float32)[:, None]
    kind = gguf.GGMLQuantizationType.Q8_0
    theirs = gguf.quants.quantize(w, kind)
    blocks = quant.quantise_q8_0(w)
    assert np.array_equal(theirs, quant.to_bytes(blocks))
    assert np.array_equal(gguf.quants.dequantize(theirs, kind), quant.dequantise_q8(blocks))


def test_a_file_of_the_package_with_other_tensors_is_read(tmp_path):
    path = tmp_path / "mixed.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tensor("norm.weight", np.ones(64, np.float32))
    raw = gguf.quants.quantize(matrix(4, 64), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("w", raw, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    back = gguf_file.read(path)
    assert list(back) == ["w"] and np.array_equal(quant.to_bytes(back["w"]), raw)


def test_every_truncation_is_refused_in_a_sentence(tmp_path):
    whole = tmp_path / "whole.gguf"
    gguf_file.write(whole, {"w": quant.quantise_q8_0(matrix())})
    data = whole.read_bytes()
    blocks = 5 * 3 * 34  # the tensor's own bytes are the last ones but for padding
    cut = tmp_path / "cut.gguf"
    for size in (0, 3, 4, 8, 20, 40, len(data) // 2, len(data) - blocks, len(data) - 64):
        cut.write_bytes(data[:size])
        with pytest.raises(UsageError, match="no GGUF file|no whole GGUF file"):
            gguf_file.read(cut)


def test_foreign_files_are_refused(tmp_path):
    foreign = tmp_path / "model.safetensors"
    foreign.write_bytes(b"\\x10\\0\\0\\0\\0\\0\\0\\0{}")
    with pytest.raises(UsageError, match="is no GGUF file: it starts with"):
        gguf_file.read(foreign)
    with pytest.raises(UsageError, match="does not exist"):
        gguf_file.read(tmp_path / "absent.gguf")
    path = tmp_path / "floats.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tensor("w", np.ones((2, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UsageError, match="holds no Q8_0 matrix, only F32 of 2 dimensions"):
        gguf_file.read(path)
    with pytest.raises(UsageError, match="w must be Q8_0 blocks"):
        gguf_file.write(path, {"w": np.ones((2, 64), np.float32)})


def test_without_the_package_files_are_read_and_a_sentence_says_what_writing_needs(tmp_path, monkeypatch):
    path = tmp_path / "w.gguf"
    gguf_file.write(path, {"w": quant.quantise_q8_0(matrix())})
    monkeypatch.setattr(gguf_file.importlib.util, "find_spec", lambda name: None)
    assert list(gguf_file.read(path)) == ["w"]
    with pytest.raises(MissingTool, match="`pip install gguf`"):
        gguf_file.write(path, {})
