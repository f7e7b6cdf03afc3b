"""Tasks of encoder-decoders: the loss, the tokenizers and the token files."""

import re
from dataclasses import replace

import pytest
import torch

from glassformer.data.readers.pairs import Pair
from glassformer.models import build_model
from glassformer.pipelines.translator import Translator
from glassformer.tasks.seq2seq_task import pair_loss
from glassformer.tasks.translation import PairData, Translation, TranslationConfig
from glassformer.training.losses import r_drop_divergence
from glassformer.training.run_folder import RunFolder
from glassformer.training.train_config import TrainConfig
from pipelines.tiny_pipelines import make
from tasks.tiny_tasks import translation, write_pairs


def test_r_drop_adds_the_disagreement_of_two_passes():
    a, b = torch.randn(2, 3, 5)
    p, q = a.softmax(-1), b.softmax(-1)
    expected = ((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 4
    torch.testing.assert_close(r_drop_divergence(a, b).sum(), expected)
    assert r_drop_divergence(a, a).abs().max() < 1e-6

    from glassformer.data.corpora.toy import PairTaskData

    batch = next(PairTaskData("copy", 6).batches())
    model = build_model(TranslationConfig().model).train()
    plain, dropped = (pair_loss(model, TrainConfig(r_drop=weight), batch) for weight in (0.0, 5.0))
    assert dropped > plain
    torch.testing.assert_close(
        pair_loss(model.eval(), TrainConfig(r_drop=5.0), batch),
        pair_loss(model, TrainConfig(), batch),
        rtol=1e-4,
        atol=1e-3,
    )


def test_each_side_has_its_own_tokenizer_if_the_model_has_two_vocabularies(tmp_path):
    write_pairs(tmp_path)
    config = translation(tmp_path)
    pairs = [*config.data.splits().train]
    joint = Translation(config).initialize(pairs).pipeline
    assert joint.source_tokenizer is joint.target_tokenizer
    two = replace(config, model=replace(config.model, source_vocab_size=270, tie="none"))
    separate = Translation(two).initialize(pairs).pipeline
    assert separate.source_tokenizer.vocab_size <= 270 < separate.target_tokenizer.vocab_size <= 300


def test_validation_decodes_greedily_and_restores_the_search():
    tool = make(Translator)
    tool.generation, seen = replace(tool.generation, num_beams=4), []
    own = tool.score
    tool.score = lambda pairs: seen.append(tool.generation.num_beams) or own(pairs)
    Translation(Translation.Config()).check(tool, [Pair("the cat", "the cat")])
    assert (seen, tool.generation.num_beams) == ([1], 4)


def test_missing_validation_pairs_name_the_flags_of_the_task(tmp_path):
    names = PairData.FILE_FIELDS
    for name in names:
        (tmp_path / name).write_text("" if name.startswith("valid") else "one\n", encoding="utf-8")
    data = PairData(**{name: (tmp_path / name,) for name in names})
    with pytest.raises(ValueError, match=r"no pairs are left for validation: .*--valid-source and --valid-target"):
        Translation(replace(Translation.Config(), data=data)).prepare(RunFolder(tmp_path / "m.run"))


def test_a_note_says_which_validation_pairs_serve_the_loss_and_the_scores(tmp_path, monkeypatch):
    write_pairs(tmp_path, count=400)
    config = translation(tmp_path)
    valid = list(config.data.splits().valid)
    longest = max(len(pair.source.split()) for pair in valid)
    assert len(valid) > 5

    def validated(name, config=config):
        (note,) = Translation(config).prepare(RunFolder(tmp_path / name)).notes
        return note.partition("too long), ")[2].partition("; ")[0]

    assert validated("all") == f"{len(valid)} to validate on"
    monkeypatch.setattr("glassformer.tasks.seq2seq_task.MAX_VALID", 5)
    assert validated("some") == f"{len(valid)} to validate on: all for the loss, the first 5 for the scores"
    short = replace(config, model=replace(config.model, max_len=longest))
    found = validated("short", short)
    pattern = rf"{len(valid)} to validate on: (\d+) for the loss \((\d+) too long\), the first 5 for the scores"
    kept, left_out = map(int, re.fullmatch(pattern, found).groups())
    assert left_out > 0
    assert kept + left_out == len(valid)


def test_the_validation_loss_needs_few_logits_at_a_time(tmp_path, monkeypatch):
    from glassformer.data.batching.pair_batches import TokenBudgetBatches
    from glassformer.data.batching.token_files import write_token_files
    from glassformer.data.readers.pairs import Pair
    from glassformer.models import EncoderDecoderModel
    from glassformer.tasks import seq2seq_task
    from glassformer.tasks.configs.small_models import small_encoder_decoder

    config = small_encoder_decoder(vocab_size=50, d_model=16, n_heads=2, d_ff=16, dropout=0.0, embedding_dropout=0.0)
    model = EncoderDecoderModel(config).eval()
    pairs = [Pair("a " * (n % 7 + 1), "b " * (n % 5 + 1)) for n in range(40)]
    files = write_token_files(
        tmp_path / "t", pairs, *[lambda texts: [[9] * len(text.split()) for text in texts]] * 2, max_len=20
    )
    batches = TokenBudgetBatches(files, max_tokens=100)
    whole = seq2seq_task.validation_loss(model, batches)
    monkeypatch.setattr(seq2seq_task, "MAX_LOGITS", 700)
    assert abs(seq2seq_task.validation_loss(model, batches) - whole) < 1e-5
