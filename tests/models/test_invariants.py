"""Invariants of every model, over random configs, lengths, masks and batches."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glassformer.models import PRESETS, ModelConfig, build_model, preset
from oracle import random_model

TINY = [name for name in PRESETS if name.startswith("tiny-")]
OFTEN = ("t5-small", "bert-base", "llama")
POSITIONS = ["sinusoidal", "learned", "rotary", "relative", "alibi", "none"]
WRITERS = ("decoder", "encoder_decoder")
few = settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
every_position = pytest.mark.parametrize("positions", POSITIONS)


@st.composite
def configs(draw, positions, kinds=("encoder", "decoder", "encoder_decoder")):
    """Draw a config of a small model with this kind of positions."""
    kind = draw(st.sampled_from(kinds))
    depth = draw(st.integers(1, 2))
    n_heads = draw(st.sampled_from([1, 2, 4]))
    return ModelConfig(
        vocab_size=13,
        n_encoder_layers=0 if kind == "decoder" else depth,
        n_decoder_layers=0 if kind == "encoder" else depth,
        d_model=8 * draw(st.integers(1, 2)),
        d_ff=12,
        max_len=24,
        n_heads=n_heads,
        n_kv_heads=draw(st.sampled_from([g for g in (None, 1, 2) if g is None or n_heads % g == 0])),
        head_dim=draw(st.sampled_from([None, 6])) or (4 if n_heads == 4 else None),
        qk_norm=draw(st.booleans()),
        sliding_window=draw(st.sampled_from([None, 2, 3])),
        activation=draw(st.sampled_from(["relu", "gelu", "gelu_tanh", "silu"])),
        gated=draw(st.booleans()),
        norm=draw(st.sampled_from(["layer", "rms", "mean_std"])),
        norm_placement=draw(st.sampled_from(["pre", "post"])),
        positions=positions,
        relative_buckets=8,
        relative_max_distance=10,
        scale_embeddings=draw(st.booleans()),
        embedding_norm=draw(st.booleans()),
        share_layers=draw(st.booleans()),
        head="none" if kind == "encoder" else "language_model",
    )


def run(model, tokens, mask=None, source=None, source_mask=None):
    if model.kind == "encoder_decoder":
        return model(source, tokens, source_mask, mask)
    return model(tokens, mask)


def random_batch(config, lengths, source_lengths):
    """Return random token ids: one 1-D tensor per target length and per source length."""
    rows = [torch.randint(0, config.vocab_size, (n,)) for n in lengths]
    sources = [torch.randint(0, config.vocab_size, (n,)) for n in source_lengths]
    return rows, sources


def padded(rows, side, total):
    """Return rows padded with id 0 on one side, and their mask."""
    tokens, mask = torch.zeros(len(rows), total, dtype=torch.long), torch.zeros(len(rows), total, dtype=torch.bool)
    for index, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(total - len(row), total)
        tokens[index, place], mask[index, place] = row, True
    return tokens, mask


@every_position
@few
@given(
    data=st.data(),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    side=st.sampled_from(["left", "right"]),
    extra=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_outputs_do_not_depend_on_padding_batch_size_or_order(positions, data, lengths, side, extra, seed):
    config = data.draw(configs(positions))
    torch.manual_seed(seed)
    model = random_model(config)
    rows, sources = random_batch(config, lengths, [1 + n % 5 for n in lengths])
    order = torch.randperm(len(rows)).tolist()
    tokens, mask = padded([rows[i] for i in order], side, max(lengths) + extra)
    source, source_mask = padded([sources[i] for i in order], side, 5 + extra)
    with torch.no_grad():
        together = run(model, tokens, mask, source, source_mask)
        for place, i in enumerate(order):
            alone = run(model, rows[i][None], None, sources[i][None])[0]
            torch.testing.assert_close(together[place][mask[place]], alone, atol=1e-9, rtol=1e-9)


@every_position
@few
@given(length=st.integers(2, 8), seed=st.integers(0, 1000), data=st.data())
def test_no_gradient_reaches_a_future_token(positions, length, seed, data):
    config = data.draw(configs(positions, WRITERS))
    torch.manual_seed(seed)
    model = random_model(config)
    tokens, source = torch.randint(0, config.vocab_size, (1, length)), torch.randint(0, config.vocab_size, (1, 4))
    looked_at = []
    embeddings = model.embeddings if config.kind == "decoder" else model.target_embeddings

    def keep(module, args, output):
        output.retain_grad()
        looked_at.append(output)

    handle = embeddings.register_forward_hook(keep)
    output = run(model, tokens, source=source)
    handle.remove()
    place = data.draw(st.integers(0, length - 1))
    output[0, place].sum().backward()
    gradient = looked_at[0].grad[0]
    assert not gradient[place + 1 :].any()
    assert gradient.isfinite().all()


def test_the_causality_check_detects_a_leak():
    """An encoder attends to later tokens, so the same measurement must find gradients there."""
    model = random_model(preset("tiny-bert-base").with_head("none"))
    kept = []

    def keep(module, args, output):
        output.retain_grad()
        kept.append(output)

    model.embeddings.register_forward_hook(keep)
    model(torch.randint(0, 40, (1, 6)))[0, 2].sum().backward()
    assert kept[0].grad[0, 3:].any()


@every_position
@few
@given(
    data=st.data(),
    cuts=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    pad=st.integers(0, 2),
    seed=st.integers(0, 1000),
)
def test_cached_and_chunked_forward_equal_uncached(positions, data, cuts, pad, seed):
    config = data.draw(configs(positions, WRITERS))
    torch.manual_seed(seed)
    model, length = random_model(config), sum(cuts)
    tokens, source = torch.randint(0, 13, (2, length)), torch.randint(0, 13, (2, 5))
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, : min(pad, length - 1)] = False  # left padding, as in a batch of prompts
    source_mask = torch.ones(2, 5, dtype=torch.bool)
    source_mask[0, 3:] = False
    with torch.no_grad():
        if config.kind == "decoder":
            whole = model(tokens, mask)
            cache = model.new_cache(2, length)
            parts = [model(t, m, cache=cache) for t, m in zip(tokens.split(cuts, 1), mask.split(cuts, 1), strict=True)]
        else:
            memory = model.encode(source, source_mask)
            whole = model(source, tokens, source_mask, mask)
            cache = model.new_cache(2, length, 5)
            parts = [
                model.apply_head(model.decode(t, memory, source_mask, m, cache=cache))
                for t, m in zip(tokens.split(cuts, 1), mask.split(cuts, 1), strict=True)
            ]
    assert cache.length == length
    torch.testing.assert_close(torch.cat(parts, 1)[mask], whole[mask], atol=1e-9, rtol=1e-9)


@every_position
@few
@given(
    data=st.data(), before=st.integers(0, 3), length=st.integers(1, 7), pad=st.integers(0, 2), seed=st.integers(0, 99)
)
def test_the_only_wanted_token_gets_the_hidden_state_that_it_has_among_all(positions, data, before, length, pad, seed):
    config = data.draw(configs(positions, ["decoder"]))
    torch.manual_seed(seed)
    model = random_model(config)
    tokens = torch.randint(0, 13, (2, before + length + 1))
    mask = torch.ones(2, before + length + 1, dtype=torch.bool)
    mask[1, :pad] = False
    wanted = torch.tensor([data.draw(st.integers(0, length - 1)), length - 1])
    states, steps = [], []
    with torch.no_grad():
        for place in (None, wanted):
            cache, options = model.new_cache(2, before + length + 1), {} if place is None else {"wanted": place}
            for start, end, more in ((0, before, {}), (before, before + length, options)):
                if end > start:
                    states.append(model.decode(tokens[:, start:end], mask[:, start:end], cache=cache, **more))
            steps.append(model(tokens[:, -1:], cache=cache))
    *_, whole = states[: len(states) // 2]
    is_real = mask[:, before : before + length][[0, 1], wanted]
    torch.testing.assert_close(
        states[-1][:, 0][is_real], whole[[0, 1], wanted][is_real], atol=1e-10, rtol=1e-10, equal_nan=False
    )
    torch.testing.assert_close(*steps, atol=1e-10, rtol=1e-10)  # all keys and values are in the cache


@every_position
@few
@given(data=st.data(), seed=st.integers(0, 1000))
def test_padding_between_real_tokens_does_not_change_outputs(positions, data, seed):
    """Such padding occurs when right-padded prompts are continued."""
    config = data.draw(configs(positions))
    torch.manual_seed(seed)
    model = random_model(config)
    mask = torch.tensor([data.draw(st.lists(st.booleans(), min_size=9, max_size=9).filter(any))])
    tokens, source = torch.randint(0, 13, (1, 9)), torch.randint(0, 13, (1, 4))
    with torch.no_grad():
        apart = run(model, tokens, mask, source)[mask]
        together = run(model, tokens[mask][None], None, source)[0]
    torch.testing.assert_close(apart, together, atol=1e-9, rtol=1e-9)


@every_position
@few
@given(data=st.data(), lengths=st.lists(st.integers(1, 4), min_size=2, max_size=2), seed=st.integers(0, 999))
def test_right_padded_prompts_can_be_continued_in_the_cache(positions, data, lengths, seed):
    config = data.draw(configs(positions, ["decoder"]))
    torch.manual_seed(seed)
    model = random_model(config)
    rows = [torch.randint(0, 13, (n,)) for n in lengths]
    tokens, mask = padded(rows, "right", max(lengths))
    new = torch.randint(0, 13, (2, 3))
    cache = model.new_cache(2, max(lengths) + 3)
    with torch.no_grad():
        model(tokens, mask, cache=cache)
        continued = torch.cat([model(token, cache=cache) for token in new.split(1, 1)], 1)
        for i, row in enumerate(rows):
            alone = model(torch.cat((row, new[i]))[None])[0, -3:]
            torch.testing.assert_close(continued[i], alone, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", TINY)
def test_empty_batches_pass_through(name):
    model = random_model(preset(name))
    tokens = torch.zeros(0, 5, dtype=torch.long)
    inputs = (tokens, tokens) if model.kind == "encoder_decoder" else (tokens,)
    assert model(*inputs).shape == (0, 5, 40)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler, in some versions
@pytest.mark.parametrize(
    "name",
    [name if name.removeprefix("tiny-") in OFTEN else pytest.param(name, marks=pytest.mark.full) for name in TINY],
)
def test_models_compile_without_graph_breaks_for_varying_lengths(name, count):
    """With one layer in each stack: tracing takes seconds per layer. With --full, with all layers."""
    stacks = [stack for stack in ("n_encoder_layers", "n_decoder_layers") if getattr(preset(name), stack)]
    model = random_model(preset(name, **count(dict.fromkeys(stacks, 1), {})), dtype=torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for length in (6, 4, 9):
        tokens = torch.randint(0, 40, (2, length))
        inputs = (tokens, tokens) if model.kind == "encoder_decoder" else (tokens,)
        torch.testing.assert_close(compiled(*inputs), model(*inputs), atol=1e-5, rtol=1e-5)


@every_position
@few
@given(data=st.data(), lengths=st.lists(st.integers(1, 4), min_size=2, max_size=4), seed=st.integers(0, 999))
def test_packed_documents_equal_separate_documents(positions, data, lengths, seed):
    config = data.draw(configs(positions, ["decoder"]))
    torch.manual_seed(seed)
    model = random_model(config)
    rows = [torch.randint(0, 13, (n,)) for n in lengths]
    segments = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])[None]
    with torch.no_grad():
        packed = model(torch.cat(rows)[None], segments=segments)[0]
        alone = torch.cat([model(row[None])[0] for row in rows])
    torch.testing.assert_close(packed, alone, atol=1e-9, rtol=1e-9)


DROPS = ("dropout", "attention_dropout", "activation_dropout", "embedding_dropout")


@pytest.mark.parametrize("name", ["tiny-bert-base", "tiny-llama", "tiny-marian"])
@pytest.mark.parametrize("which", DROPS)
def test_each_dropout_acts_only_in_training(name, which):
    model = build_model(preset(name, **dict.fromkeys(DROPS, 0.0) | {which: 0.5}))
    tokens = torch.randint(0, 40, (2, 6))
    inputs = (tokens, tokens) if model.kind == "encoder_decoder" else (tokens,)
    assert torch.equal(model.eval()(*inputs), model(*inputs))
    assert not torch.equal(model.train()(*inputs), model(*inputs))


@pytest.mark.parametrize("name", TINY)
def test_half_precision_outputs_are_close_to_float32(name):
    model = random_model(preset(name), dtype=torch.float32)
    tokens = torch.randint(0, 40, (2, 6))
    inputs = (tokens, tokens) if model.kind == "encoder_decoder" else (tokens,)
    with torch.no_grad():
        exact = model(*inputs)
        half = model.to(torch.bfloat16)(*inputs)
    assert half.dtype == torch.bfloat16
    assert (half.float() - exact).abs().mean() < 0.1 * exact.abs().mean()


def test_models_run_on_the_meta_device():
    with torch.device("meta"):
        model = build_model(preset("tiny-transformer-base"))
        tokens = torch.zeros(2, 5, dtype=torch.long)
    assert model(tokens, tokens).shape == (2, 5, model.config.vocab_size)
