"""Each kind of model learns a toy task in seconds. A leaking mask would show here."""

import itertools

import pytest
import torch

from glassformer.data.corpora.toy import BEGIN, END, N_SPECIAL, PAD, PairTaskData, counting_rows
from glassformer.decoding import GenerationConfig, generate
from glassformer.models import build_model, preset
from glassformer.training import fit, label_smoothed_cross_entropy

SIZE = {"d_model": 32, "n_heads": 4, "d_ff": 64, "dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}


def until(model, is_learned, every=25):
    """Return a function that ends `fit` after a report if the model has learned enough by then."""

    def stop(report):
        if report.step % every:
            return False
        model.eval()
        with torch.no_grad():
            done = is_learned()
        model.train()
        return done

    return stop


def exact_match(model, data):
    test = next(PairTaskData(data.task, data.n_symbols, data.min_length, data.max_length, 100, seed=99).batches())
    sources = [[token for token in row if token != PAD] for row in test.source.tolist()]
    config = GenerationConfig(max_new_tokens=data.max_length + 1)
    answers = [written[0].tokens for written in generate(model, sources, config, begin=BEGIN, end=END)]
    wanted = [[token for token in row if token not in (PAD, END)] for row in test.target_out.tolist()]
    return sum(answer == right for answer, right in zip(answers, wanted, strict=True)) / len(wanted)


@pytest.mark.parametrize(
    ("name", "task"),
    [
        # T5 has no positions in its cross-attention. At this size it learns to sort, but hardly to reverse.
        ("tiny-transformer-base", "reverse"),
        pytest.param("tiny-t5-small", "sort", marks=pytest.mark.full),
        pytest.param("tiny-marian", "reverse", marks=pytest.mark.full),
    ],
)
def test_encoder_decoders_learn_pairs(name, task):
    torch.manual_seed(1)
    data = PairTaskData(task, n_symbols=5 if task == "sort" else 7, min_length=2, max_length=3)
    model = build_model(preset(name, **SIZE, vocab_size=data.vocab_size, init="xavier"))

    def loss(batch):
        logits = model(batch.source, batch.target_in, batch.source_mask, batch.target_mask)
        return label_smoothed_cross_entropy(logits, batch.target_out, ignore=PAD)

    learned = until(model, lambda: exact_match(model, data) >= 0.95, every=50)
    fit(model, data.batches(), loss, steps=900, lr=5e-3 if task == "sort" else 3e-3, on_step=learned)
    assert exact_match(model, data) >= 0.95


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
def test_decoders_learn_to_count(name):
    model = build_model(preset(name, **SIZE, vocab_size=10 + N_SPECIAL))

    def loss(rows):
        return label_smoothed_cross_entropy(model(rows[:, :-1]), rows[:, 1:])

    row = next(counting_rows(10, 14, 50, seed=9))

    def counts():
        answers = generate(model, row[:, :5].tolist(), GenerationConfig(max_new_tokens=5), end=END)
        return [written[0].tokens for written in answers] == row[:, 5:10].tolist()

    fit(model, counting_rows(10, 10, 64), loss, steps=200, lr=3e-3, on_step=until(model, counts))
    assert counts()


@pytest.mark.parametrize("name", ["tiny-bert-base", pytest.param("tiny-albert-base", marks=pytest.mark.full)])
def test_encoders_learn_to_fill_masks(name):
    """Every row counts by ones, so that a masked number follows from its neighbors."""
    mask_id = 10 + N_SPECIAL
    narrow = {"embedding_width": 24} if name == "tiny-albert-base" else {}
    model = build_model(preset(name, **SIZE, **narrow, vocab_size=mask_id + 1, init="xavier"))
    random = torch.Generator().manual_seed(0)

    def hidden(rows):
        chosen = torch.rand(rows.shape, generator=random) < 0.25
        return rows.masked_fill(chosen, mask_id), chosen

    def loss(rows):
        masked, chosen = hidden(rows)
        return label_smoothed_cross_entropy(model(masked), rows.masked_fill(~chosen, PAD), ignore=PAD)

    rows = next(counting_rows(10, 10, 100, max_step=1, seed=9))
    masked, chosen = hidden(rows)

    def accuracy():
        return (model(masked).argmax(-1)[chosen] == rows[chosen]).float().mean()

    learned = until(model, lambda: accuracy() >= 0.97)
    fit(model, counting_rows(10, 10, 64, max_step=1), loss, steps=400, lr=3e-3, on_step=learned)
    assert accuracy() >= 0.95


@pytest.mark.parametrize(
    ("head", "pooling"),
    [
        ("sequence_class", "mean"),
        pytest.param("token_class", None, marks=pytest.mark.full),
        pytest.param("span", None, marks=pytest.mark.full),
    ],
)
def test_class_heads_learn_their_labels(head, pooling):
    """Labels: a row's largest symbol; whether each symbol is below 3; the places of the largest and the smallest."""
    n_labels = {"sequence_class": 6, "token_class": 2, "span": None}[head]
    body = preset("tiny-bert-base", **SIZE, positions="rotary", init="xavier", vocab_size=6)
    model = build_model(body.with_head(head, n_labels=n_labels, pooling=pooling))

    def batches():
        for seed in itertools.count():
            yield torch.randint(0, 6, (64, 7), generator=torch.Generator().manual_seed(seed))

    def wanted(rows):
        if head == "sequence_class":
            return rows.max(1).values
        if head == "token_class":
            return (rows < 3).long()
        return torch.stack((rows.argmax(1), rows.argmin(1)), 1)  # (B, 2): a start and an end

    def scores(rows):
        output = model(rows)
        return output.transpose(1, 2) if head == "span" else output  # (B, T, 2) -> (B, 2, T)

    def loss(rows):
        return label_smoothed_cross_entropy(scores(rows), wanted(rows))

    rows = torch.randint(0, 6, (200, 7), generator=torch.Generator().manual_seed(10**6))

    def errors():
        answers = scores(rows).argmax(-1)
        wrong = answers != wanted(rows)
        if head == "span":  # a row may hold a symbol twice: compare the symbols, not their places
            wrong = rows.gather(1, answers) != rows.gather(1, wanted(rows))
        return wrong.float().mean()

    fit(model, batches(), loss, steps=300, lr=3e-3, on_step=until(model, lambda: errors() <= 0.03))
    assert errors() <= 0.05
