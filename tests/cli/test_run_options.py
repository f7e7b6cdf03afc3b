"""The options of `glassformer run`: their ranges, and which kinds of models take them."""

import pytest
import torch

from glassformer.cli.flag_parser import UsageError
from glassformer.cli.run_options import EXTERNAL_MODELS, OPTION_GROUPS, WRITING, ComputeOptions
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.embedder import Embedder
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.pipeline_registry import PIPELINES
from glassformer.pipelines.text_to_text import TextToText
from glassformer.pipelines.translator import Translator
from glassformer.tasks.task_registry import TASKS
from pipelines.tiny_pipelines import MAKERS, make


def test_the_n_best_of_a_search_widen_its_beam_unless_the_beam_was_given(run):
    code, (line,), _ = run(make(LanguageModel), "--n-best", "3", "--max-new-tokens", "4", stdin="the\n")
    assert (code, len(line.split("\t"))) == (0, 3)
    code, _, err = run(make(LanguageModel), "--n-best", "9", "--beam", "4", stdin="the\n")
    assert code == 2
    assert err == "glassformer: --n-best 9 --beam 4: expected --beam 9 or more, or a --temperature above 0\n"


@pytest.mark.parametrize("kind", [Translator, TextToText])
def test_encoder_decoders_stop_at_a_text(run, kind):
    _, (whole,), _ = run(make(kind), "--beam", "1", stdin="the\n")
    code, (line,), _ = run(make(kind), "--beam", "1", "--stop", whole[1:3], stdin="the\n")
    assert (code, line) == (0, whole[: whole.index(whole[1:3])])


@pytest.mark.parametrize("value", ["nan", "inf", "hot"])
def test_a_value_that_is_no_finite_number_is_a_usage_error(run, value):
    code, lines, err = run(make(LanguageModel), "--temperature", value, stdin="the\n")
    assert (code, lines) == (2, [])
    assert err.startswith(f"glassformer: --temperature {value}: expected a")
    assert "None" not in err
    assert run.loads == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--top-p", "2"), "--top-p 2: expected more than 0 and at most 1"),
        (("--top-p", "0"), "--top-p 0: expected more than 0 and at most 1"),
        (("--temperature", "-1"), "--temperature -1: expected 0 or more"),
        (("--beam", "0"), "--beam 0: expected 1 to 256"),
        (("--n-best", "0"), "--n-best 0: expected 1 to 256"),
        (("--top-k", "-1"), "--top-k -1: expected 0 or more"),
        (("--min-p", "1.5"), "--min-p 1.5: expected 0 to 1"),
        (("--max-new-tokens", "0"), "--max-new-tokens 0: expected 1 to 65,536"),
        (("--repetition-penalty", "0"), "--repetition-penalty 0: expected more than 0; 1 changes nothing"),
        (("--speculate", "65"), "--speculate 65: expected 0 to 64"),
        (("--stop", ""), "--stop '': expected at least one character"),
        (("--temperature", "1", "--beam", "3"), "--temperature 1 --beam 3: expected one of them; a beam"),
        (("--stop", "x", "--beam", "3"), "--stop with --beam 3: expected --beam 1, or no --stop"),
        (("--system", "x"), "--system has no effect without --chat: add --chat, or leave it out"),
        (("--temperature", "0", "--top-p", "0.9"), "--top-p 0.9 has no effect at --temperature 0, where nothing is"),
        (("--prompt", "x", "--input", __file__), "--prompt with --input "),
        (("--prompt", "x", "--output", "new.txt"), "--prompt with --output new.txt: use > new.txt instead"),
        (("--input", "no-such-file"), "--input no-such-file: no such file"),
        (("--output", __file__), f"--output {__file__} exists: choose another name, or remove it first"),
        (("--output", "no-such-folder/out.txt"), "--output no-such-folder/out.txt: the folder "),
    ],
)
def test_wrong_values_are_one_sentence_before_the_model_is_loaded(run, options, message):
    code, lines, err = run(make(LanguageModel), *options, stdin="the\n")
    is_about_a_file = message.startswith(("--input ", "--output "))
    assert (code, lines, len(err.splitlines())) == (1 if is_about_a_file else 2, [], 1)
    assert err.startswith(f"glassformer: {message}")
    assert run.loads == []


