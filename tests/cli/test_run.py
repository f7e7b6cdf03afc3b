"""What `glassformer run` prints, reads and writes, and which options it refuses."""

import io
import json
import sys

import pytest

from glassformer.cli import main
from glassformer.cli.run_options import EXTERNAL_MODELS, OPTION_GROUPS, WRITING
from glassformer.pipelines.answerer import Answerer
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.code_model import CodeModel
from glassformer.pipelines.comparer import Comparer, ParaphraseDetector
from glassformer.pipelines.embedder import Embedder
from glassformer.pipelines.extractor import Extractor
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.pipeline_registry import PIPELINES
from glassformer.pipelines.tagger import Tagger
from glassformer.pipelines.text_to_text import TextToText
from glassformer.pipelines.translator import Translator
from glassformer.tasks.task_registry import TASKS
from pipelines.tiny_pipelines import LABELS, MAKERS, TEMPLATE, make

PAIR = "what color is it?\tit is red."
LINE_OF = {Answerer: PAIR, Extractor: PAIR, Comparer: PAIR, ParaphraseDetector: PAIR}


@pytest.fixture
def run(monkeypatch):
    """Runs `glassformer run` of a pipeline: the exit code, the lines of stdout, and stderr."""

    def call(tool, *options, stdin="", is_terminal=False):
        streams = [io.TextIOWrapper(io.BytesIO(part), encoding="utf-8") for part in (stdin.encode(), b"", b"")]
        streams[2].isatty = lambda: is_terminal
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            monkeypatch.setattr(sys, name, stream)
        loads = []
        monkeypatch.setattr("glassformer.pipelines.load.load", lambda path, **_: loads.append(path) or tool)
        monkeypatch.setattr(sys, "argv", ["glassformer", "run", "m", *map(str, options)])
        call.loads = loads
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code
        for stream in streams[1:]:
            stream.flush()
        out, err = (stream.buffer.getvalue().decode() for stream in streams[1:])
        return code, out.split("\n")[:-1], err  # a random model may write other characters that break lines

    return call


@pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.__name__)
def test_json_is_one_object_for_each_line_of_every_pipeline(run, kind):
    line = LINE_OF.get(kind, "the old ___ sees it")
    code, lines, err = run(make(kind), "--json", stdin=f"{line}\n\n{line}\n")
    assert (code, err) == (0, "")
    objects = [json.loads(one) for one in lines]
    assert len(objects) == 3
    assert all(isinstance(one, dict) and one for one in objects)
    assert objects[0].keys() == objects[2].keys()


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


def test_the_n_best_of_a_search_widen_its_beam_unless_the_beam_was_given(run):
    code, (line,), _ = run(make(LanguageModel), "--n-best", "3", "--max-new-tokens", "4", stdin="the\n")
    assert (code, len(line.split("\t"))) == (0, 3)
    code, _, err = run(make(LanguageModel), "--n-best", "9", "--beam", "4", stdin="the\n")
    assert code == 2
    assert err == "glassformer: --n-best 9 --beam 4: expected --beam 9 or more, or a --temperature above 0\n"


