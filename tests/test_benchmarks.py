"""The benchmark programs write their tables as result files, from the records of their runs."""

import ctypes
import gzip
import importlib.util
import json
import math
import os
import re
import sys
import types
from pathlib import Path

import pytest
import torch

from explorer_browser import CHROMIUM
from glassformer.decoding import GenerationConfig
from glassformer.decoding.scoring import score_long_texts
from glassformer.kernels.cpp_library import KernelBuildError
from glassformer.kernels.kernel_registry import cpp_kernels
from glassformer.models import build_model, preset
from glassformer.pipelines.language_model import LanguageModel
from glassformer.text import Tokenizer
from test_results_page import results_page

ROOT = Path(__file__).parents[1]
ORIGIN = {"machine": "two cores", "date": "2026-01-02"}


def program(name):
    """Load a program of benchmarks/ as a module, without an entry in sys.modules: tests/tasks has the name of one."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, name, module)  # dataclasses look their module up
        spec.loader.exec_module(module)
    return module


def call(module, monkeypatch, *words):
    """Run a program's `main` with these words of its command line."""
    monkeypatch.setattr(sys, "argv", [module.__file__, *map(str, words)])
    module.main()


def bleu(test, signatures=("cased", "lower-cased")):
    side = {"cased": test - 1, "chrf": 60.0, "tokenized": test, "signatures": list(signatures)}
    return {"valid": side, "test": side}


def test_the_parity_of_families_is_counted_from_what_the_tests_print(tmp_path, monkeypatch):
    tool = program("parity")
    printed = "t5 {'loaded': 89, 'refused': 11}\nt5 100 gradients\nt5 200 texts\n1 failed, 2 passed in 3.0s\n"
    assert tool.count_results("t5", printed) == tool.Parity(89, 11, 100, 200, failed=1)
    assert tool.count_results("bert", "2 failed in 3.0s") == tool.Parity(0, 0, 0, 0, failed=2)
    with pytest.raises(ValueError, match=r"the tests of t5 did not run: no such file"):
        tool.count_results("t5", "no such file")
    monkeypatch.setattr(tool, "run_tests", lambda family: tool.Parity(89, 11, 100, 200 * (family == "t5"), 0))
    call(tool, monkeypatch, tmp_path / "a.json", "--families", "bert", "t5")
    found = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert found["rows"] == [["`bert`", 89, 11, 100, "", 0], ["`t5`", 89, 11, 100, 200, 0]]
    source = (ROOT / tool.FILE).read_text(encoding="utf-8")
    assert all(f"def {name}(" in source for name in (*tool.TESTS, tool.GREEDY))


def test_the_ablations_are_written_as_a_result_file(tmp_path, monkeypatch, capsys):
    ledger, runs = program("ledger"), tmp_path / "runs"
    runs.mkdir()
    for seed, score in ((0, 40.0), (1, 42.0)):
        for training in ledger.TRAININGS:
            scores = {"baseline": bleu(score - (training != "baseline"))}
            if training == "baseline":
                scores["greedy, no beam"] = bleu(score - 0.5)
            record = {"training": training, "seed": seed, "updates": 3000, "scores": scores, **ORIGIN}
            ledger._file(runs, training, seed).write_text(json.dumps(record), encoding="utf-8")
    out = runs / "result.json"  # beside the runs: a later call must not take it for one
    call(ledger, monkeypatch, "data", "--out", runs, "--seeds", 2, "--result-file", out)
    call(ledger, monkeypatch, "data", "--out", runs, "--seeds", 2)
    result = json.loads(out.read_text(encoding="utf-8"))
    results_page.check_result(result, out.name)
    assert result["rows"][0] == ["baseline", "41.00 ± 1.41", "", "40.00 ± 1.41", "40.00 ± 1.41", "2"]
    assert ["without label smoothing", "40.00 ± 1.41", "-1.00", "39.00 ± 1.41", "39.00 ± 1.41", "2"] in result["rows"]
    assert result["rows"][-1][:3] == ["greedy, no beam", "40.50 ± 1.41", "-0.50"]
    assert (result["machine"], result["date"]) == ("two cores", "2026-01-02")
    assert result["command"][0].startswith("python benchmarks/ledger.py data --out ")
    assert result["notes"][1] == "Signatures: `lower-cased` and `cased`."
    assert "| baseline | 41.00 ± 1.41 |" in capsys.readouterr().out
    with pytest.raises(FileExistsError, match="expected a new name"):
        call(ledger, monkeypatch, "data", "--out", runs, "--seeds", 2, "--result-file", out)


