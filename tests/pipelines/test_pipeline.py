"""All pipelines: a string gives one answer, a list gives a list, and other types are refused in one sentence."""

import importlib
import inspect
import json
import pkgutil
import re
from dataclasses import replace

import pytest
import torch

import glassformer.pipelines
from glassformer.decoding import GenerationConfig, generate
from glassformer.pipelines.chat_model import ChatModel, PreferenceModel
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.comparer import Comparer
from glassformer.pipelines.embedder import Embedder
from glassformer.pipelines.extractor import Extractor
from glassformer.pipelines.pair_scorer import PairScorer
from glassformer.pipelines.pipeline import LineRequest, Pipeline
from glassformer.pipelines.pretrained_tagger import PretrainedTagger
from glassformer.pipelines.translator import Translator
from pipelines.tiny_pipelines import MAKERS, make

TEXT_PARAMETERS = {"texts", "lines", "sentences", "text", "prompt"}
PAIR_PARAMETERS = {"pairs", "asked"}
PAIR = ("what color is it?", "it is red.")
LINES = {
    "answering": "\t".join(PAIR),
    "extraction": "\t".join(PAIR),
    "paraphrase": "one\ttwo",
    "similarity": "\t".join(PAIR),
}
# Methods that take one text only, and methods that `run` calls.
ONE_TEXT = {"explain", "stream", "read"}
INNER = {
    "answer_lines",
    "answer_texts",
    "candidates",
    "stream_after",
    "windows",
    "read_words",
    "encode",
    "encode_source",
    "read_sources",
}


def pipelines():
    """Every concrete pipeline class of the package."""
    for module in pkgutil.iter_modules(glassformer.pipelines.__path__):
        importlib.import_module(f"glassformer.pipelines.{module.name}")
    found, waiting = set(), [Pipeline]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if not inspect.isabstract(kind) and kind.__module__.startswith("glassformer."):
            found.add(kind)
    return found


def methods():
    """Every public method of every pipeline whose first argument is a text, or a pair of texts, or a list of them."""
    for kind in MAKERS:
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            first = [*inspect.signature(method).parameters][1:2]
            if name.startswith("_") or name in ONE_TEXT | INNER or not first:
                continue
            if first[0] in TEXT_PARAMETERS | PAIR_PARAMETERS:
                yield pytest.param(kind, name, first[0], id=f"{kind.__name__}.{name}")


def given_to(kind, name, parameter):
    if parameter in PAIR_PARAMETERS:
        return PAIR
    return LINES.get(getattr(kind, "task", ""), "the old ___ sees it") if name == "run" else "the old ___ sees it"


OWN_TESTS = {ChatModel, PreferenceModel, PairScorer, PretrainedTagger}
"""Pipelines of pretrained models only, which the tests of their own modules cover."""


def test_the_tests_cover_every_pipeline():
    assert pipelines() == {*MAKERS, *OWN_TESTS}


@pytest.mark.parametrize(("kind", "name", "parameter"), list(methods()))
def test_a_string_gives_one_answer_and_a_list_gives_a_list(kind, name, parameter):
    tool = make(kind)
    given = given_to(kind, name, parameter)
    one, several = getattr(tool, name)(given), getattr(tool, name)([given, given])
    assert len(several) == 2
    first = several[0]
    assert type(one) is type(first)
    if isinstance(one, torch.Tensor):
        assert torch.allclose(one, first, atol=1e-5)
    elif isinstance(one, float | tuple) and not isinstance(one, str):
        assert one == pytest.approx(first, abs=1e-5) if isinstance(one, float) else one[0] == first[0]
    elif isinstance(one, list) and one and hasattr(one[0], "probability"):
        assert [p.label for p in one] == [p.label for p in first]
    elif name == "words_for":
        assert [[word.word for word in words] for words in one] == [[word.word for word in words] for words in first]
    elif name == "run" and isinstance(tool, Comparer):
        assert float(one) == pytest.approx(float(first), abs=1e-2)
    elif not (isinstance(one, str) and one.startswith("[")):  # a vector as JSON differs in its last digit
        assert one == first
    assert len(getattr(tool, name)([])) == 0


@pytest.mark.parametrize("wrong", [b"text", 5, None, ["text", 5], [b"text"], {"text": 1}, {"text"}, [None]], ids=repr)
@pytest.mark.parametrize(("kind", "name", "parameter"), list(methods()))
def test_a_wrong_type_is_one_sentence(kind, name, parameter, wrong, tools):
    with pytest.raises(TypeError) as caught:
        getattr(tools[kind], name)(wrong)
    told = str(caught.value)
    assert parameter in told
    assert "expected a" in told
    assert len(told.splitlines()) == 1


@pytest.fixture(scope="module")
def tools():
    return {kind: make(kind) for kind in MAKERS}