def test_samples_depend_on_the_seed_alone(run):
    options = ("--temperature", "1.5", "--top-k", "50", "--top-p", "0.9", "--min-p", "0.001", "--n-best", "3")
    found = [run(make(LanguageModel), *options, "--seed", seed, stdin="the cat\n")[1] for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


def test_a_repetition_penalty_reaches_the_search(run):
    tool = make(LanguageModel)
    plain = run(tool, "--max-new-tokens", "12", stdin="the cat\n")[1]
    assert run(tool, "--max-new-tokens", "12", "--repetition-penalty", "50", stdin="the cat\n")[1] != plain


@pytest.mark.parametrize("value", ["nan", "inf", "hot"])
def test_what_is_no_number_is_wrong_usage(run, value):
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


def test_options_of_chance_are_refused_where_nothing_is_drawn(run):
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


def test_embed_stands_alone(run):
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


def test_files_are_read_and_written_as_pipes_are(run, tmp_path):
    lines = "the cat\n\nthe dog\n"
    (tmp_path / "in.txt").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    piped = run(make(Translator), stdin=lines)[1]
    out = tmp_path / "out.txt"
    code, shown, err = run(make(Translator), "--input", tmp_path / "in.txt", "--output", out)
    assert (code, shown, err) == (0, [], "")
    assert out.read_bytes().decode().split("\n")[:-1] == piped
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["in.txt", "out.txt"]
    code, shown, err = run(make(Translator), "--input", tmp_path / "in.txt")
    assert (code, shown) == (0, piped)


def test_an_output_file_is_whole_or_not_there(run, tmp_path):
    (tmp_path / "in.txt").write_text(f"{PAIR}\nno tab\n{PAIR}\n", encoding="utf-8")
    options = ("--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt")
    code, _, err = run(make(Extractor), *options, "--on-bad", "error")
    assert code == 1
    assert err.startswith(f"glassformer: {tmp_path / 'in.txt'}:2: 'no tab' is not a question")
    assert err.endswith(f"{tmp_path / 'out.txt'} was not written\n")
    assert [file.name for file in tmp_path.iterdir()] == ["in.txt"]
    code, _, err = run(make(Extractor), *options)
    assert code == 1
    assert "1 of 3 lines are bad" in err
    assert (tmp_path / "out.txt").read_bytes().count(b"\n") == 3
    assert not [file for file in tmp_path.iterdir() if file.name.endswith(".part")]


def test_a_file_that_came_in_the_meantime_is_not_replaced(run, tmp_path, monkeypatch):
    out, tool = tmp_path / "out.txt", make(Translator)
    answer_lines = tool.answer_lines

    def answer(lines, request):
        out.write_text("somebody else's", encoding="utf-8")
        return answer_lines(lines, request)

    monkeypatch.setattr(tool, "answer_lines", answer)
    code, _, err = run(tool, "--output", out, stdin="the cat\n")
    assert (code, out.read_text(encoding="utf-8")) == (1, "somebody else's")
    assert err.startswith(f"glassformer: --output {out} exists")


def test_a_bad_line_is_an_object_with_its_error_in_json(run):
    code, lines, err = run(make(Extractor), "--json", stdin=f"{PAIR}\nno tab\n")
    assert code == 1
    assert json.loads(lines[1])["error"].startswith("'no tab' is not a question about a text")
    assert err.splitlines()[-1].endswith("an object with the error stands for each in the output")


def test_a_progress_bar_is_shown_for_a_file_on_a_terminal_alone(run, tmp_path):
    (tmp_path / "in.txt").write_text("the cat\n" * 3, encoding="utf-8")
    options = ("--input", tmp_path / "in.txt")
    assert "in.txt" in run(make(Translator), *options, "--output", tmp_path / "1", is_terminal=True)[2]
    assert "in.txt" in run(make(Translator), *options, is_terminal=True)[2]  # stdout is a pipe here
    assert run(make(Translator), *options, "--output", tmp_path / "2", "--quiet", is_terminal=True)[2] == ""
    assert run(make(Translator), *options, "--output", tmp_path / "3")[2] == ""
    assert run(make(Translator), is_terminal=True, stdin="the cat\n")[2] == ""


def test_tabs_inside_texts_do_not_make_columns(run, monkeypatch):
    from glassformer.cli.run import as_line
    from glassformer.cli.run_options import AnswerOptions
    from glassformer.pipelines.pipeline import LineAnswer

    answer = LineAnswer("a\tb", {"text": "a\tb"}, ("a\tb", "c"), (-1.0, -2.0))
    assert as_line(answer, AnswerOptions(n_best=2, scores=True)) == "a\\tb\t-1.0000\tc\t-2.0000"
    assert as_line(answer, AnswerOptions()) == "a\tb"
    assert as_line(answer, AnswerOptions(json=True)) == '{"text": "a\\tb"}'


def test_models_of_other_libraries_are_named_by_their_kind():
    assert [make(kind).model.kind for kind in (Generator, Embedder, TextToText)] == [
        "decoder",
        "encoder",
        "encoder_decoder",
    ]