def test_ablations_without_a_baseline_have_no_table():
    assert program("ledger").table_rows([{"training": "with R-Drop 5", "scores": {"baseline": bleu(1.0)}}]) == []


def test_the_scores_of_the_recipes_are_written_as_a_result_file(tmp_path, monkeypatch):
    tasks, runs = program("tasks"), tmp_path / "runs"
    runs.mkdir()
    name = "questions: trec, held-out tenth, from scratch"
    for seed, score in ((0, 86.0), (1, 87.0)):
        record = {"name": name, "seed": seed, "device": "cpu", "seconds": 60 + seed, "scores": {"accuracy": score}}
        record |= {**ORIGIN, "command": f"python benchmarks/tasks.py --seeds {seed + 1}"}
        (runs / f"{tasks.slug(name, seed)}.json").write_text(json.dumps(record), encoding="utf-8")
    out = runs / "result.json"
    call(tasks, monkeypatch, "data", "--out", runs, "--seeds", 2, "--only", "trec, held-out tenth, from scratch")
    call(tasks, monkeypatch, "data", "--out", runs, "--only", "MiniLM", "--result-file", out)  # which needs --minilm
    result = json.loads(out.read_text(encoding="utf-8"))
    results_page.check_result(result, out.name)
    recipe = "`recipes/trec.toml`"
    assert result["rows"] == [[name, "accuracy 86.50 ± 0.71", "accuracy >= 88", recipe, "cpu", "60", "2"]]
    assert result["command"] == [f"python benchmarks/tasks.py --seeds {n}" for n in (1, 2)]


def test_the_runs_of_the_defaults_are_written_as_result_files(tmp_path, monkeypatch):
    defaults, runs = program("defaults"), tmp_path / "runs.jsonl"
    pairs = {"corpus": "pairs", "minutes": 2.0, "seconds": 120.0, "cores": 2, **ORIGIN}
    records = [
        {**pairs, "settings": "default", "seed": 0, "scores": {"bleu": 30.0}},
        {**pairs, "settings": "default", "seed": 1, "scores": {"bleu": 32.0}},
        {**pairs, "settings": "recipe", "seed": 0, "scores": {"bleu": 25.0}},
        {
            "corpus": "reviews",
            "minutes": 5.0,
            "settings": "default",
            "seed": 0,
            "seconds": 300.0,
            "scores": {"accuracy": 80.0},
            "baseline": {"accuracy": 51.25},
            "baseline_is": "the most frequent class",
        },
    ]
    runs.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    call(defaults, monkeypatch, "data", "--out", runs, "--table", "--result-files", tmp_path / "defaults")
    results = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.glob("*.json")}
    for name, result in results.items():
        results_page.check_result(result, name)
    translation, tasks = results["defaults-translation"], results["defaults-tasks"]
    assert translation["rows"] == [["pairs", "2", "31.0", "2.00", "25.0", "not run", "not run", "124%", "1 to 2"]]
    assert translation["notes"][0].endswith("Each run had 2 cores to itself.")
    assert tasks["rows"] == [["reviews", "5", "5.00", "0", "accuracy 80", "accuracy 51.2", "the most frequent class"]]
    assert (tasks["machine"], tasks["date"]) == ("not recorded", "not recorded")
    with pytest.raises(FileExistsError, match="defaults-translation"):
        call(defaults, monkeypatch, "data", "--out", runs, "--table", "--result-files", tmp_path / "defaults")


def test_the_table_of_the_defaults_is_printed_without_a_file(tmp_path, monkeypatch, capsys):
    runs = tmp_path / "runs.jsonl"
    record = {"corpus": "pairs", "minutes": 2.0, "settings": "default", "seed": 0, "seconds": 90.0}
    runs.write_text(json.dumps({**record, "scores": {"bleu": 30.0}}) + "\n", encoding="utf-8")
    call(program("defaults"), monkeypatch, "data", "--out", runs, "--table")
    assert "| pairs | 2 | 30.0 | 1.50 | not run |" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [runs]


