"""What tests of the second decoder share: logits of transformers' own Gemma 4 on given weights, and a
check of the row kernels. Run as a script it makes tests/data/gemma4.npz anew."""

import numpy as np


def config(spec):
    """The model's shape as transformers spells it."""
    import transformers

    m = spec.model
    return transformers.Gemma4TextConfig(
        vocab_size=m.vocab,
        hidden_size=m.hidden,
        intermediate_size=m.mlp,
        num_hidden_layers=m.layers,
        num_attention_heads=m.heads,
        num_key_value_heads=m.kv_heads,
        head_dim=m.head_dim,
        global_head_dim=m.global_head_dim,
        sliding_window=m.window,
        layer_types=["sliding_attention" if layer.window else "full_attention" for layer in spec.layers],
        final_logit_softcapping=m.softcap,
        vocab_size_per_layer_input=m.vocab,
        hidden_size_per_layer_input=m.ple,
        num_kv_shared_layers=m.shared_kv,
        rms_norm_eps=spec.epsilon,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )


def logits(spec, get, tokens, dtype="float64", device="cpu"):
    """Logits [tokens, vocab] in float64 after every token, computed in `dtype`."""
    import torch
    import transformers

    kind = getattr(torch, dtype)
    model = transformers.Gemma4ForCausalLM(config(spec)).to(kind).to(device).eval()
    state = {name: torch.from_numpy(np.array(get(name))).to(kind) for name in spec.names()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected
    model.tie_weights()
    with torch.no_grad():
        return model(torch.tensor([tokens], device=device)).logits[0].double().cpu().numpy()


if __name__ == "__main__":
    from test_engine_gemma import GET, SPEC, TOKENS

    found = logits(SPEC, GET, TOKENS)
    np.savez_compressed("tests/data/gemma4.npz", tokens=TOKENS, logits=found.astype(np.float32))
