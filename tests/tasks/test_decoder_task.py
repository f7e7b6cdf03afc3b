"""Tasks of decoders: the size of their data, and what each validation scores."""

import pytest

from glassformer.data.readers.text_documents import Document
from glassformer.pipelines.language_model import LanguageModel
from glassformer.tasks.decoder_task import first_characters, spread_characters
from glassformer.tasks.language import Language, LanguageConfig
from glassformer.tasks.task_registry import task_named
from pipelines.tiny_pipelines import make


def test_the_size_of_the_data_is_counted_in_context_windows(tmp_path):
    (tmp_path / "t.txt").write_text("word " * 4_000, encoding="utf-8")
    task = task_named("language").with_chosen_defaults({"data.data": (tmp_path / "t.txt",), "data.valid_share": 0.5})
    corpus = task.corpus()
    assert corpus.examples == corpus.target_characters // (4 * task.config.context) > 1


def test_a_validation_scores_the_first_characters():
    whole = [Document("abc"), Document("defg"), Document("hi")]
    assert [document.text for document in first_characters(whole, 5)] == ["abc", "de"]
    assert first_characters(whole, 100) == whole


def test_a_validation_scores_the_beginning_of_each_of_a_few_long_texts():
    """Otherwise the validation of a mix of two texts scores one of them only."""
    texts = [Document("a" * 90), Document("b" * 10), Document("c" * 90)]
    assert [one.text for one in spread_characters(texts, 60)] == ["b" * 10, "a" * 25, "c" * 25]
    assert spread_characters(texts, 190) == texts
    assert spread_characters(texts[:1], 60) == first_characters(texts[:1], 60)
    many = [Document(f"{n:02}") for n in range(40)]
    assert spread_characters(many, 6) == many[:3]


def test_one_long_text_is_not_separated_into_documents():
    task = Language(LanguageConfig())
    assert not task.has_documents([Document("a long text")])
    assert task.has_documents([Document("one"), Document("two")])


def test_the_context_must_be_that_of_the_model_it_starts_from(tmp_path):
    make(LanguageModel).save(tmp_path / "m", "card")
    task = Language(LanguageConfig(context=32, start_from=tmp_path / "m"))
    with pytest.raises(ValueError, match="context=32: expected 64, as the model of --from"):
        task.initialize([Document("one"), Document("two")])
