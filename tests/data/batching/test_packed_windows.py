"""Documents packed into windows: their targets, their order, and attention within one document only."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st

from glassformer.data.batching.labeled_batches import IGNORED
from glassformer.data.batching.packed_windows import PackedBatches
from glassformer.data.batching.token_stream import TokenStream, write_stream
from glassformer.models import DecoderModel
from glassformer.tasks.configs.small_models import small_decoder
from glassformer.tasks.language import Language, LanguageConfig
from glassformer.text.tokenizer import END
from glassformer.training.train_config import TrainConfig


def encode(texts):
    return [[ord(letter) - 80 for letter in text] for text in texts]


@pytest.fixture
def documents(tmp_path):
    texts = ["abcde", "fg", "hijklmno", "p", "qrstuv" * 5]
    return write_stream(tmp_path / "documents", texts, encode, has_documents=True)


def test_the_stream_has_an_end_around_each_document(documents):
    ids = documents.ids.tolist()
    assert ids[0] == ids[-1] == END
    assert ids.count(END) == 6
    assert documents.n_documents == 5
    assert documents.n_bytes == 46


def test_a_batch_is_a_function_of_seed_and_number(documents):
    one, two = (PackedBatches(documents, 8, 24, seed=1) for _ in range(2))
    first = [one[step] for step in range(20)]
    for step in (13, 2, 19, 0):
        assert all(torch.equal(a, b) for a, b in zip(two[step], first[step], strict=True))
    other = PackedBatches(documents, 8, 24, seed=2)
    assert any(not torch.equal(other[step].tokens, first[step].tokens) for step in range(4))
    assert {batch.tokens.shape for batch in first} == {(3, 8)}
    assert all(0 < batch.n_target_tokens <= 24 for batch in first)


def numbered(folder, length):
    """A stream whose tokens are 0, 1, 2, ... ."""
    return write_stream(folder, [range(length)], lambda texts: [list(t) for t in texts], has_documents=False, size=len)


@given(length=st.integers(2, 90), context=st.integers(1, 20), max_tokens=st.integers(1, 60), seed=st.integers(0, 9))
@example(length=1023, context=128, max_tokens=256, seed=0)
@example(length=299, context=100, max_tokens=100, seed=0)
def test_every_token_except_the_first_is_a_target_once_per_epoch(tmp_path_factory, length, context, max_tokens, seed):
    stream = numbered(tmp_path_factory.mktemp("stream") / "x", length)
    batches = PackedBatches(stream, context, max_tokens, seed)
    assert batches.rows * batches.width <= max(max_tokens, batches.width)
    steps = [batches[step] for step in range(-(-3 * batches.n_windows // batches.rows))]
    tokens, targets = (torch.cat([batch[part] for batch in steps]) for part in (0, 1))
    assert sum(batch.n_target_tokens for batch in steps) == int((targets != IGNORED).sum())
    assert (targets != IGNORED).any(1).all()  # so that no batch is without a target
    assert torch.equal(targets[targets != IGNORED], tokens[targets != IGNORED] + 1)
    for epoch in range(3):
        seen = targets[epoch * batches.n_windows : (epoch + 1) * batches.n_windows]
        assert sorted(seen[seen != IGNORED].tolist()) == list(range(1, length))
    # The windows are at most one more than a text of this length needs.
    assert batches.n_windows <= -(-(length - 1) // batches.width) + 1
    assert len(batches) == -(-batches.n_windows // batches.rows)


@pytest.mark.parametrize("length", [801, 803, 806, 807])
def test_windows_begin_at_other_places_in_each_epoch(tmp_path, length):
    batches = PackedBatches(numbered(tmp_path / "x", length), 8, 8)
    begins = {int(batches[step].tokens[0, 0]) % 8 for step in range(40 * batches.n_windows)}
    assert len(begins) >= 4


def test_a_target_that_two_windows_share_adds_nothing_to_the_loss(tmp_path):
    stream = write_stream(tmp_path / "x", ["abcdefghijk"], encode, has_documents=False)
    batches = PackedBatches(stream, 7, 14, seed=0)
    batch = batches[0]
    assert batch.n_target_tokens == 10 < batch.targets.numel()
    config = LanguageConfig(train=TrainConfig(label_smoothing=0.1))
    model = DecoderModel(small_decoder(vocab_size=60, d_model=16, d_ff=16, n_decoder_layers=1, max_len=7)).eval()
    logits = model(batch.tokens)
    kept = batch.targets != IGNORED
    expected = F.cross_entropy(logits[kept], batch.targets[kept], reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(Language(config).loss(model, batch), expected)


def test_documents_in_a_row_do_not_see_each_other(documents):
    batch = PackedBatches(documents, 16, 64, seed=0)[0]
    torch.manual_seed(0)
    model = DecoderModel(small_decoder(vocab_size=60, d_model=16, d_ff=16, n_decoder_layers=1, max_len=16)).eval()
    logits = model(batch.tokens, segments=batch.segments)
    for row, tokens in enumerate(batch.tokens.tolist()):
        borders = [place for place, token in enumerate(tokens) if token == END and place]
        for begin, end in zip([0, *borders], [*borders, 16], strict=True):
            alone = model(torch.tensor([tokens[begin:end]]))
            torch.testing.assert_close(logits[row, begin:end], alone[0], atol=1e-5, rtol=0)


def test_a_single_text_has_no_document_borders(tmp_path):
    stream = write_stream(tmp_path / "x", ["abc" * 30], encode, has_documents=False, unknown=19)
    assert END not in stream.ids
    assert stream.n_unknown == 30
    assert PackedBatches(stream, 8, 16)[0].segments is None
    assert np.array_equal(TokenStream(tmp_path / "x").ids, stream.ids)
    with pytest.raises(ValueError, match="has 1 tokens: expected at least two"):
        write_stream(tmp_path / "y", ["a"], encode, has_documents=False)
