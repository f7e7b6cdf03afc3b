"""`glassformer run`: lines, prompts and conversations, JSON, n-best lists and scores."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from checkpoint.cached_repositories import put_in_cache
from cli.mirror import Mirror
from glassformer.checkpoint import load_model
from glassformer.cli.flag_parser import UsageError, call_function
from glassformer.cli.info import info
from glassformer.cli.run import _as_utf8
from glassformer.cli.run import run as run_command
from glassformer.cli.run_options import search_of
from glassformer.decoding import GenerationConfig
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel
from glassformer.pipelines.answerer import Answerer
from glassformer.pipelines.chat_model import ChatModel
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.code_model import CodeModel
from glassformer.pipelines.comparer import Comparer, ParaphraseDetector
from glassformer.pipelines.encoder_pipeline import Reader
from glassformer.pipelines.extractor import Extractor
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.load import load
from glassformer.pipelines.mask_filler import MaskFiller
from glassformer.pipelines.pipeline import LineAnswer
from glassformer.pipelines.pretrained_base import read_base
from glassformer.pipelines.tagger import Tagger
from glassformer.pipelines.translator import Translator
from glassformer.tasks.configs.small_models import small_decoder, small_encoder, small_encoder_decoder
from glassformer.text import Tokenizer, TokenizerConfig
from pipelines.tiny_pipelines import LABELS, MAKERS, TEMPLATE, make
from tasks.pretrained_models import save_decoder, save_seq2seq
from text.language_tokenizers import save_language_model

TEXTS = ["what colour is it? it is red."]
SIZES = {"d_model": 16, "d_ff": 16, "n_heads": 2}


def small_tool(kind):
    tokenizer = Tokenizer.train(TEXTS, 300, TokenizerConfig(prefix_space=False))
    if kind == "extraction":
        model = EncoderModel(small_encoder(vocab_size=tokenizer.vocab_size, token_types=2, head="span", **SIZES))
        return Extractor(model.eval(), Reader.own(tokenizer), abstains=False, overlap=8, longest_answer=5)
    config = small_encoder_decoder(
        vocab_size=tokenizer.vocab_size, n_encoder_layers=1, n_decoder_layers=1, max_len=64, **SIZES
    )
    return Answerer(EncoderDecoderModel(config).eval(), tokenizer, tokenizer)


@pytest.mark.parametrize("kind", ["answering", "extraction"])
def test_a_line_without_a_tab_is_skipped_and_the_others_are_answered(run_bytes, kind):
    tool = small_tool(kind)
    good = "what colour is it?\tit is red."
    code, alone, _ = run_bytes(tool, f"{good}\n".encode())
    assert code == 0
    assert alone.count(b"\n") == 1
    lines = [good] * 12
    lines[4], lines[8], lines[9] = "no tab here", "", "question\t "
    code, out, err = run_bytes(tool, "".join(f"{line}\n" for line in lines).encode())
    assert code == 1
    expected = [alone if line == good else b"\n" for line in lines]
    assert out.splitlines(keepends=True) == expected
    assert err.splitlines() == [
        "glassformer: stdin:5: 'no tab here' is not a question about a text: expected a question, a tab and a text",
        "glassformer: stdin:10: 'question\\t ' is not a question about a text: expected a question, a tab and a text",
        "glassformer: 2 of 12 lines are bad: an empty line stands for each in the output",
    ]


def test_a_wrong_option_is_one_error_before_any_line_is_answered(run_bytes):
    tool = small_tool("answering")
    for options in (("--beam", "0"), ("--temperature", "-1"), ("--temperature", "nan")):
        code, out, err = run_bytes(tool, b"a\tb\n" * 3, *options)
        assert (code, out) == (2, b"")
        assert err.startswith(f"glassformer: {options[0]} ")
        assert len(err.splitlines()) == 1


def test_a_decoder_that_cannot_chat_says_so_once(run_bytes):
    tokenizer = Tokenizer.train(TEXTS, 300, TokenizerConfig(prefix_space=False))
    config = small_decoder(vocab_size=tokenizer.vocab_size, n_decoder_layers=1, max_len=16, **SIZES)
    tool = LanguageModel(DecoderModel(config).eval(), tokenizer)
    code, out, err = run_bytes(tool, b"a\nb\n", "--chat")
    assert (code, out) == (1, b"")
    assert err.startswith("glassformer: the model has no chat template")


def test_a_prompt_that_the_locale_could_not_decode_is_read_as_utf8(run_bytes):
    assert _as_utf8("caf\udcc3\udca9") == "café"
    code, out, err = run_bytes(Mirror(), b"", "--prompt", "caf\udcff")
    assert (code, out) == (2, b"")
    assert err == "glassformer: the argument 'caf\\udcff' is not valid UTF-8: expected text\n"


class FullDisk(io.RawIOBase):
    """A stream that cannot be written to while it is full."""

    is_full = True

    def writable(self):
        return True

    def write(self, data):
        if self.is_full:
            raise OSError(28, "No space left on device")
        return len(data)


def test_a_full_disk_is_reported_without_a_traceback(run_bytes, monkeypatch):
    disk, tool = FullDisk(), Mirror()

    def answer(lines):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(disk), encoding="utf-8"))
        return lines

    tool.run = answer
    monkeypatch.setattr("glassformer.cli.discard_output", lambda: setattr(disk, "is_full", False))
    code, _, err = run_bytes(tool, b"one\n")
    assert code == 1
    assert "glassformer: stdout cannot be written: No space left on device" in err
    assert not disk.is_full


CLOSED = """
import os, sys
os.close(int(sys.argv[1]))
os.execv(sys.executable, [sys.executable, "-m", "glassformer", *sys.argv[2:]])
"""


@pytest.mark.skipif(os.name == "nt", reason="closes descriptors as a POSIX shell does")
@pytest.mark.parametrize(
    ("descriptor", "message"),
    [(0, "glassformer: stdin is closed: expected lines"), (1, "glassformer: stdout is closed: expected a terminal")],
)
def test_a_closed_stream_is_reported_in_one_line(tmp_path, descriptor, message):
    command = [sys.executable, "-c", CLOSED, str(descriptor), "run", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith(message)
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.skipif(os.name == "nt", reason="closes descriptors as a POSIX shell does")
def test_errors_are_not_written_to_stdout_if_stderr_is_closed(tmp_path):
    command = [sys.executable, "-c", CLOSED, "2", "run", str(tmp_path), "--beam", "0"]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)
    assert (result.returncode, result.stdout) == (2, b"")


def test_a_text_or_a_file_after_the_model_says_how_to_give_it(tmp_path, monkeypatch):
    (tmp_path / "my lines.txt").write_text("one\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for word, advice in (("my lines.txt", "use --input 'my lines.txt'"), ("a line", "echo 'a line' | glassformer run")):
        with pytest.raises(UsageError, match=f"'{word}' is not expected here: .*{re.escape(advice)}"):
            call_function(run_command, ["model", word], "run")
    with pytest.raises(UsageError, match="'two' is not expected here: glassformer info --help shows what is"):
        call_function(info, ["model", "two"], "info")


@pytest.mark.parametrize(("name", "kind"), [("stories.bin", "file"), ("m.GGUF", "file"), ("my-model", "model folder")])
def test_a_missing_model_is_called_a_file_or_a_folder_by_its_name(name, kind, tmp_path):
    for verb in (run_command, info):
        with pytest.raises(FileNotFoundError, match=f"{name}: no such {kind}: "):
            call_function(verb, [str(tmp_path / name), *(["--prompt", "a"] if verb is run_command else [])], "run")


PAIR = "what color is it?\tit is red."


LINE_OF = {Answerer: PAIR, Extractor: PAIR, Comparer: PAIR, ParaphraseDetector: PAIR}


@pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.__name__)
def test_json_is_one_object_for_each_line_of_every_pipeline(run, kind):
    line = LINE_OF.get(kind, "the old ___ sees it")
    code, lines, err = run(make(kind), "--json", stdin=f"{line}\n\n{line}\n")
    assert (code, err) == (0, "")
    objects = [json.loads(one) for one in lines]
    assert len(objects) == 3
    assert all(isinstance(one, dict) and one for one in objects)
    assert objects[0].keys() == objects[2].keys()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.__name__)
def test_every_pipeline_answers_in_half_precision(run, kind, dtype):
    pipeline = make(kind)
    pipeline.model.to(dtype)
    code, lines, err = run(pipeline, "--json", stdin=LINE_OF.get(kind, "the old ___ sees it") + "\n")
    assert (code, err) == (0, "")
    assert "NaN" not in lines[0]


def test_json_of_a_classifier_has_all_labels_with_probabilities(run):
    _, (line,), _ = run(make(Classifier), "--json", stdin="the cat\n")
    found = json.loads(line)
    assert {one["label"] for one in found["labels"]} == set(LABELS)
    assert sum(one["probability"] for one in found["labels"]) == pytest.approx(1, abs=1e-4)
    assert found["label"] == found["labels"][0]["label"]
    _, (line,), _ = run(make(Classifier), "--json", "--n-best", "2", stdin="the cat\n")
    assert len(json.loads(line)["labels"]) == 2


def test_n_best_and_scores_are_columns(run):
    code, (line,), _ = run(make(Classifier), "--n-best", "3", "--scores", stdin="the cat\n")
    cells = line.split("\t")
    assert (code, set(cells[::2])) == (0, set(LABELS))
    assert [float(one) for one in cells[1::2]] == sorted(map(float, cells[1::2]), reverse=True)
    _, (line,), _ = run(make(Translator), "--n-best", "2", "--beam", "3", "--scores", stdin="the cat\n")
    assert len(line.split("\t")) == 4
    assert float(line.split("\t")[1]) >= float(line.split("\t")[3])
    _, (line,), _ = run(make(Translator), "--scores", stdin="the cat\n")
    assert float(line.split("\t")[1]) < 0
    _, (line,), _ = run(make(Extractor), "--scores", stdin=f"{PAIR}\n")
    assert len(line.split("\t")) == 2


def test_json_of_found_answers_and_entities_has_places(run):
    _, (line,), _ = run(make(Extractor), "--json", stdin=f"{PAIR}\n")
    found = json.loads(line)
    assert "it is red."[found["start"] : found["end"]] == found["answer"]
    _, (line,), _ = run(make(Tagger), "--json", stdin="the cat sees Rome\n")
    found = json.loads(line)
    assert all("the cat sees Rome"[one["start"] : one["end"]] == one["text"] for one in found["entities"])


def test_samples_depend_on_the_seed_alone(run):
    options = ("--temperature", "1.5", "--top-k", "50", "--top-p", "0.9", "--min-p", "0.001", "--n-best", "3")
    found = [run(make(LanguageModel), *options, "--seed", seed, stdin="the cat\n")[1] for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


def test_a_repetition_penalty_reaches_the_search(run):
    tool = make(LanguageModel)
    plain = run(tool, "--max-new-tokens", "12", stdin="the cat\n")[1]
    assert run(tool, "--max-new-tokens", "12", "--repetition-penalty", "50", stdin="the cat\n")[1] != plain


def test_proposed_tokens_change_no_line(run):
    tool = make(LanguageModel)
    plain = run(tool, "--max-new-tokens", "12", stdin="the cat the cat\nthe\n")[1]
    config = replace(tool.generation, max_new_tokens=12, prompt_lookup_num_tokens=4)
    assert run(tool, "--max-new-tokens", "12", "--speculate", "4", stdin="the cat the cat\nthe\n")[1] == plain
    assert search_of(tool.generation, {"max_new_tokens": 12, "speculate": 4}) == config
    code, lines, err = run(tool, "--speculate", "4", "--beam", "2", stdin="the\n")
    assert (code, lines) == (2, [])
    assert err == "glassformer: --speculate with a beam of 2: expected --beam 1, or no --speculate\n"


def test_embed_excludes_other_options(run):
    code, (line,), _ = run(make(Classifier), "--embed", stdin="the\n")
    assert (code, len(json.loads(line))) == (0, 16)
    code, (line,), _ = run(make(Classifier), "--embed", "--json", stdin="the\n")
    assert len(json.loads(line)["vector"]) == 16
    code, _, err = run(make(Classifier), "--embed", "--scores", stdin="the\n")
    assert (code, err) == (2, "glassformer: --scores has no effect with --embed: leave one of them out\n")


def test_the_system_message_is_read_before_the_line(run, monkeypatch):
    tool, rendered = make(Generator), []
    monkeypatch.setattr(tool, "read", lambda text: pytest.fail("a message is no text to continue"))
    answer_to = tool.answer_to
    monkeypatch.setattr(tool, "answer_to", lambda messages: rendered.append(messages) or answer_to(messages))
    code, lines, err = run(tool, "--chat", "--system", "Be short.", stdin="hello\n")
    assert (code, len(lines), err) == (0, 1, "")
    assert rendered[-1] == [{"role": "system", "content": "Be short."}, {"role": "user", "content": "hello"}]
    assert "messages" in TEMPLATE


def test_a_prompt_is_continued_with_any_search(run):
    for options in ((), ("--beam", "3"), ("--json",), ("--n-best", "2")):
        code, lines, err = run(make(CodeModel), "--prompt", "the cat", "--max-new-tokens", "5", *options)
        assert (code, err) == (0, "")
        assert lines
    streamed = run(make(CodeModel), "--prompt", "the cat", "--max-new-tokens", "5")[1]
    whole = json.loads(run(make(CodeModel), "--prompt", "the cat", "--max-new-tokens", "5", "--json")[1][0])["text"]
    assert "\n".join(streamed) == whole.rstrip("\n")


def test_tabs_inside_texts_do_not_make_columns(run, monkeypatch):
    from glassformer.cli.run import as_line
    from glassformer.cli.run_options import AnswerOptions
    from glassformer.pipelines.pipeline import LineAnswer

    answer = LineAnswer("a\tb", {"text": "a\tb"}, ("a\tb", "c"), (-1.0, -2.0))
    assert as_line(answer, AnswerOptions(n_best=2, scores=True)) == "a\\tb\t-1.0000\tc\t-2.0000"
    assert as_line(answer, AnswerOptions()) == "a\tb"
    assert as_line(answer, AnswerOptions(json=True)) == '{"text": "a\\tb"}'


def test_a_long_line_is_bad_unless_it_may_be_truncated(run):
    tool, lines = make(Translator), "the cat\n" + "it is red. " * 60 + "\nthe saw\n"
    code, out, err = run(tool, stdin=lines)
    assert (code, [bool(line) for line in out]) == (1, [True, False, True])
    assert err.splitlines()[0] == (
        "glassformer: stdin:2: the input has 242 tokens: expected at most 64, the most that the model reads; "
        "--truncate (in Python truncate=True) cuts what is longer"
    )
    code, cut, err = run(tool, "--truncate", stdin=lines)
    assert (code, cut[::2]) == (0, out[::2])
    assert err == "glassformer: 1 input was longer than the model reads, and cut to fit\n"


def test_a_prompt_that_is_too_long_is_an_error_that_names_truncate(run):
    tool = make(Generator)
    code, out, err = run(tool, "--prompt", "it is red. " * 60)
    assert (code, out) == (1, [])
    assert "expected at most 64" in err
    assert "--truncate" in err
    code, out, err = run(tool, "--prompt", "it is red. " * 60, "--truncate", "--quiet")
    assert (code, len(out)) == (0, 1)
    assert err == "glassformer: 1 input was longer than the model reads, and cut to fit\n"


def test_an_encoder_reports_how_many_lines_it_cut(run, caplog):
    line = "it is red. " * 60
    code, out, err = run(make(Classifier), stdin=f"{line}\nred\n{line}\n")
    assert (code, len(out)) == (0, 3)
    assert err == "glassformer: 2 inputs were longer than the model reads, and cut to fit\n"
    # The good lines of a chunk with a bad line are answered twice, but counted once.
    code, _, err = run(make(Comparer), stdin=f"{line}\ttwo\n{line}\tbad\n" + "no tab\n")
    assert code == 1
    assert "glassformer: 2 inputs were longer" in err
    assert not caplog.records
    code, _, err = run(make(Classifier), "--truncate", stdin="red\n")
    assert code == 2
    assert "--truncate has no effect: m is a classifier" in err


def test_a_decoder_answers_few_lines_at_a_time_unless_the_size_of_batches_is_given(run, monkeypatch):
    tool, sizes = make(Generator), []
    monkeypatch.setattr(
        tool, "answer_lines", lambda lines, _: sizes.append(len(lines)) or [LineAnswer("", {})] * len(lines)
    )
    run(tool, stdin="one\n" * 40)
    assert sizes == [16, 16, 8]
    tool.batch_tokens = 10_000
    run(tool, stdin="one\n" * 40)
    assert sizes[3:] == [40]


IMPORTED_BY_RUN = """
import sys, torch
before = {*sys.modules}
from glassformer.cli import main
_, lines, *folders = sys.argv
for folder in folders:
    sys.argv = ["glassformer", "run", folder, "--device", "cpu", "--input", lines]
    main()