def test_the_times_of_draws_are_written_as_a_result_file(tmp_path, monkeypatch, capsys):
    sampling, out = program("sampling"), tmp_path / "sampling.json"
    call(sampling, monkeypatch, out, "--vocabulary", 3000, "--rounds", 1)
    result = json.loads(out.read_text(encoding="utf-8"))
    results_page.check_result(result, out.name)
    assert [row[:2] for row in result["rows"][:2]] == [["flat", "no filter"], ["flat", "temperature 0.8"]]
    assert len(result["rows"]) == len(sampling.SPREADS) * len(sampling.REQUESTS)
    assert "| flat | top-p 0.9 |" in capsys.readouterr().out


def test_the_former_draw_of_the_benchmark_gives_todays_tokens():
    """So that its times are those of the same work."""
    sampling = program("sampling")
    logits = 3 * torch.randn(1, 3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for options in sampling.REQUESTS.values():
        request = GenerationConfig(do_sample=True, **options)
        expected = sampling.former_draw(logits, request, 0.4).tolist()
        assert sampling.sample_rows(logits, [request], [0.4]).tolist() == expected


def test_the_perplexities_are_written_as_a_result_file(tmp_path, monkeypatch, capsys):
    perplexity, out = program("perplexity"), tmp_path / "perplexity.json"
    torch.manual_seed(0)
    tokenizer = Tokenizer.train(["a few words to tell apart"], 300)
    model = build_model(preset("tiny-llama", vocab_size=tokenizer.vocab_size, max_len=16))
    language_model = LanguageModel(model, tokenizer, has_documents=False)
    language_model.save(tmp_path / "model", "A generated model.")
    text = "some words to tell apart, and a few more of them"
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(text.encode()))
    words = [tmp_path / "model", tmp_path / "text.txt.gz", "--stride", 8, "--quantize", "none", "int4"]
    call(perplexity, monkeypatch, *words, "--tokens", 20, "--out", out)
    result = json.loads(out.read_text(encoding="utf-8"))
    results_page.check_result(result, out.name)
    assert [row[0] for row in result["rows"]] == ["as stored", "int4"]
    assert result["rows"][0][2:] == ["", ""]
    assert re.fullmatch(r"[+-]\d+\.\d\d %", result["rows"][1][2])
    assert "| as stored |" in capsys.readouterr().out
    # A limit above the length of the text scores all of it, but the first token.
    whole = perplexity.measure(tmp_path / "model", text, "none", tokens=1000, context=16, stride=8)
    ids = tokenizer.encode(text)
    nats = -score_long_texts(language_model.model.eval(), [ids], context=16, stride=8)[0]
    assert whole.n_tokens == len(ids) - 1
    assert whole.perplexity == pytest.approx(math.exp(nats / (len(ids) - 1)))


def test_perplexity_needs_a_decoder(tmp_path, monkeypatch):
    perplexity = program("perplexity")
    monkeypatch.setattr(perplexity.gf, "load", lambda *_, **__: object())
    with pytest.raises(ValueError, match="expected a decoder"):
        perplexity.measure(tmp_path, "text", "none", tokens=1, context=1, stride=1)


def test_the_int8_benchmark_prints_one_line_for_each_shape_and_number_of_rows(monkeypatch, capsys):
    try:
        cpp_kernels()
    except KernelBuildError as error:
        pytest.skip(str(error))
    module = program("int8_product")
    monkeypatch.setattr(module, "SHAPES", {"small": (16, 24)})
    monkeypatch.setattr(module, "VOCABULARY", {"vocabulary": (16, 40)})
    monkeypatch.setattr(module, "ROWS", (1, 3))
    monkeypatch.setattr(module, "MODEL_BYTES", 1000)
    call(module, monkeypatch, "--threads", torch.get_num_threads(), "--rounds", 1, "--torch-int8")
    _, _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in lines] == [
        [name, "16", str(n_out), str(n_rows)]
        for name, n_out in (("small", 24), ("vocabulary", 40))
        for n_rows in (1, 3)
    ]


