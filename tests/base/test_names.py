"""Suggestions for misspelled names and paths."""

from glassformer.base.names import MAX_LISTED, nearest, no_such_model, path_suggestion, suggestion


def test_no_suggestion_without_a_similar_name():
    assert nearest("Warm-Up", ["warmup", "lr"]) == "warmup"
    assert nearest("zzz", ["warmup", "lr"]) is None
    assert suggestion("zzz", ["a", "b"]) == "expected one of a, b"
    assert suggestion("zzz", ["", "b"]) == "expected b"


def test_an_alias_of_another_library_is_translated():
    assert suggestion("hidden_size", ["d_model", "d_ff"], aliases={"hidden_size": "d_model"}) == (
        "did you mean 'd_model'?"
    )


def test_a_long_list_of_names_is_cut_off():
    found = suggestion("zzz", [f"name{i}" for i in range(MAX_LISTED + 1)])
    assert found.endswith(f"name{MAX_LISTED - 1}, ...")


def test_a_missing_path_suggests_a_similar_name_in_its_folder(tmp_path):
    (tmp_path / "train.csv").write_text("", encoding="utf-8")
    assert path_suggestion(tmp_path / "trian.csv") == f"did you mean {tmp_path / 'train.csv'}?"
    assert path_suggestion(tmp_path / "zzz") == f"check the name; it is looked for in {tmp_path}"
    assert path_suggestion(tmp_path / "no" / "file") == f"the folder {tmp_path / 'no'} cannot be opened: check the name"


def test_a_missing_model_is_a_file_or_a_folder_by_its_suffix(tmp_path):
    assert "model.gguf: no such file: check the name" in no_such_model(tmp_path / "model.gguf")
    assert "model: no such model folder: check the name" in no_such_model(tmp_path / "model")
