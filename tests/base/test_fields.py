"""Configs refuse unknown names and invalid values at construction, with a clear message."""

import copy
import inspect
from pathlib import Path

import pytest

from glassformer.base.dataclass_flags import field_docs, options_of
from glassformer.base.fields import hints_of, parts_of
from glassformer.decoding import GenerationConfig
from glassformer.models import ModelConfig, preset
from glassformer.tasks.denoising import DenoisingConfig
from glassformer.tasks.tagging import TaggedData
from glassformer.tasks.task_registry import TASKS, config_named, data_named
from glassformer.tasks.translation import PairData, TranslationConfig
from glassformer.text import TokenizerConfig
from glassformer.training.train_config import TrainConfig


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrainConfig(lr="x"), "lr='x': expected a number"),
        (lambda: TrainConfig(lr=-1), "lr=-1: expected a finite number above 0"),
        (lambda: TrainConfig(lr=10**400), "lr=1000.*: expected a finite number"),
        (lambda: TrainConfig(minutes="2"), "minutes='2': expected a number"),
        (lambda: TrainConfig(updates=True), "updates=True: expected a whole number"),
        (lambda: TrainConfig(updates=2.0), "updates=2.0: expected a whole number"),
        (lambda: TrainConfig(cuda_graphs=1), "cuda_graphs=1: expected True or False"),
        (lambda: TrainConfig(device=None), "device=None: expected a text"),
        (lambda: TrainConfig(lora_layers=[1]), r"lora_layers=\[1\]: expected a list, each a text"),
        (lambda: TrainConfig(schedule="cosin"), r"schedule='cosin': expected one of .* \(did you mean 'cosine'\?\)"),
        (lambda: TrainConfig(warmpu=3), "TrainConfig has no field 'warmpu': did you mean 'warmup'"),
        (lambda: ModelConfig(vocab_size=9, d_model=128.5), "d_model=128.5: expected a whole number"),
        (lambda: ModelConfig(vocab_size=9, hidden_size=4), "no field 'hidden_size': did you mean 'd_model'"),
        (lambda: TokenizerConfig(kind="bppe"), "kind='bppe': expected one of .*did you mean 'bpe'"),
        (lambda: TokenizerConfig(bpe_dropout="0.1"), "bpe_dropout='0.1': expected a number"),
        (lambda: PairData(source=3), "source=3: expected a list of paths"),
        (lambda: PairData(source=[b"a"]), r"source=\[b'a'\]: expected a list, each a path"),
        (lambda: PairData(source=""), "source='': expected a list, each a path"),
        (lambda: PairData(corpus="multi30"), "unknown corpus 'multi30': did you mean 'multi30k'"),
        (lambda: TaggedData(corpus="made-sentence"), "unknown corpus 'made-sentence': did you mean 'made-sentences'"),
        (lambda: TaggedData(tag_column="-1"), "tag_column='-1': expected a whole number"),
        (lambda: TranslationConfig(train={"lr": 1}), "train=.*: expected a TrainConfig"),
        (
            lambda: DenoisingConfig(noise="span"),
            "noise='span': expected one of spans, infilling .*did you mean 'spans'",
        ),
        (lambda: preset("gtp2"), "unknown preset 'gtp2': did you mean 'gpt2'"),
        (lambda: GenerationConfig.from_dict({"num_beam": 4}), "unknown setting 'num_beam': did you mean 'num_beams'"),
    ],
)
def test_a_wrong_value_is_refused_at_construction(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize("task", [task for task in TASKS if data_named(task).CORPORA])
def test_files_beside_a_corpus_are_refused_because_they_would_not_be_read(task):
    kind = data_named(task)
    corpus = field_docs(kind)["corpus"][0].partition("instead of files: ")[2].partition(" ")[0].strip(",.")
    names = kind.FILE_FIELDS
    assert kind(corpus=corpus).corpus == corpus
    assert names
    for name in names:
        with pytest.raises(
            ValueError, match=f"corpus '{corpus}' and {name.replace('_', '-')} 'a.txt': expected a named"
        ):
            kind(corpus=corpus, **{name: "a.txt"})


def wrong_values(hint):
    """Values that no field with this hint may have."""
    kind, allowed, _ = parts_of(hint)
    yield object()
    if kind in (int, float):
        yield from ("1", True, [1])
        if allowed is not None:
            yield kind(allowed.low - 1)
        yield 2.5 if kind is int else float("nan")
    if kind in (bool, str):
        yield 1


@pytest.mark.parametrize("task", TASKS)
def test_every_field_of_every_task_is_checked(task):
    config = config_named(task)()
    for option in options_of(type(config)).values():
        part, _, name = option.path.rpartition(".")
        owner = getattr(config, part) if part else config
        values = {field: getattr(owner, field) for field in hints_of(type(owner))}
        for wrong in wrong_values(option.hint):
            with pytest.raises((TypeError, ValueError), match=f"^{name}="):
                type(owner)(**{**values, name: wrong})


def test_paths_and_lists_are_converted_to_the_field_type():
    files = (Path("a"), Path("b"))
    assert PairData(source=["a", Path("b")]).source == files
    assert PairData(source=(Path(name) for name in "ab")).source == files
    assert PairData(source="a", folder="x") == PairData(source=(Path("a"),), folder=Path("x"))
    assert TrainConfig(lora_layers="q_proj").lora_layers == ("q_proj",)
    assert TranslationConfig(start_from="m").start_from == Path("m")
    minutes = TrainConfig(minutes=2).minutes
    assert (minutes, type(minutes)) == (2.0, float)


def test_a_checked_config_is_a_plain_dataclass():
    config = TrainConfig(lr=0.5)
    assert copy.deepcopy(config) == config
    assert list(inspect.signature(TrainConfig).parameters)[:2] == ["updates", "minutes"]


def test_the_british_spelling_of_the_optimizer_suggests_the_new_one():
    with pytest.raises(TypeError, match="TrainConfig has no field 'optimiser': did you mean 'optimizer'"):
        TrainConfig(optimiser="adam")
