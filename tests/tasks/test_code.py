"""Code modeling: completion, gaps, problems with tests and the command line."""

import json
import random
import sys
from dataclasses import replace

import pytest

from glassformer.data.batching.fill_in_middle import FillInMiddleParts, encode_fill_in_middle
from glassformer.data.readers.code_problems import read_problems
from glassformer.data.readers.records import BadRecordError
from glassformer.decoding import GeneratedText, GenerationConfig
from glassformer.metrics import sandbox
from glassformer.metrics.pass_at_k import Problem
from glassformer.metrics.sandbox import Outcome, Protections, SandboxLimits, WeakSandboxError
from glassformer.pipelines.blanks import GAP_TOKENS
from glassformer.pipelines.code_model import CodeModel, prompt_of
from glassformer.pipelines.load import load
from glassformer.tasks.code import Code, CodeConfig, CodeData
from glassformer.text import TokenizerConfig
from glassformer.text.tokenizer import END

ANSWER = GeneratedText([5], text="answer")


def source(name):
    return f"def {name}(x):\n    if x:\n        return {name}(x - 1)\n    return 0\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("code")
    draw = random.Random(0)
    for number in range(250):
        place = root / "src" / f"part{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"m{number}.py").write_text(source("".join(draw.choices("fgh", k=2))), encoding="utf-8")
    (root / "src" / "notes.txt").write_text("not code", encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def trained(folder):
    data = CodeData(data=(folder / "src",), valid=(folder / "src" / "part0",))  # a name not seen is hard to learn
    config = CodeConfig(data=data, context=48, fim=0.0)
    train = replace(config.train, updates=80, eval_every=80, save_every=80, warmup=5, max_tokens=512, lr=1e-2)
    model = replace(config.model, vocab_size=320, d_model=32, d_ff=48, n_decoder_layers=2, init_std=0.17)
    scores = Code(replace(config, train=train, model=model)).train(folder / "model")
    return load(folder / "model"), scores


def test_it_completes_with_indentation(trained):
    model, scores = trained
    assert isinstance(model, CodeModel)
    assert scores["bits_per_byte"] < 0.4
    assert model.complete("def fh(x):\n    if").startswith(" x:\n        return ")
    blank, answer = model.run(["", "def gg(x):"])
    assert blank == ""
    assert answer.startswith("\n    if x:\n        return ")


def test_it_learns_to_fill_in_gaps(folder):
    """Each text repeats one letter. For a gap at its beginning, only the text after the gap shows which letter."""
    draw = random.Random(0)
    texts = [json.dumps({"text": draw.choice("abcd") * draw.randint(8, 12)}) for _ in range(300)]
    (folder / "letters.jsonl").write_text("\n".join(texts) + "\n", encoding="utf-8")
    data = CodeData(data=(folder / "letters.jsonl",), valid=(folder / "letters.jsonl",))
    config = CodeConfig(data=data, context=32, fim=0.9, tokenizer=TokenizerConfig(kind="bytes"))
    train = replace(config.train, updates=60, eval_every=60, save_every=60, warmup=5, max_tokens=512, lr=1e-2)
    model = replace(config.model, vocab_size=300, d_model=32, d_ff=48, n_decoder_layers=1, init_std=0.17)
    Code(replace(config, train=train, model=model)).train(folder / "letters")
    model = load(folder / "letters")
    few = GenerationConfig(max_new_tokens=4, min_new_tokens=2)
    for letter in "abcd":
        assert set(model.infill("", letter * 5, few)) == {letter}
        assert set(model.infill(letter * 5, "", few)) == {letter}


def test_the_prompt_of_a_gap_has_the_layout_of_the_training_data(trained, monkeypatch):
    model, _ = trained
    asked = []
    monkeypatch.setattr(model, "writer", lambda _, prompts, *rest, **more: asked.append(prompts[0]) or [[ANSWER]])
    assert model.infill("def f", "return") == "answer"
    marks = tuple(model.tokenizer.special_id(mark) for mark in GAP_TOKENS)
    (learned,) = encode_fill_in_middle([FillInMiddleParts("def f", "", "return")], model.tokenizer.encode_batch, marks)
    assert asked == [[END, *learned]]
    model.truncate = True
    model.infill("x = 1\n" * 200, "y = 2\n" * 200)
    assert len(asked[1]) <= model.context
    assert asked[1][2:6] != asked[1][-5:-1]
    monkeypatch.undo()
    # Text that does not fit is cut at the ends that are farthest from the gap.
    assert isinstance(model.infill("x = 1\n" * 200, "y = 2\n" * 200, GenerationConfig(max_new_tokens=5)), str)


def test_text_never_encodes_to_the_tokens_of_a_gap(trained):
    model, _ = trained
    ids = model.tokenizer.encode("<before>a<after>b<middle></s>")
    assert min(ids) > model.tokenizer.special_id("<middle>") > END
    assert model.tokenizer.decode(ids) == "<before>a<after>b<middle></s>"


def test_problems_are_solved_in_the_sandbox(trained, monkeypatch):
    model, _ = trained
    problems = [Problem("zero", ("assert ff(3) == 0",)), Problem("one", ("assert ff(3) == 1",))]
    limits = SandboxLimits(seconds=4)
    drawn = model.solve(problems[:1], samples=2, limits=limits, max_new_tokens=20, sandbox="weak")
    assert list(drawn.values) == ["pass_at_1", "pass_at_2"]
    monkeypatch.setattr(model, "write_after", lambda prompts, config: [source("ff")] * len(prompts))
    assert model.solve(problems, limits=limits, sandbox="weak").values == {"pass_at_1": 50.0}
    assert prompt_of(problems[0]) == '"""\nzero\nassert ff(3) == 0\n"""\n'
    with pytest.raises(ValueError, match="samples=0"):
        model.solve(problems, samples=0)


def test_no_program_is_generated_if_the_sandbox_is_too_weak(trained, monkeypatch):
    model, _ = trained
    monkeypatch.setattr(model, "write_after", lambda prompts, config: pytest.fail("it wrote a program"))
    nothing = (Outcome(0, "", False), Protections((), ("no network",)))
    monkeypatch.setattr(sandbox, "_run", lambda *arguments: nothing)
    with pytest.raises(WeakSandboxError, match=r"Missing: no network\. .*--sandbox weak"):
        model.solve([Problem("zero", ("assert True",))])


def test_problems_are_read_and_bad_ones_are_refused(tmp_path):
    path = tmp_path / "problems.jsonl"
    good = {"text": "Double it.", "code": "...", "test_list": ["assert f(1) == 2"], "test_setup_code": "a = 1"}
    path.write_text(json.dumps(good) + "\n", encoding="utf-8")
    assert read_problems(path) == [Problem("Double it.", ("assert f(1) == 2",), "a = 1", f"{path}:1")]
    path.write_text(json.dumps(good) + "\n" + json.dumps({"text": "x", "test_list": []}) + "\n", encoding="utf-8")
    with pytest.raises(BadRecordError, match=r"problems.jsonl:2: no tests under 'test_list'"):
        read_problems(path)


def test_the_demo_is_the_standard_library():
    config = Code.demo()
    assert config.data.corpus == "standard-library"
    assert config.train.minutes <= 2.5
    with pytest.raises(ValueError, match=r"fim=1\.5"):
        CodeConfig(fim=1.5)


def test_the_command_line_scores_and_completes(trained, folder, tmp_path, monkeypatch, capsys):
    from glassformer.cli import main

    told = []

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["glassformer", *map(str, arguments)])
        main()
        out, err = capsys.readouterr()
        told.append(err)
        return out

    held_out = json.loads(call("eval", folder / "model", "--data", folder / "src", "--json", "--quiet"))
    assert held_out["bits_per_byte"] < 0.4
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps({"text": "nothing", "test_list": ["assert True"]}) + "\n", encoding="utf-8")
    problems = ("eval", folder / "model", "--problems", path, "--json", "--quiet")
    assert "pass_at_1" in json.loads(call(*problems, "--sandbox", "weak"))
    assert told[-1].count("sandbox: ") == 1
    nothing = (Outcome(0, "", False), Protections((), ("no network",)))
    monkeypatch.setattr(sandbox, "_run", lambda *arguments: nothing)
    with pytest.raises(SystemExit):
        call(*problems)
    assert "Missing: no network. " in capsys.readouterr().err
    assert call("run", folder / "model", "--prompt", "def ff(x):").startswith("\n    if x:")
