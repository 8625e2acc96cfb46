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


def rows_right(put=lambda array: array, get=lambda array: array, target="cpu"):
    """Each of the row kernels on ragged shapes, with both kinds of tables, is right; `put` brings NumPy's
    arrays to where the target's lie, `get` brings them back.
    """
    from rooflab import ops
    from rooflab.numerics import rotary
    from rooflab.numerics.quant import Planes, dequantise_q8, from_planes, quantise_q8_0, to_planes
    from rooflab.ops import gemma_ops

    rng = np.random.default_rng(0)

    def halves(*shape):
        return rng.standard_normal(shape).astype(np.float16)

    def room(*shape, dtype=np.float16):
        return put(np.zeros(shape, dtype))

    def close(got, want, most=4):
        assert np.abs(get(got) - want).max() <= np.spacing(np.float16(most))

    def normed(x, w=1.0):
        x = x.astype(np.float64)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w

    n, heads, kv_heads, width = 3, 4, 2, 128
    candidates = np.full((70, 2), -np.inf, np.float32)
    candidates.view(np.int32)[:, 1] = np.arange(70)
    candidates[[40, 66], 0] = 2.5
    ids = rng.integers(0, 6, 9).astype(np.int32)
    tokens, position = put(ids), put(np.array([4], np.int32))
    place, length = (room(1, dtype=np.int32) for _ in range(2))
    start = rng.standard_normal((n, 72)).astype(np.float32)
    branch, after, before = halves(n, 72), halves(72), halves(72)
    residual, x, roots = put(start.copy()), room(n, 72), room(n, dtype=np.float32)
    made, query_norm, key_norm = halves(n, 8 * width), halves(width), halves(width)
    turns = rotary.rotations(16, width, 1e4)
    queries, again = room(n, heads, width), room(n, heads, width)
    keys, values = room(9, kv_heads, width), room(9, kv_heads, width)
    gates, ups, inner = halves(n, 64), halves(n, 96), room(n, 40)
    table, projected, weights = halves(6, 96), halves(n, 3, 32), halves(32)
    planes = to_planes(quantise_q8_0(table))
    embedded, seeds, told = room(n, 96, dtype=np.float32), room(n, 96), room(n, 3, 32)
    with ops.on(target):
        gemma_ops.sample_candidates(put(candidates), tokens, position, place, length)
        assert [int(get(each)[0]) for each in (position, place, length)] == [5, 4, 5]
        ids[4] = 40
        assert get(tokens).tolist() == ids.tolist()
        ids[4] = 1
        tokens[4] = 1
        gemma_ops.add_rmsnorm(residual, put(branch), put(after), put(before), out=x, roots=roots, factor=0.5)
        total = (start + normed(branch, after)) / 2
        assert np.abs(get(residual) - total).max() < 1e-5
        close(x, normed(total, before), 8)
        assert np.abs(get(roots) - np.sqrt((total**2).mean(-1) + 1e-6)).max() < 1e-6
        gemma_ops.add_rmsnorm(residual, out=x, roots=roots)
        close(x, normed(total))
        norms = put(query_norm), put(key_norm)
        gemma_ops.rope_qk_norm(put(made), *norms, put(turns), place, queries, keys, values)
        whole = normed(made.reshape(n, 8, width))
        cos, sin = (turns[4:7, None, :, i] for i in (0, 1))
        for got, part, norm in (
            (queries, whole[:, :4], query_norm),
            (keys[4:7], whole[:, 4:6], key_norm),
        ):
            a, b = np.split(part * norm.astype(np.float64), 2, -1)
            close(got, np.concatenate([a * cos - b * sin, b * cos + a * sin], -1), 8)
        close(values[4:7], whole[:, 6:])
        assert (get(keys)[:4] == 0).all() and (get(keys)[7:] == 0).all()
        only = put(np.ascontiguousarray(made[:, : 4 * width]))
        gemma_ops.rope_qk_norm(only, norms[0], None, put(turns), place, again)
        assert (get(again) == get(queries)).all()
        gemma_ops.gelu_mul(put(gates), put(ups), out=inner, column=56, roots=roots)
        g = gates[:, :40].astype(np.float64) * get(roots)[:, None]
        gelu = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
        close(inner, gelu * ups[:, 56:], 8)
        wide = Planes(put(planes.scales), put(planes.quants))
        for each, meant in ((put(table), table), (wide, dequantise_q8(from_planes(planes)))):
            gemma_ops.embedding_scaled(each, tokens, place, residual=embedded, out=seeds, factor=3.0)
            close(seeds, meant[ids[4:7]])
            assert np.abs(get(embedded) - 3 * meant[ids[4:7]].astype(np.float64)).max() < 1e-5
            gemma_ops.per_layer_embedding(
                put(projected), put(weights), each, tokens, place, out=told, factor=16.0
            )
            own = 16 * meant[ids[4:7]].astype(np.float64).reshape(n, 3, 32)
            close(told, (normed(projected, weights) + own) / np.sqrt(2), 32)


if __name__ == "__main__":
    from test_engine_gemma import GET, SPEC, TOKENS

    found = logits(SPEC, GET, TOKENS)
    np.savez_compressed("tests/data/gemma4.npz", tokens=TOKENS, logits=found.astype(np.float32))
