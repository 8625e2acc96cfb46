"""From a checkpoint's folder or file to tokens: what it says of itself, what the engines make of it, what is
refused."""

import json
from dataclasses import replace

import needs
import numpy as np
import pytest
from rooflab import cli, engine
from rooflab.engine import checkpoints, exact, gemma
from rooflab.engine.spec import Spec
from rooflab.engine.weights import names, random_tensors
from rooflab.errors import UsageError
from rooflab.numerics import rotary
from rooflab.ops import decoder
from test_engine_files import finish_gguf, write_safetensors

SHAPE = decoder.Shape(2, 256, 512, 4, 2, 64, 64)
QWEN = Spec("qwen", SHAPE, 1e6, True, True)
LLAMA = Spec("llama", SHAPE, 5e5, False, False)
PROMPT = [3, 1, 40, 41, 59]

CONFIG = {
    "model_type": "qwen2",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "sliding_window": 4096,
}


def saved(folder, config, spec=QWEN, get=None):
    get = get or random_tensors(spec, on="cpu")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", {name: ("F16", get(name)) for name in names(spec)})
    return get


def greedy(spec, get, count):
    tokens = list(PROMPT)
    for _ in range(count):
        tokens.append(int(exact.logits(spec, get, tokens)[-1].argmax()))
    return tokens[len(PROMPT) :]


def test_a_folder_generates_by_the_command(tmp_path, capsys):
    needs.compiler()
    get = saved(tmp_path / "qwen", CONFIG)
    told = checkpoints.spec_of(tmp_path / "qwen")
    assert told == QWEN
    arguments = [str(tmp_path / "qwen"), *map(str, PROMPT), "--count", "3", "--cpu"]
    assert cli.main(["generate", *arguments]) == 0
    assert capsys.readouterr().out.split() == [str(token) for token in greedy(QWEN, get, 3)]
    assert cli.main(["generate", str(tmp_path / "none"), "1"]) == 2
    error = capsys.readouterr().err
    assert "holds no config.json" in error and "Traceback" not in error and error.count("\n") == 1


def test_a_checkpoint_of_transformers_generates_as_transformers_does(tmp_path):
    torch = pytest.importorskip("torch", reason="torch comes with the GPU set")
    transformers = pytest.importorskip("transformers", reason="transformers comes with the GPU set")
    needs.compiler()
    config = transformers.Qwen2Config(**{k: v for k, v in CONFIG.items() if k != "model_type"})
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float16).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
    model.save_pretrained(tmp_path / "made")
    spec, get = checkpoints.opened(tmp_path / "made", on="cpu")
    error = np.abs(exact.logits(spec, get, PROMPT, dtype="float16") - exact.logits(spec, get, PROMPT)).max()
    with torch.no_grad():
        expected = model.double()(torch.tensor([PROMPT])).logits[0, -1].numpy()
    one = checkpoints.engine_of(tmp_path / "made", capacity=16, on="cpu")
    one.prefill(PROMPT)
    assert np.abs(one.logits - expected).max() <= 2 * error and one.logits.argmax() == expected.argmax()


@pytest.mark.parametrize(("kind", "spec"), [("qwen2", QWEN), ("llama", LLAMA)])
@pytest.mark.parametrize("form", ["Q8_0", "F16"])
def test_a_gguf_file_generates(tmp_path, kind, spec, form):
    needs.compiler()
    gguf = pytest.importorskip("gguf")
    path, get = tmp_path / "model.gguf", random_tensors(spec, on="cpu")
    writer = gguf.GGUFWriter(str(path), kind)
    writer.add_block_count(2)
    writer.add_embedding_length(256)
    writer.add_feed_forward_length(512)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(spec.theta)
    finish_gguf(writer, spec, get, kind, form)
    told, _ = checkpoints.opened(path, on="cpu")
    assert told == replace(spec, name="model", shape=replace(SHAPE, epsilon=told.shape.epsilon))
    format = "q8_0" if form == "Q8_0" else "fp16"
    one = checkpoints.engine_of(path, format, format, capacity=16, on="cpu")
    other = engine.Engine(spec, engine.pack(spec, get, format, format, capacity=16))
    for each in (one, other):
        each.prefill(PROMPT)
    assert (one.logits == other.logits).all() and one.generate(2) == other.generate(2)