def test_sampling_options_are_refused_without_a_temperature(run):
    for name, value in (("--seed", "3"), ("--top-k", "5"), ("--min-p", "0.1")):
        code, lines, err = run(make(LanguageModel), name, value, stdin="the\n")
        assert (code, lines) == (2, [])
        assert err.startswith(f"glassformer: {name} {value} has no effect at --temperature 0")
        assert "add --temperature 1" in err


EXAMPLES = {
    "beam": 2,
    "n_best": 1,
    "max_new_tokens": 3,
    "temperature": 3,
    "top_k": 5,
    "top_p": 0.9,
    "min_p": 0.1,
    "seed": 1,
    "repetition_penalty": 2,
    "speculate": 3,
    "prompt": "x",
    "system": "x",
    "stop": "x",
}


@pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.__name__)
def test_options_without_effect_are_refused_by_name(run, kind):
    tool = make(kind)
    task = getattr(tool, "task", None) or tool.model.kind
    entry = {**PIPELINES, **EXTERNAL_MODELS}[task]
    name, taken = entry.called, [name for group in entry.takes for name in OPTION_GROUPS.get(group, (group,))]
    for option in (*WRITING, "n_best", "scores", "prompt", "chat", "stop", "embed"):
        if option in taken:
            continue
        flag = f"--{option.replace('_', '-')}"
        values = [EXAMPLES[option]] if option in EXAMPLES else []
        code, lines, err = run(tool, flag, *values, stdin="the\n")
        assert (code, lines, len(err.splitlines())) == (2, [], 1)
        assert err.startswith(f"glassformer: {flag} has no effect: m is {name}, which takes --")


def test_every_task_says_which_options_it_takes():
    assert {*PIPELINES, *EXTERNAL_MODELS} == {*TASKS, "encoder", "decoder", "encoder_decoder"}


def test_an_option_without_effect_is_refused_before_a_folder_of_ours_is_loaded(run, tmp_path, monkeypatch):
    make(Classifier).save(tmp_path / "m", "card")
    monkeypatch.chdir(tmp_path)
    code, _, err = run(make(Classifier), "--temperature", "3", stdin="the\n")
    assert code == 2
    assert err == (
        "glassformer: --temperature has no effect: m is a classifier, which takes --n-best, --scores, --embed\n"
    )
    assert run.loads == []


def test_models_of_other_libraries_are_named_by_their_kind():
    assert [make(kind).model.kind for kind in (Generator, Embedder, TextToText)] == [
        "decoder",
        "encoder",
        "encoder_decoder",
    ]


def test_the_options_of_computing_reach_load(monkeypatch):
    seen = []
    monkeypatch.setattr("glassformer.pipelines.load.load", lambda path, **options: seen.append((path, options)))
    ComputeOptions(device="cpu", dtype="bfloat16", quantize="none", batch_tokens=9).load("m", allow_pickle=True)
    computing = {"device": "cpu", "dtype": "bfloat16", "quantize": "none", "compile": "auto", "batch_tokens": 9}
    assert seen == [("m", {**computing, "allow_pickle": True})]
    for wrong in (-1, 1025, 100_000):
        with pytest.raises(UsageError, match=f"--threads {wrong}: expected 0 to 1,024"):
            ComputeOptions(threads=wrong).load("m")
    with pytest.raises(UsageError, match="--quantize int8 with --dtype float16: expected one of them"):
        ComputeOptions(quantize="int8", dtype="float16").load("m")
    for wrong in (0, -5, 2**24 + 1):
        with pytest.raises(UsageError, match=f"--batch-tokens {wrong}: expected 1 to 16,777,216"):
            ComputeOptions(batch_tokens=wrong).load("m")


def test_threads_are_set_before_the_model_is_loaded(monkeypatch):
    before = torch.get_num_threads()
    seen = []
    monkeypatch.setattr("glassformer.pipelines.load.load", lambda path, **_: seen.append(torch.get_num_threads()))
    try:
        ComputeOptions(threads=before + 1).load("m")
    finally:
        torch.set_num_threads(before)
    assert seen == [before + 1]


def test_the_old_flag_of_int8_names_the_new_one(run):
    code, lines, err = run(None, "--int8")
    assert (code, lines) == (2, [])
    assert "--int8 is now --quantize int8" in err