def test_loading_needs_little_more_memory_than_the_model(tmp_path, request):
    """The peak is at most 1.2 times the larger of file and model, and 16 MB for Python, the allocator and a layer."""
    is_full = request.config.getoption("--full")
    tool = program("load_memory")
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the peak memory is not reported here")
    config = tool.gpt2_config(300 if is_full else 60)
    stores = (
        (("own", torch.float32, False), ("hf", torch.bfloat16, True)) if is_full else (("hf", torch.bfloat16, True),)
    )
    for name, dtype, as_hf in stores:
        folder, tiny = tmp_path / name, tmp_path / f"tiny {name}"
        tool.save_generated(folder, config, dtype, as_hf=as_hf)
        tool.save_generated(tiny, tool.preset("tiny-gpt2"), dtype, as_hf=as_hf)
        for numbers in tool.NUMBERS if is_full else ("int8",):
            found = tool.measure_load(folder, tiny, config, numbers)
            assert not found.imports_compiler  # it takes seconds to import
            assert found.peak < 1.2 * max(found.file, found.model) + 16e6, (name, numbers, found)


def translated_files(tmp_path, monkeypatch, **options):
    """Run `translate_file.py` with programs that write upper-case lines at once; return it and their commands."""
    translate, commands = program("translate_file"), []
    source = tmp_path / "in.txt.gz"
    source.write_bytes(gzip.compress(b"one two three four\nfive six seven eight\n"))

    def run(command, **given):
        words = command[command.index("--input") :] if "--input" in command else command[2:]
        read, written = (words[1], words[3]) if "--input" in command else (words[-4], words[-3])
        Path(written).write_text(Path(read).read_text(encoding="utf-8").upper(), encoding="utf-8")
        commands.append(command)

    monkeypatch.setattr(translate.subprocess, "run", run)
    monkeypatch.setattr(translate, "convert", lambda model, out, to: None)
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    call(translate, monkeypatch, "model", source, *words)
    return commands


def test_the_times_for_a_file_are_written_as_a_result_file(tmp_path, monkeypatch, capsys):
    out = tmp_path / "times.json"
    commands = translated_files(tmp_path, monkeypatch, threads=2, rounds=2, out=out)
    assert len(commands) == 2 * 2 * 2 * 2  # beam widths, rounds, files and programs
    ours, theirs = commands[2:4]
    assert ours[1:5] == ["-m", "glassformer", "run", "model"]
    assert ours[ours.index("--threads") :][:5] == ["--threads", "2", "--beam", "1", "--quiet"]
    assert ours[-2:] == ["--quantize", "int8"]
    assert theirs[1].endswith("translate_ctranslate2.py")
    assert theirs[-2:] == ["1", "2"]  # beam width and threads
    record = json.loads(out.read_text(encoding="utf-8"))
    assert [row[:2] for row in record["rows"]] == [
        ["glassformer run", "1"],
        ["ctranslate2", "1"],
        ["glassformer run", "4"],
        ["ctranslate2", "4"],
    ]
    assert [row[5] for row in record["rows"]][1::2] == ["1.00x", "1.00x"]
    assert {row[6] for row in record["rows"]} == {"100.0"}
    assert "| glassformer run | 1 |" in capsys.readouterr().out


def test_ctranslate2_gets_its_best_setting_for_a_file(tmp_path, monkeypatch):
    """A batch on each core, all of them submitted at once."""
    made, asked = [], []

    class Translator:
        def __init__(self, folder, **options):
            made.append(options)

        def translate_batch(self, texts, **options):
            asked.append((len(texts), options))
            return [types.SimpleNamespace(hypotheses=[text]) for text in texts]

    monkeypatch.setitem(sys.modules, "ctranslate2", types.SimpleNamespace(Translator=Translator))
    tokenizer = Tokenizer.train(["one two three"] * 5, vocab_size=300)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    (tmp_path / "in.txt").write_text("one two\nthree\n", encoding="utf-8")
    words = ["folder", tmp_path / "tokenizer.json", tmp_path / "in.txt", tmp_path / "out.txt", 4, 3]
    monkeypatch.setattr(sys, "argv", ["translate_ctranslate2.py", *map(str, words)])
    program("peers/translate_ctranslate2")
    assert made == [{"compute_type": "int8", "inter_threads": 3, "intra_threads": 1}]
    ((n_texts, options),) = asked
    assert n_texts == 2
    assert options["beam_size"] == 4
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()
    assert [line.strip() for line in lines] == ["one two", "three"]


