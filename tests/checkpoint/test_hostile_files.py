"""Broken and malicious files load or are refused with a clear error. `make fuzz` runs more cases."""

import json
import shutil

import pytest

from checkpoint.hostile_files import MAX_MESSAGE, build_models, run_case, seal, use
from glassformer.pipelines.load import load


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    found = build_models(tmp_path_factory.mktemp("models"))
    for path in found.values():
        use(load(path))  # the unbroken model works
    return found


@pytest.mark.parametrize("first", [0, 100, *(pytest.param(n, marks=pytest.mark.full) for n in (200, 300))])
def test_broken_files_are_refused_with_clear_errors(first, paths, tmp_path):
    outcomes = [run_case(case, paths, tmp_path) for case in range(first, first + 100)]
    assert [outcome for outcome in outcomes if outcome.violation] == []
    # Most cases must break the model, or they would test nothing.
    assert 10 < sum(outcome.result == "loaded" for outcome in outcomes) < 60


def test_a_case_breaks_the_same_files_again(paths, tmp_path):
    first, again = run_case(7, paths, tmp_path), run_case(7, paths, tmp_path)
    assert (first.deeds, first.result) == (again.deeds, again.result)


HUGE = [
    ("llama", "num_hidden_layers", 10**9, "layers: expected at most"),
    ("qwen2", "num_hidden_layers", 10**9, "num_hidden_layers=1000000000: expected from 1 to 65536"),
    ("albert", "num_hidden_layers", 10**9, "layers: expected at most 1024"),
    ("bert", "vocab_size", 2**31 - 1, "vocab_size=2147483647: expected at most"),
    ("bert", "hidden_size", 2**63, "hidden_size=9223372036854775808: expected a whole number, at most"),
    ("t5", "d_kv", 2**30, "n_heads \\* head_dim=2147483648: expected at most"),
    ("marian", "max_position_embeddings", 2**30, "max_len=1073741824: expected at most"),
    ("bart", "decoder_layers", 2**31 - 1, "layers: expected at most"),
    ("gpt2", "n_head", 10**6, "n_head=1000000: expected at least 1, at most 8"),
    ("bart", "num_beams", 10**6, "1000000 beams"),
    ("own", "vocab_size", 2**40, "vocab_size=1099511627776: expected at most"),
    ("own", "n_decoder_layers", 10**9, "layers: expected at most"),
]


@pytest.mark.parametrize(("kind", "key", "value", "message"), HUGE)
def test_huge_sizes_are_refused_before_memory_is_allocated(kind, key, value, message, paths, tmp_path):
    folder = tmp_path / kind
    folder.mkdir()
    for file in paths[kind].rglob("*"):
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    search = {key: value} if key == "num_beams" else {}  # where the file exists, it replaces the search of config.json
    (folder / "generation_config.json").write_text(json.dumps(search), encoding="utf-8")
    values = json.loads((paths[kind] / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(values | {key: value}), encoding="utf-8")
    if kind == "own":
        seal(folder)  # an attacker can rewrite the checksums
    with pytest.raises(ValueError, match=message):
        load(folder)


INFINITE, LONG = float("inf"), "x" * 100_000
WRONG = [
    ("own", "task.json", {"task": ["x"]}, r"names the task \['x'\]"),
    ("own", "task.json", {"task": {}}, "names the task {}"),
    ("own", "task.json", {"task": LONG}, "names the task 'xxx"),
    ("own", "task.json", "[" * 100_000, "cannot be read"),
    ("own", "task.json", '{"task": "translation", "task": "code"}', "'task' occurs twice"),
    ("own", "task.json", {"task": "translation", "data": float("nan")}, "it holds NaN"),
    ("own", "generation_config.json", {"max_source_ratio": INFINITE}, "it holds Infinity"),
    ("own", "generation_config.json", '{"max_source_ratio": 1e999}', "it holds '1e999'"),
    ("own", "generation_config.json", {"max_source_ratio": 1e308}, "max_source_ratio=1e.308: expected 0.0 to"),
    ("own", "generation_config.json", {"length_penalty": float("nan")}, "it holds NaN"),
    ("own", "generation_config.json", {"length_penalty": 1e308}, "length_penalty=1e.308: expected"),
    ("own", "generation_config.json", {"coverage_penalty": -INFINITE}, "it holds -Infinity"),
    ("own", "generation_config.json", {"num_beams": LONG}, "num_beams='xxx"),
    ("own", "generation_config.json", {"seed": None}, "seed=None: expected a whole number"),
    ("own", "generation_config.json", {"prefix": 5}, "prefix=5: expected a list"),
    ("own", "generation_config.json", {"prefix": ["a"]}, "token of prefix='a'"),
    ("own", "generation_config.json", {"logit_bias": {"a": 1}}, "logit_bias has the token 'a'"),
    ("own", "generation_config.json", {"suppress_tokens": [10**30]}, "token of suppress_tokens=10000"),
    ("own", "generation_config.json", [], r"holds \[\]: expected a JSON object"),
    ("own", "manifest.json", "[" * 100_000, "cannot be read"),
    ("own", "manifest.json", {"sha256": []}, "no table of checksums"),
    ("own", "config.json", {"vocab_size": "9" * 5000}, "vocab_size='999"),
    ("own", "config.json", '{"vocab_size": ' + "9" * 5000 + "}", "cannot be read"),
    ("own", "tokenizer.json", '{"version": "' + LONG + '"}', "is not a tokenizer"),
    ("guesser", "tokenizer.json", {"model": {"vocab": {"a": 2**31}}}, "expected ids below"),
    ("classifier", "task.json", {"labels": [1, 2]}, r"labels=\[1, 2\]: expected a list of texts"),
    ("classifier", "task.json", {"tokenizer": ["own"]}, r"tokenizer=\['own'\]: expected 'own' or"),
    ("comparer", "task.json", {"lowest": "a"}, "lowest='a': expected a number"),
    ("extractor", "task.json", {"overlap": 1.5}, "overlap=1.5: expected a whole number"),
    ("extractor", "task.json", {"overlaps": 1}, "the setting 'overlaps'"),
    ("denoiser", "task.json", {"noise": "loud"}, "noise='loud': expected one of"),
    ("writer", "task.json", {"has_documents": "no"}, "has_documents='no': expected true or false"),
    ("answerer", "task.json", {"last_sentences": "two"}, "last_sentences='two': expected a whole number"),
]


@pytest.mark.parametrize(
    ("kind", "name", "contents", "message"),
    WRONG,
    ids=[f"{kind}-{name}-{number}" for number, (kind, name, _, _) in enumerate(WRONG)],
)
def test_a_wrong_value_in_our_folder_is_named_with_its_file(kind, name, contents, message, paths, tmp_path):
    folder = tmp_path / kind
    shutil.copytree(paths[kind], folder)
    if name in ("task.json", "tokenizer.json") and isinstance(contents, dict):
        whole = json.loads((folder / name).read_text(encoding="utf-8"))
        if name == "tokenizer.json":
            whole["model"]["vocab"] |= contents["model"]["vocab"]
        else:
            whole |= contents
        contents = whole
    (folder / name).write_text(contents if isinstance(contents, str) else json.dumps(contents), encoding="utf-8")
    if name != "manifest.json":
        seal(folder)
    with pytest.raises(ValueError, match=message) as caught:
        load(folder)
    assert str(folder / name) in str(caught.value)
    assert len(str(caught.value)) <= MAX_MESSAGE