@pytest.mark.parametrize("wrong", ["text", b"text", 5, ["text", 5]], ids=repr)
@pytest.mark.parametrize("kind", MAKERS)
def test_answer_lines_and_candidates_take_lists_of_strings_only(kind, wrong, tools):
    # One string was read as a list of characters.
    calls = [("lines", lambda: tools[kind].answer_lines(wrong, LineRequest()))]
    if hasattr(kind, "candidates"):
        calls.append(("texts", lambda: tools[kind].candidates(wrong)))
    for name, call in calls:
        with pytest.raises(TypeError, match=rf"^{name}(\[1\])? is .*: expected a (list of )?string"):
            call()


ONE_TEXT_METHODS = {"answer": 2, "paraphrase": "one\ttwo", "similarity": 2, "infill": 2, "stream": 1, "explain": 1}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in MAKERS for name in ONE_TEXT_METHODS if hasattr(kind, name)]
)
def test_methods_of_one_text_refuse_other_types_in_one_sentence(kind, name, tools):
    with pytest.raises(TypeError, match="expected a string"):
        list(getattr(tools[kind], name)(*[["a"]] * ONE_TEXT_METHODS[name]))


def test_a_pair_given_as_a_list_of_strings_is_refused_with_its_place():
    with pytest.raises(TypeError, match=r"asked\[0\] is 'what': expected a tuple of two strings"):
        make(Extractor).find(["what", "it is red."])
    with pytest.raises(TypeError, match=r"texts\[1\] is \('a', 'b', 'c'\): expected a string, or a tuple of two"):
        make(Classifier).classify(["a", ("a", "b", "c")])


def test_the_error_about_bytes_says_how_to_decode_them():
    with pytest.raises(TypeError, match=r"bytes become a string by .decode"):
        make(Translator).translate(b"text")


@pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.__name__)
def test_ids_beyond_the_vocabulary_are_refused_before_they_reach_the_device(kind):
    tool = make(kind)
    config = tool.model.config
    # The tokenizer knows more tokens than the model. Ids on the meta device cannot be read, like those on a GPU.
    tool.model = type(tool.model)(replace(config, vocab_size=10)).to("meta")
    with pytest.raises(ValueError, match=r"holds the id \d+: expected ids from 0 to \d+"):
        tool.run(LINES.get(getattr(kind, "task", ""), "the old ___ sees it"))


LONG_LINES = {
    "answering": "what color is it?\t" + "it is red. " * 60,
    "extraction": "what color is it? " * 20 + "\tit is red.",  # a long context is read in windows, and not cut
    "paraphrase": "it is red. " * 60 + "\ttwo",
    "similarity": "it is red. " * 60 + "\ttwo",
    "tagging": "x" * 300,  # a long sentence is read in windows; a word that fits into none is cut
}


@pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.__name__)
def test_long_inputs_are_refused_or_counted(kind, caplog):
    tool, task = make(kind), getattr(kind, "task", "")
    short, long = LINES.get(task, "the old ___ sees it"), LONG_LINES.get(task, "the ___ sees it " + "the old saw " * 30)
    if hasattr(tool, "generation"):
        with pytest.raises(ValueError, match=r"input 2 of 2 has \d+ tokens: expected at most 64, .*--truncate"):
            tool.run([short, long])
        assert tool.n_truncated == 0
    else:
        assert len(tool.run([short, long])) == 2
        (record,) = caplog.records
        assert re.fullmatch(r"1 of [24] inputs are too long for the model and were cut", record.getMessage())
        assert tool.n_truncated == 1
    caplog.clear()
    tool.truncate, tool.n_truncated = True, 0
    assert len(tool.run([long, short])) == 2
    assert tool.n_truncated == 1
    assert tool.truncation_note() == "1 input was longer than the model reads, and cut to fit"
    assert not caplog.records


@pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.__name__)
def test_the_size_of_batches_is_a_setting_of_the_pipeline_and_changes_no_answer(kind, monkeypatch):
    tool, sizes = make(kind), []
    line = LINES.get(getattr(kind, "task", ""), "the old ___ sees it")
    embeddings = getattr(tool.model, "embeddings", None) or tool.model.source_embeddings
    embeddings.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    monkeypatch.setattr(tool, "generation", GenerationConfig(max_new_tokens=2), raising=False)
    together = tool.run([line] * 5)
    assert max(sizes) >= 5
    tool.batch_tokens = 1
    sizes.clear()
    alone = tool.run([line] * 5)
    assert {*sizes} == {1}
    if kind is Embedder:  # numbers, which may differ by rounding
        assert [json.loads(one) for one in alone] == [pytest.approx(json.loads(one), abs=1e-5) for one in together]
    else:
        assert alone == together


def test_a_pipeline_writes_with_its_writer():
    model = make(Translator)
    calls = []

    def write(own, inputs, config, **options):
        calls.append((own, len(inputs)))
        return generate(own, inputs, config, **options)

    plain = model.run(["red cat", "", "the saw"])
    model.writer = write
    assert model.run(["red cat", "", "the saw"]) == plain
    assert calls == [(model.model, 2)]