def test_the_times_beside_llama_cpp_are_written_as_a_result_file(tmp_path, monkeypatch):
    model = build_model(preset("tiny-llama")).eval()
    evaluated = []

    class Llama:
        ctx = None

        def __init__(self, path, **options):
            assert options["n_ctx"] == 4 + 24 + 1

        def reset(self):
            evaluated.append([])

        def eval(self, tokens):
            evaluated[-1].append(list(tokens))

        def n_vocab(self):
            return 5

    scores = (ctypes.c_float * 5)(0, 1, 9, 2, 3)
    stub = types.SimpleNamespace(
        Llama=Llama, llama_get_logits_ith=lambda ctx, place: ctypes.cast(scores, ctypes.POINTER(ctypes.c_float))
    )
    monkeypatch.setitem(sys.modules, "llama_cpp", stub)
    speed, out, usual = program("llama_cpp"), tmp_path / "one.json", torch.get_num_threads()
    monkeypatch.setattr(speed, "load", lambda path, device: types.SimpleNamespace(model=model))
    try:
        call(speed, monkeypatch, "m.gguf", "--prompt", 4, "--seconds", 0, "--threads", usual, "--out", out)
    finally:
        torch.set_num_threads(usual)
    record = json.loads(out.read_text(encoding="utf-8"))
    assert [row[:2] for row in record["rows"]] == [
        ["4 tokens", "first token, 1 rounds"],
        ["4 tokens", "each further token, 1 rounds"],
    ]
    prompt = [2 + index * 7 % (model.config.vocab_size - 2) for index in range(4)]
    assert evaluated == [[prompt, [2], [2]], [prompt], [prompt, *[[2]] * 24]]


def test_a_servers_load_is_measured_and_written_as_a_result_file(tmp_path, monkeypatch, capsys):
    from serve.served import write_models

    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # for the processes of the clients
    module, out = program("serve"), tmp_path / "serve.json"
    model = write_models(tmp_path)["chat"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    words = ["--clients", 1, 3, "--requests", 1, "--tokens", 6, "--rounds", 1, "--serve", "--device cpu"]
    words += ["--client-processes", 2]
    call(module, monkeypatch, model, *words, "--out", out)
    result = json.loads(out.read_text(encoding="utf-8"))
    results_page.check_result(result, out.name)
    names = "the engine alone", "`generate` in one batch", "glassformer"
    assert [row[:2] for row in result["rows"]] == [[n_clients, name] for n_clients in (1, 3) for name in names]
    for row in result["rows"]:
        assert float(row[2]) > 0
    assert re.fullmatch(r"\d+ / \d+", result["rows"][2][4])
    assert "| 3 | glassformer |" in capsys.readouterr().out
    assert re.search(r"took \d+\.\d ms of processor time for each answer, in 2 processes", result["notes"][1])
    with pytest.raises(SystemExit, match="ended with code 3"), module.ServerProcess("peer", "sh -c 'exit 3'"):
        pass


def test_quantiles_of_waiting_times(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = program("serve")
    assert module.quantile([], 0.5) == 0
    assert module.quantile([3, 1, 2], 0.5) == 2
    assert module.quantile([3, 1, 2], 0.99) == 3


@pytest.mark.full
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: `make test-browser` installs it")
def test_the_live_explorer_is_measured_in_a_browser(tmp_path, monkeypatch):
    pytest.importorskip("playwright.sync_api")
    module, out = program("explain_live"), tmp_path / "live.json"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    call(module, monkeypatch, out, "--tiny", "--repeats", 1)
    result = json.loads(out.read_text(encoding="utf-8"))
    results_page.check_result(result, out.name)
    changes = [row[1] for row in result["rows"]]
    assert len(changes) == 10
    assert changes[:3] == ["edit a word", "switch a head off", "switch it on again"]
    assert all(float(row[6]) > 0 for row in result["rows"] if "temperature" not in row[1])
