"""Tasks of encoders: what a resumed run keeps, and the parts that they share."""

import shutil
from dataclasses import replace

import pytest

from glassformer.data.batching.labeled_batches import LabeledBatches, LabeledRow, PairedBatches
from glassformer.data.corpora.synthetic_pairs import ScoredPair
from glassformer.data.readers.tagged_sentences import TaggedSentence
from glassformer.pipelines.examples import LabeledExample
from glassformer.tasks.classification import Classification, ClassificationConfig, LabeledData
from glassformer.tasks.configs.shared import Splits
from glassformer.tasks.paraphrase import Paraphrase, ParaphraseConfig
from glassformer.tasks.similarity import Similarity, SimilarityConfig
from glassformer.tasks.tagging import Tagging, TaggingConfig
from glassformer.text import BpeDropout, Tokenizer
from glassformer.text.tags import Entity
from glassformer.training.run_folder import RunFolder, open_run
from tasks.tiny_tasks import encoder_config, files_of


def test_one_example_is_one_example():
    texts = Splits([LabeledExample("it is good", labels=("good",))], [])
    told = Classification(ClassificationConfig()).describe(texts)
    assert told == "1 text to learn from, 0 to validate on; 1 class: good 100%"
    pairs = Splits([ScoredPair("a", "b", 1.0)], [])
    assert Similarity(SimilarityConfig()).describe(pairs).startswith("1 pair to learn from, 0 to validate on; ")
    assert Paraphrase(ParaphraseConfig()).describe(pairs).startswith("1 pair to learn from, 100% of them the same; ")
    sentences = Splits([TaggedSentence(("Eva", "sees"), (Entity(0, 1, "PERSON"),))], [])
    told = Tagging(TaggingConfig()).describe(sentences)
    assert told == "1 sentence to learn from, 0 to validate on; 1 entity of 1 label: PERSON 100%"


@pytest.mark.parametrize(
    ("task", "how"),
    [
        ("classification", {}),
        ("classification", {"multi_label": True}),
        ("similarity", {}),
        ("extraction", {}),
        ("tagging", {}),
        ("tagging", {"bpe_dropout": 0.1, "bpe_versions": 2}),
    ],
)
def test_tasks_of_encoders_resume_without_tokenizing(tmp_path, task, how, monkeypatch):
    kind, config = encoder_config(tmp_path, task, **how)
    kind(config).train(tmp_path / "m")
    before, read = files_of(tmp_path / "m"), []
    plain = Tokenizer.offsets_batch
    monkeypatch.setattr(Tokenizer, "offsets_batch", lambda self, texts: read.extend(texts) or plain(self, texts))
    monkeypatch.setattr(BpeDropout, "encode_batch", lambda *arguments: pytest.fail("the run keeps its rows"))
    shutil.rmtree(tmp_path / "m.run" / "checkpoints" / "step-00000004")  # as if the run had been killed at update 3
    kind(config).train(tmp_path / "m")
    assert files_of(tmp_path / "m")["model.safetensors"] == before["model.safetensors"]
    assert read, "the validation tokenizes"
    assert not [text for text in read if "learn" in text[0]], "texts to learn from were tokenized again"


def test_damaged_rows_are_tokenized_again(tmp_path):
    kind, config = encoder_config(tmp_path, "classification")
    kind(config).train(tmp_path / "m")
    (file,) = (tmp_path / "m.run" / "tokens").glob("*/train-0/answers.bin")
    right = file.read_bytes()
    file.write_bytes(bytes(len(right)))
    kind(config).train(tmp_path / "m")
    assert file.read_bytes() == right


def test_texts_that_were_cut_are_counted_in_a_resumed_run_too(tmp_path):
    kind, config = encoder_config(tmp_path, "classification")
    task = kind(replace(config, model=replace(config.model, max_len=4)))
    task.train(tmp_path / "m")
    with open_run(tmp_path / "m") as run:
        run.bind(task.name, task.config, task.inputs())
        assert any("60 of them are longer than 4 tokens" in note for note in task.prepare(run).notes)


def test_two_texts_are_one_input_or_two():
    one = Classification(ClassificationConfig())
    assert one._inputs(LabeledExample("a", ("x",), "b")) == [("a", "b")]
    assert one._inputs(LabeledExample("a", ("x",))) == [("a", None)]
    assert Similarity(SimilarityConfig())._inputs(ScoredPair("a", "b", 1.0)) == [("a", None), ("b", None)]
    assert one.sides(LabeledExample("a", ("x",), "b")) == ("a b", "")


def test_versions_of_the_rows_take_turns_by_epoch():
    task = Classification(ClassificationConfig())
    versions = [[LabeledRow([number], [0], 0)] for number in (5, 7)]
    batches = task.in_batches(versions, pad=0)
    assert [batches[step].tokens[0, 0].item() for step in range(3)] == [5, 7, 5]
    assert isinstance(task.in_batches(versions[:1], pad=0), LabeledBatches)
    assert isinstance(Similarity(SimilarityConfig()).in_batches([versions[0] * 2], pad=0), PairedBatches)


def test_empty_splits_are_refused_before_a_model_is_made(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\n", encoding="utf-8")
    (tmp_path / "b.tsv").write_text("text\tlabel\ngood\tx\nbad\ty\n", encoding="utf-8")
    for train, valid, message in (("a", "b", "no examples are left to learn from"), ("b", "a", "left for validation")):
        data = LabeledData(data=(tmp_path / f"{train}.tsv",), valid=(tmp_path / f"{valid}.tsv",))
        with pytest.raises(ValueError, match=message):
            Classification(ClassificationConfig(data=data)).prepare(RunFolder(tmp_path / "m.run"))