print(*({*sys.modules} - before), file=sys.stderr)
"""
NOT_IMPORTED_BY_RUN = {
    *("glassformer.training", "glassformer.tasks", "glassformer.metrics", "glassformer.inspect", "glassformer.bench"),
    *("matplotlib", "sacrebleu", "rouge_score", "seqeval", "tensorboard", "transformers", "jinja2", "pandas", "scipy"),
    *("sympy", "torch._dynamo", "torch._inductor", "torch.export", "torch.utils.tensorboard", "torch.distributed.fsdp"),
}


def test_run_imports_no_code_of_training_plotting_or_metrics(tmp_path):
    kinds = (Translator, Classifier, Comparer, Extractor, Tagger, MaskFiller, LanguageModel, CodeModel)
    names = [kind.__name__ for kind in kinds]
    for kind, name in zip(kinds, names, strict=True):
        make(kind).save(tmp_path / name, "card")
    (tmp_path / "lines.txt").write_text("what color is it?\tit is ___ red.\n", encoding="utf-8")
    command = [sys.executable, "-c", IMPORTED_BY_RUN, *(tmp_path / name for name in ("lines.txt", *names))]
    result = subprocess.run(command, capture_output=True, timeout=600, check=True)
    assert result.stdout.count(b"\n") == len(names)
    imported = {*result.stderr.decode().split()}
    assert "glassformer.pipelines.code_model" in imported
    wrong = [name for name in imported if any(f"{name}.".startswith(f"{one}.") for one in NOT_IMPORTED_BY_RUN)]
    assert not wrong
    assert len(imported) < 310  # 300 in November 2026; `import torch` alone imports 1,122


def test_the_error_without_a_gpu_names_the_flag(call, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    make(Translator).save(tmp_path / "m", "card")
    (tmp_path / "in.txt").write_text("one\n", encoding="utf-8")
    code, out, err = call("run", tmp_path / "m", "--input", tmp_path / "in.txt", "--device", "cuda")
    assert (code, out) == (1, "")
    assert err == "glassformer: --device cuda: no CUDA device is available; expected cpu or auto\n"


def test_a_model_of_the_download_cache_is_run_by_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    save_decoder(tmp_path / "saved")
    put_in_cache(tmp_path / "saved", tmp_path / "hub", "someone/small")
    call_function(run_command, ["someone/small", "--prompt", "one two", "--max-new-tokens", "3"], "run")
    assert capsys.readouterr().out
    with pytest.raises(FileNotFoundError, match="hf download someone/other"):
        call_function(run_command, ["someone/other", "--prompt", "one"], "run")


def test_a_task_of_a_pretrained_encoder_decoder_is_an_option(run, tmp_path):
    save_seq2seq(tmp_path, "T5")
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    tasks = {"summarization": {"prefix": "three ", "max_length": 6, "num_beams": 1}}
    (tmp_path / "config.json").write_text(json.dumps(config | {"task_specific_params": tasks}), encoding="utf-8")
    tool = load(tmp_path)
    code, out, _ = run(tool, "--task", "summarization", stdin="one\ntwo\n")
    assert (code, out) == (0, tool.with_task("summarization").run(["one", "two"]))
    code, _, err = run(tool, "--task", "translation", stdin="one\n")
    assert (code, "expected one of summarization" in err) == (1, True)
    code, _, err = run(make(Generator), "--task", "summarization", stdin="one\n")
    assert (code, "--task has no effect" in err) == (2, True)


def test_languages_of_a_pretrained_translator_are_options(run, tmp_path):
    _, _, source, target = save_language_model(tmp_path, "nllb", 1)
    tool = load(tmp_path)
    code, out, err = run(tool, stdin="one\ntwo\n")
    assert (code, out) == (1, [])
    assert "the model writes 3 languages" in err
    code, out, _ = run(tool, "--source-language", "eng", "--target-language", target, stdin="one\ntwo\n")
    assert (code, out) == (0, tool.with_languages(source, target).run(["one", "two"]))
    code, _, err = run(tool, "--target-language", "german", stdin="one\n")
    assert code == 1
    assert "target language 'german': the model has no such language; expected one of deu_Latn, eng_Latn" in err
    code, _, err = run(make(Translator), "--target-language", "de", stdin="one\n")
    assert code == 2
    assert "--target-language has no effect: m is a translator, which takes" in err


def test_a_chat_model_answers_lines_and_continues_a_prompt(run, tmp_path, monkeypatch):
    save_decoder(tmp_path / "hf")
    tool = ChatModel(load_model(tmp_path / "hf"), read_base(tmp_path / "hf"))
    tool.generation, asked = GenerationConfig(max_new_tokens=2), []
    usual = tool.answer_to
    monkeypatch.setattr(tool, "answer_to", lambda messages: asked.append(messages[-1]["content"]) or usual(messages))
    for options, is_message in (((), True), (("--chat",), True), (("--prompt", "one two"), False)):
        asked.clear()
        assert run(tool, *options, stdin="one two\n")[0] == 0
        assert ("one two" in asked) == is_message
