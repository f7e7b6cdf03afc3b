"""The tokens of an explanation are those that the pipelines read and write."""

import pytest
import torch

from glassformer.inspect.explain_options import ExplainOptions
from glassformer.inspect.pipeline_text import n_weights, read_text, written_text
from glassformer.pipelines.answerer import Answerer
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.denoiser import Denoiser
from glassformer.pipelines.embedder import Embedder
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.mask_filler import MaskFiller
from glassformer.pipelines.text_to_text import TextToText
from glassformer.pipelines.translator import Translator
from pipelines.tiny_pipelines import make

TEXT = "the old cat sees"


@pytest.mark.parametrize("kind", [LanguageModel, Generator, Translator, TextToText])
def test_what_is_written_is_what_the_pipeline_writes(kind):
    pipe = make(kind)
    read = read_text(pipe, TEXT, ExplainOptions(max_tokens=6))
    assert written_text(read.model, read.target) == pipe.run(TEXT)
    assert len(read.answers) == len(read.target.ids)
    assert read.model(**read.inputs(copies=2)).shape[:2] == (2, len(read.target.ids))


@pytest.mark.parametrize("kind", [LanguageModel, Translator, Classifier, Embedder])
def test_spans_are_the_characters_of_the_tokens(kind):
    read = read_text(make(kind), TEXT, ExplainOptions(max_tokens=2))
    side = read.source.to_json()
    pieces = [TEXT[slice(*span)].strip() for span in side["offsets"] if span is not None]
    assert "".join(pieces) == TEXT.replace(" ", "")
    assert len(side["ids"]) == len(side["pieces"]) == len(side["special"]) == len(side["offsets"])


def test_a_given_target_is_read_instead_of_written():
    read = read_text(make(Translator), TEXT, ExplainOptions(target="the saw"))
    assert read.target.tokenizer.decode(read.target.ids) == "the saw"
    read = read_text(make(LanguageModel), TEXT, ExplainOptions(target=" it is"))
    assert read.target.tokenizer.decode(read.target.ids[read.target.n_given :]).strip() == "it is"
    with pytest.raises(ValueError, match=r"target makes .* tokens: expected at most 64"):
        read_text(make(Translator), TEXT, ExplainOptions(target="zq " * 60))


def test_pairs_and_blanks_are_read_as_the_pipelines_do():
    pipe = make(Classifier)
    both = read_text(pipe, "the cat\tthe saw", ExplainOptions())
    assert both.source.ids == pipe.read([("the cat", "the saw")])[0].ids
    masked = read_text(make(MaskFiller), "the ___ sees", ExplainOptions())
    assert 3 in masked.source.ids  # <unk> stands for a blank
    noised = make(Denoiser)
    assert noised.marks[0] in read_text(noised, "the ___ sees", ExplainOptions()).source.ids
    with pytest.raises(ValueError, match="expected a question, a tab and a text"):
        read_text(make(Answerer), "what?", ExplainOptions())


def test_too_long_texts_are_refused_or_cut_as_by_the_pipelines():
    with pytest.raises(ValueError, match="expected at most 64"):
        read_text(make(Translator), "zq " * 90, ExplainOptions())
    with pytest.raises(ValueError, match="expected at most 64"):
        read_text(make(LanguageModel), "zq " * 90, ExplainOptions())
    assert len(read_text(make(Classifier), "zq " * 90, ExplainOptions()).source.ids) == 64
    full = read_text(make(LanguageModel), "zq " * 20, ExplainOptions())
    assert len(full.target.ids) <= 64
    assert torch.isfinite(full.model(**full.inputs())).all()


def test_quantized_weights_count(monkeypatch):
    model = make(LanguageModel).model
    expected = model.n_parameters()
    assert n_weights(model) == expected
    monkeypatch.setattr(type(model), "n_parameters", lambda self: 10)  # as if the linear layers held no parameters
    assert n_weights(model) == expected
