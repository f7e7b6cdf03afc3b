"""The C++ kernels equal plain torch for every shape, and models give the same texts with them."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from glassformer.decoding import GenerationConfig, generate, record_steps
from glassformer.decoding.beam import BeamSearch
from glassformer.decoding.recorded_beam import STATE
from glassformer.kernels.cpp_kernels import CppKernels
from glassformer.kernels.cpp_library import KernelBuildError
from glassformer.kernels.kernel_registry import cpp_kernels
from glassformer.kernels.kernel_set import KernelSet
from glassformer.models import build_model, preset
from glassformer.nn import Mask, attend
from glassformer.nn.masks import find_key_end
from glassformer.nn.norms import normalize
from glassformer.nn.positions import Rotary, Rotation
from glassformer.runtime.choose_runner import use_compiled_kernels
from glassformer.runtime.recorded_steps import Shape
from recording import BEGIN, DECODERS, END, PAIR, assert_same, make, recordings_of


@pytest.fixture(scope="module", autouse=True)
def kernels():
    try:
        return cpp_kernels()
    except KernelBuildError as error:
        pytest.skip(str(error))


@given(
    rows=st.integers(1, 5),
    groups=st.integers(1, 3),
    served=st.integers(1, 3),
    n_queries=st.integers(1, 9),
    n_keys=st.integers(1, 40),
    width=st.sampled_from([16, 32, 64, 128]),
    added_by=st.sampled_from(["row", "query", "head"]),
    seed=st.integers(0, 2**32),
)
def test_attention_equals_the_formula(rows, groups, served, n_queries, n_keys, width, added_by, seed):
    torch.manual_seed(seed)
    heads = groups * served
    q = 3 * torch.randn(rows, n_queries, heads, width).transpose(1, 2)
    k, v = torch.randn(2, rows, groups, n_keys + 3, width)[:, :, :, :n_keys]
    allowed = torch.rand(rows, 1, 1 if added_by == "row" else n_queries, n_keys) > 0.5
    bias = torch.randn(*{"row": (1,), "query": (n_queries, 1), "head": (1, heads, n_queries, n_keys)}[added_by])
    added, key_end = torch.where(allowed, bias, -torch.inf), find_key_end(allowed)
    assert cpp_kernels().can_attend(q, k, v, added)
    for row, end in enumerate(key_end.tolist()):
        k[row, :, end:] = v[row, :, end:] = torch.nan  # these keys must not be read
    found = cpp_kernels().attend(q, k, v, added, key_end, 0.3)
    exact_k, exact_v = (x.nan_to_num().double().repeat_interleave(served, 1) for x in (k, v))
    weights = (q.double() * 0.3 @ exact_k.mT + added).softmax(-1).nan_to_num()  # zeros where all keys are masked
    torch.testing.assert_close(found, (weights @ exact_v).float(), rtol=0, atol=2e-5)
    short = cpp_kernels().attend(q, k.half(), v.half(), added, key_end, 0.3)
    torch.testing.assert_close(short, found, rtol=0, atol=3e-2)  # float16 rounds scores of 50 by 0.02


def test_values_of_another_width_use_plain_torch():
    q, k, v = torch.randn(1, 2, 1, 64), torch.randn(1, 2, 5, 64), torch.randn(1, 2, 5, 16)
    mask = Mask(real=torch.tensor([[True] * 4 + [False]]))
    with torch.inference_mode():
        found, right = (attend(q, k, v, mask=mask, backend=backend).output for backend in ("sdpa", "math"))
    torch.testing.assert_close(found, right)


def test_rows_cannot_move_to_another_group_or_beyond_the_cache():
    keys = torch.zeros(4, 1, 3, 16)
    with pytest.raises(RuntimeError, match="another group"):
        cpp_kernels().move_rows(
            keys, keys.clone(), torch.tensor([0, 2, 2, 3]), position=torch.tensor([1]), width=2, length=None
        )
    with pytest.raises(RuntimeError, match="more than there are"):
        cpp_kernels().move_rows(
            keys, keys.clone(), torch.tensor([0, 1]), position=torch.tensor([4]), width=2, length=None
        )


def test_attention_passes_nan_on():
    q, k = torch.ones(1, 2, 1, 16), torch.ones(1, 2, 5, 16)
    q[0, 1, 0, 3] = torch.nan
    found = cpp_kernels().attend(q, k, k, torch.zeros(5), torch.tensor([5]), 1.0)
    assert found.isnan().all(-1).flatten().tolist() == [False, True]


@given(rows=st.integers(1, 4), width=st.integers(1, 70), broken=st.booleans(), seed=st.integers(0, 2**32))
def test_best_token_equals_torchs_max(rows, width, broken, seed):
    torch.manual_seed(seed)
    scores = torch.randint(-30, 30, (rows, width)).float()  # whole numbers, for ties
    scores[torch.rand(rows, width) > 0.8] = -torch.inf
    if broken:
        scores[0, -1] = torch.nan
    highest, places = cpp_kernels().best_token(scores)
    torch.testing.assert_close(highest, scores.max(-1).values, equal_nan=True)
    is_highest = (scores == highest[:, None]) | (scores.isnan() & highest.isnan()[:, None])
    assert places.tolist() == is_highest.int().argmax(1).tolist(), "the first of equal tokens"


@given(
    rows=st.integers(1, 4),
    width=st.integers(1, 300),
    share=st.floats(0, 1),
    forbidden=st.sampled_from([0.0, 0.2, 1.0]),
    broken=st.booleans(),
    offset=st.sampled_from([0.0, 3000.0]),  # a log-probability must not lose digits to large logits
    seed=st.integers(0, 2**32),
)
def test_best_tokens_equal_torchs_topk(rows, width, share, forbidden, broken, offset, seed):
    torch.manual_seed(seed)
    count = 1 + int(share * (min(width, 64) - 1))
    scores, bias = torch.randint(-9, 9, (rows, width)).float() + offset, torch.randn(width)
    bias[torch.rand(width) < forbidden] = -torch.inf
    if broken:
        scores[0, -1] = torch.nan
        scores[-1, 0] = torch.inf
        scores[rows // 2] = -torch.inf
    values, tokens = cpp_kernels().best_tokens(scores, bias, count)
    logs = scores.log_softmax(-1) + bias
    torch.testing.assert_close(values, logs.topk(count).values, rtol=1e-6, atol=2e-5, equal_nan=True)
    torch.testing.assert_close(values, logs.gather(1, tokens), rtol=1e-6, atol=2e-5, equal_nan=True)
    assert all(len({*row}) == count for row in tokens.tolist()), "each token once"


@given(rows=st.integers(1, 4), width=st.integers(1, 300), share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_best_tokens_order_ties_by_the_lower_token(rows, width, share, seed):
    torch.manual_seed(seed)
    count = 1 + int(share * (min(width, 64) - 1))
    scores = torch.randint(-4, 4, (rows, width)).float()
    _, tokens = cpp_kernels().best_tokens(scores, torch.zeros(width), count)
    assert torch.equal(tokens, scores.sort(descending=True, stable=True).indices[:, :count])


def some_rows(shape, seed, *, strided):
    """Random rows of this shape; with `strided`, a part of wider rows."""
    torch.manual_seed(seed)
    x = 3 * torch.randn(*shape[:-1], shape[-1] + 5) if strided else 3 * torch.randn(shape)
    return x[..., 2 : shape[-1] + 2] if strided else x


ROW_SHAPES = st.sampled_from([(1, 1, 16), (3, 7), (2, 3, 33), (1, 576), (2, 2, 3, 64), (40, 1000), (5, 1)])


@given(shape=ROW_SHAPES, strided=st.booleans(), affine=st.booleans(), seed=st.integers(0, 2**32))
@torch.no_grad()
def test_norms_equal_torchs(shape, strided, affine, seed):
    x = some_rows(shape, seed, strided=strided) + 2
    for norm in (nn.RMSNorm(shape[-1], 1e-5, affine), nn.LayerNorm(shape[-1], 1e-5, affine, bias=seed % 2 == 0)):
        for parameter in norm.parameters():
            nn.init.normal_(parameter)
        found = normalize(norm, x, cpp_kernels())
        torch.testing.assert_close(found, norm.double()(x.double()).float(), rtol=1e-5, atol=2e-5)
        norm.float()
        alone = [normalize(norm, row, cpp_kernels()) for row in x.flatten(0, -2)]
        assert torch.equal(torch.stack(alone), found.flatten(0, -2)), "a row does not depend on the others"


@torch.no_grad()
def test_norms_of_rows_in_another_order_equal_torchs():
    heads = torch.randn(3, 5, 4, 16).transpose(1, 2)  # rows that have no common distance
    norm = nn.LayerNorm(16)
    torch.testing.assert_close(normalize(norm, heads, cpp_kernels()), norm(heads), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(normalize(norm, heads.mT.contiguous().mT, cpp_kernels()), norm(heads))


@settings(max_examples=30, deadline=None)
@given(shape=ROW_SHAPES, strided=st.booleans(), seed=st.integers(0, 2**32))
@torch.no_grad()
def test_the_gate_equals_torchs(shape, strided, seed):
    gate, up = (some_rows(shape, seed + i, strided=strided) for i in range(2))
    gate = gate * 10
    right = nn.functional.silu(gate.double()) * up.double()
    torch.testing.assert_close(cpp_kernels().silu_gate(gate, up), right.float(), rtol=2e-6, atol=1e-6)


@torch.no_grad()
def test_the_gate_of_extreme_numbers_is_finite_and_passes_nan_on():
    gate = torch.tensor([-1e30, -100, -88, 0, 88, 1e30, torch.nan])
    found = cpp_kernels().silu_gate(gate, torch.ones(7))
    assert found.tolist()[:6] == [0, 0, 0, 0, 88, pytest.approx(1e30)]
    assert found[6].isnan()


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 3),
    heads=st.integers(1, 4),
    length=st.integers(1, 9),
    width=st.sampled_from([2, 6, 16, 64, 80]),
    shared=st.booleans(),
    seed=st.integers(0, 2**32),
)
@torch.no_grad()
def test_rotation_equals_torchs(rows, heads, length, width, shared, seed):
    torch.manual_seed(seed)
    x = torch.randn(rows, length, heads, width).transpose(1, 2)
    positions = torch.randint(0, 5000, (1 if shared else rows, length))
    rotation = Rotary(width)(positions)
    for each in (rotation, Rotation(rotation.cos.float(), rotation.sin.float())):
        torch.testing.assert_close(each.rotate(x, cpp_kernels()), each.rotate(x), rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_a_token_is_written_like_torch_does():
    k, v = torch.randn(2, 3, 1, 2, 16).transpose(2, 3)
    found, right = ([torch.zeros(4, 2, 5, 16)[:3] for _ in range(2)] for _ in range(2))
    cpp_kernels().write_token(k, v, *found, torch.tensor([3]))
    KernelSet().write_token(k, v, *right, torch.tensor([3]))
    assert all(map(torch.equal, found, right))
    assert found[0][:, :, 3].abs().sum() > 0
    halves = [store.half() for store in found]
    cpp_kernels().write_token(k, v, *halves, torch.tensor([0]))
    assert torch.equal(halves[0][:, :, 0], k[:, :, 0].half())
    assert torch.equal(halves[1][:, :, 0], v[:, :, 0].half())
    narrow = [torch.zeros(3, 2, 5, 12, dtype=torch.float16) for _ in range(2)]  # no whole registers: by plain torch
    cpp_kernels().write_token(k[..., :12], v[..., :12], *narrow, torch.tensor([1]))
    assert torch.equal(narrow[1][:, :, 1], v[:, :, 0, :12].half())
    with pytest.raises(RuntimeError, match="place 5 in a cache of 5"):
        cpp_kernels().write_token(k, v, *found, torch.tensor([5]))


def test_row_kernels_are_not_used_where_gradients_or_other_dtypes_are_needed():
    x, norm = torch.randn(2, 8), nn.LayerNorm(8)
    assert not cpp_kernels().has_row_kernels(x)  # gradients are recorded
    assert normalize(norm, x, cpp_kernels()).requires_grad
    with torch.no_grad():
        assert cpp_kernels().has_row_kernels(x)
        assert not cpp_kernels().has_row_kernels(x, x.bfloat16())
        assert not cpp_kernels().has_row_kernels(x[:0])
        assert normalize(norm.bfloat16(), x.bfloat16(), cpp_kernels()).dtype == torch.bfloat16


@given(groups=st.integers(1, 3), width=st.integers(1, 6), place=st.integers(0, 7), seed=st.integers(0, 2**32))
def test_moved_rows_equal_indexing(groups, width, place, seed):
    torch.manual_seed(seed)
    keys, values = torch.randn(2, groups * width + 1, 2, 7, 16)
    rows = torch.randint(0, width, (groups * width,)) + torch.arange(groups * width) // width * width
    expected = [store.clone() for store in (keys, values)]
    for store, new in zip((keys, values), expected, strict=True):
        new[: len(rows), :, :place] = store[rows][:, :, :place]
    cpp_kernels().move_rows(keys, values, rows, position=torch.tensor([place]), width=width, length=None)
    assert torch.equal(keys, expected[0])
    assert torch.equal(values, expected[1])


@pytest.mark.parametrize("name", [*DECODERS, "pair"])
@pytest.mark.parametrize("beams", [1, 3])
def test_models_give_the_same_texts_with_the_kernels(name, beams):
    model = make(replace(PAIR if name == "pair" else DECODERS[name], d_model=64)).float()
    texts = [[3, 4, 5], [6], [7, 8, 9, 10]]
    begin = BEGIN if name == "pair" else None
    config = GenerationConfig(max_new_tokens=12, num_beams=beams)
    write = partial(generate, model, texts, config, begin=begin, end=END, with_log_probs=beams == 1)
    plain = write()
    use_compiled_kernels(model)
    record_steps(model)
    for _ in range(2):
        assert_same(plain, write(), tolerance=1e-4)
        caches = [recording.cache for recording in recordings_of(model)._free]
        assert caches
        reads_stale = {recording.reads_stale_entries for recording in recordings_of(model)._free}
        assert reads_stale == {model.config.attention_softcap is not None}, (
            "torch computes capped scores, over all keys"
        )
        if True in reads_stale:
            continue  # such a cache is cleared before its next use
        with torch.inference_mode():  # old cache contents must not be read
            for cache in caches:
                torch._foreach_mul_([*cache.keys, *cache.values, *cache.memory_keys, *cache.memory_values], torch.nan)


@pytest.mark.parametrize("with_kernels", [True, False])
@pytest.mark.parametrize("name", ["rotary, grouped", "pair"])
def test_the_cache_may_be_float16(name, with_kernels):
    model = make(replace(PAIR if name == "pair" else DECODERS[name], d_model=64)).float()
    begin = BEGIN if name == "pair" else None
    write = partial(generate, model, [[3, 4, 5], [6]], begin=begin, end=END, with_log_probs=True)
    if with_kernels:
        use_compiled_kernels(model)
    config = GenerationConfig(max_new_tokens=12)
    expected = write(config)
    record_steps(model, cache_dtype=torch.float16)
    with recordings_of(model).borrow(Shape(1, 32)) as recording:
        assert {store.dtype for store in recording.cache.keys} == {torch.float16}
    assert_same(expected, write(config), tolerance=0.05)
    beams = GenerationConfig(max_new_tokens=12, num_beams=3)
    assert all(found[0].score is not None for found in write(beams))


def test_a_compiled_function_can_use_the_kernels():
    kernels = cpp_kernels()

    def choose(q):
        return q + 1 if kernels.can_attend(q, q, q, torch.zeros(1, 1, 1, 1)) else q

    with torch.inference_mode():
        q = torch.zeros(1, 2, 1, 16)
        assert torch.compile(choose, backend="eager", fullgraph=True)(q).all()


@given(
    sentences=st.integers(1, 4),
    width=st.integers(1, 5),
    vocabulary=st.integers(2, 12),
    steps=st.integers(1, 6),
    penalty=st.sampled_from([0.0, 0.7, 1.0, 2.0]),
    early=st.sampled_from([True, False, "never"]),
    seed=st.integers(0, 2**32),
)
def test_beams_are_extended_as_by_plain_torch(sentences, width, vocabulary, steps, penalty, early, seed):
    """All tensors of the state stay equal, also with equal totals, impossible tokens and limits of different length."""
    torch.manual_seed(seed)
    config = GenerationConfig(num_beams=width, length_penalty=penalty, early_stopping=early)
    limits = torch.randint(1, steps + 1, (sentences,))
    plain, fast = (
        BeamSearch(None, torch.zeros(sentences, 1), None, config, 0, limits, capacity=steps, kernels=kernels)
        for kernels in (KernelSet(), cpp_kernels())
    )
    for _ in range(steps):
        logits = torch.randint(-3, 3, (sentences * width, vocabulary)).float()  # few values: many ties
        logits[torch.rand_like(logits) < 0.2] = -torch.inf
        logits[:, 1] = 0.0
        logs, tokens = KernelSet().best_tokens(logits, torch.zeros(vocabulary), min(2 * width, vocabulary))
        assert torch.equal(plain._extend_by(logs, tokens), fast._extend_by(logs, tokens))
        for name in (*STATE, "by_rank"):
            assert torch.equal(getattr(plain, name), getattr(fast, name)), name
    assert plain.results(sentences) == fast.results(sentences)


def test_a_nan_is_found_while_beams_are_extended():
    search = BeamSearch(
        None,
        torch.zeros(2, 1),
        None,
        GenerationConfig(num_beams=2),
        0,
        torch.tensor([4, 4]),
        capacity=4,
        kernels=cpp_kernels(),
    )
    logs, tokens = torch.randn(4, 4), torch.arange(4).repeat(4, 1)
    search._extend_by(logs, tokens)
    assert not search.has_nan
    logs[3, 2] = torch.nan
    search._extend_by(logs, tokens)
    assert search.has_nan
    search.length.fill_(4)
    with pytest.raises(RuntimeError, match="4 tokens in buffers of 4"):
        search._extend_by(logs, tokens)


@pytest.mark.parametrize("length", [1, 7, 48, 60])
@pytest.mark.parametrize("is_padded", [True, False])
@torch.no_grad()
def test_sources_are_encoded_as_by_plain_torch(length, is_padded, monkeypatch):
    """Short sources are encoded with the attention of the kernels, padded or not; long ones with torch's."""
    torch.manual_seed(length)
    model = build_model(preset("tiny-transformer-base", d_model=64, n_heads=4, max_len=64)).eval()
    source = torch.randint(5, 20, (3, length))
    mask = torch.arange(length) < torch.tensor([[length], [length // 2 + 1], [1]]) if is_padded else None
    expected = model.encode(source, mask)
    attend, called = CppKernels.attend, []
    monkeypatch.setattr(CppKernels, "attend", lambda *args: called.append(1) or attend(*args))
    found = model.encode(source, mask, kernels=cpp_kernels())
    assert len(called) == (model.config.n_encoder_layers if length <= 48 else 0)
    is_real = torch.ones(3, length, dtype=torch.bool) if mask is None else mask
    torch.testing.assert_close(found[is_real], expected[is_real], rtol=1e-5, atol=1e-5)