def test_a_llama_s_angles_are_stretched_as_its_config_says(tmp_path):
    """By Llama 3.2's numbers: short waves stay, waves longer than the original context turn 32 times slower,
    and one between lies between."""
    stretch = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    stretch |= {"original_max_position_embeddings": 8192}
    folder = tmp_path / "made"
    folder.mkdir()
    config = {**CONFIG, "model_type": "llama", "rope_parameters": None, "rope_theta": 5e5}
    (folder / "config.json").write_text(json.dumps({**config, "rope_scaling": stretch}))
    spec = checkpoints.spec_of(folder)
    assert spec.theta == 5e5 and spec.scaling == engine.spec("llama-3.2-1b").scaling
    plain, found = (rotary.frequencies(64, 5e5, each) for each in (None, spec.scaling))
    waves = 2 * np.pi / plain
    assert (found[waves < 2048] == plain[waves < 2048]).all() and (waves < 2048).any()
    assert np.allclose(found[waves > 8192], plain[waves > 8192] / 32, rtol=1e-12) and (waves > 8192).any()
    between = (waves > 2048) & (waves < 8192)
    kept = (8192 / waves[between] - 1) / 3
    assert (
        np.allclose(found[between], (1 - kept) * plain[between] / 32 + kept * plain[between])
        and between.any()
    )
    turns = rotary.rotations(5, 64, 5e5, spec.scaling)
    assert np.allclose(turns[4, :, 1], np.sin(4 * found), atol=1e-6)


def test_what_no_engine_runs_is_refused_by_name(tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    for changed, says in (
        ({"model_type": "mamba"}, "is of a mamba; the engines run qwen2, llama, mistral and gemma4"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "it has no 'low_freq_factor'"),
        (
            {"rope_scaling": {"rope_type": "llama3", "low_freq_factor": 4.0, "high_freq_factor": 1.0}},
            "high_freq_factor is 1.0, not above low_freq_factor, 4.0",
        ),
        ({"rope_scaling": {"rope_type": "yarn"}}, "of the kind yarn"),
        ({"use_sliding_window": True}, "a window of 4096"),
        ({"model_type": "llama", "attention_bias": True}, "biases in other places"),
        ({"hidden_act": "gelu"}, "the activation gelu"),
        ({"hidden_size": None}, "is not what transformers writes"),
        ({"model_type": "gemma4_text"}, "is not what transformers writes: it has no"),
    ):
        (folder / "config.json").write_text(json.dumps({**CONFIG, **changed}))
        with pytest.raises(UsageError, match=says):
            checkpoints.spec_of(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(UsageError, match="is not what transformers writes"):
        checkpoints.spec_of(folder)
    with pytest.raises(UsageError, match=r"does not exist"):
        checkpoints.opened(tmp_path / "none.gguf")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\3\0\0\0")
    with pytest.raises(UsageError, match=r"is no whole GGUF file"):
        checkpoints.opened(tmp_path / "cut.gguf")


def test_a_gemma_says_what_it_is(tmp_path):
    """The fields that transformers 5.23 writes of the tiny model in test_engine_gemma.py, and the hub's."""
    from test_engine_gemma import GET, SPEC

    m = SPEC.model
    config = {
        "model_type": "gemma4_text",
        "num_hidden_layers": m.layers,
        "hidden_size": m.hidden,
        "intermediate_size": m.mlp,
        "num_attention_heads": m.heads,
        "num_key_value_heads": m.kv_heads,
        "head_dim": m.head_dim,
        "per_layer_config": {"2": {"head_dim": 128}, "5": {"head_dim": 128}},
        "vocab_size": m.vocab,
        "vocab_size_per_layer_input": m.vocab,
        "hidden_size_per_layer_input": m.ple,
        "num_kv_shared_layers": m.shared_kv,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "sliding_window": m.window,
        "final_logit_softcapping": m.softcap,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1e6,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        "tie_word_embeddings": True,
    }
    saved(tmp_path / "tiny", config, SPEC, GET)
    told, get = checkpoints.opened(tmp_path / "tiny", on="cpu")
    assert told == replace(SPEC, model=replace(m, name="tiny"))
    assert (get("model.embed_tokens.weight") == GET("model.embed_tokens.weight")).all()
    hub = {**config, "global_head_dim": 128}
    del hub["per_layer_config"]
    (tmp_path / "tiny" / "config.json").write_text(json.dumps({"model_type": "gemma4", "text_config": hub}))
    assert isinstance(checkpoints.spec_of(tmp_path / "tiny"), gemma.Spec)
    assert checkpoints.spec_of(tmp_path / "tiny") == told
    for changed, says in (
        ({"enable_moe_block": True}, "mixture of experts"),
        ({"layer_types": ["full_attention"] * 3 + ["sliding_attention"] * 3}, "another order"),
        ({"attention_k_eq_v": True}, "keys that serve as values"),
    ):
        (tmp_path / "tiny" / "config.json").write_text(json.dumps({**config, **changed}))
        with pytest.raises(UsageError, match=says):
            checkpoints.spec_of(tmp_path / "tiny")
