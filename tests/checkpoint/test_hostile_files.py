"""Nothing in a file is trusted: whatever it says, it loads or is refused in good order. More cases: `make fuzz`."""

import json

import pytest

from checkpoint.hostile_files import build_models, run_case, use
from glassformer.tasks.load import load


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    found = build_models(tmp_path_factory.mktemp("models"))
    for path in found.values():
        use(load(path))  # broken later, whole now
    return found


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_broken_files_are_refused_in_good_order(first, paths, tmp_path):
    outcomes = [run_case(case, paths, tmp_path) for case in range(first, first + 100)]
    assert [outcome for outcome in outcomes if outcome.violation] == []
    # Some do no harm, most do: else the cases would test nothing.
    assert 10 < sum(outcome.result == "loaded" for outcome in outcomes) < 60


def test_a_case_breaks_the_same_files_again(paths, tmp_path):
    first, again = run_case(7, paths, tmp_path), run_case(7, paths, tmp_path)
    assert (first.deeds, first.result) == (again.deeds, again.result)


HUGE = [
    ("llama", "num_hidden_layers", 10**9, "layers: expected at most"),
    ("qwen2", "num_hidden_layers", 10**9, "layers: expected at most"),
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
def test_sizes_are_refused_before_memory_is_taken(kind, key, value, message, paths, tmp_path, monkeypatch):
    folder = tmp_path / kind
    folder.mkdir()
    for file in paths[kind].rglob("*"):
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    (folder / "generation_config.json").write_text("{}")
    values = json.loads((paths[kind] / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {key: value}))
    # The checksums of our own folder are an enemy's too.
    monkeypatch.setattr("glassformer.checkpoint.model_folder.verify_folder", lambda folder: None)
    with pytest.raises(ValueError, match=message):
        load(folder)
