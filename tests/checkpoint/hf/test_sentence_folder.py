"""Folders of sentence-transformers: which modules are read, and which are refused by name."""

import json

import pytest

from glassformer.checkpoint.download_cache import find_model
from glassformer.checkpoint.hf.sentence_folder import encoder_folder, read_sentence_modules, with_sentence_head
from glassformer.checkpoint.hf.values import UnsupportedModelError
from glassformer.checkpoint.safe_files import CorruptFolderError
from glassformer.models import preset


def write_modules(folder, *kinds, pooling=None, dense=None, encoder=""):
    """Write `modules.json` and the configs of its modules. `kinds` are the last names of their classes."""
    entries = []
    for index, kind in enumerate(kinds):
        path = encoder if kind == "Transformer" else f"{index}_{kind}"
        entries.append({"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"})
        (folder / path).mkdir(exist_ok=True, parents=True)
        values = {"Pooling": pooling or {"pooling_mode_mean_tokens": True}, "Dense": dense or {}}.get(kind)
        if values is not None:
            (folder / path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    (folder / "modules.json").write_text(json.dumps(entries), encoding="utf-8")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["weightedmean"]}, "weighted_mean"),
    ],
)
def test_old_and_new_names_of_poolings_are_read(values, expected, tmp_path):
    write_modules(tmp_path, "Transformer", "Pooling", pooling=values)
    found = read_sentence_modules(tmp_path)
    assert (found.pooling, found.head["unit_length"]) == (expected, False)
    config = with_sentence_head(tmp_path, preset("tiny-bert-base"))
    assert (config.head, config.pooling, config.unit_length) == ("embedding", expected, False)


def test_a_dense_layer_becomes_part_of_the_head(tmp_path):
    dense = {"out_features": 5, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
    write_modules(tmp_path, "Transformer", "Pooling", "Dense", "Normalize", dense=dense)
    config = with_sentence_head(tmp_path, preset("tiny-bert-base"))
    assert (config.head_transform, config.head_activation, config.head_bias) == (True, "identity", False)
    assert (config.embedding_size, config.unit_length) == (5, True)


def test_the_encoder_may_have_a_folder_inside(tmp_path):
    write_modules(tmp_path, "Transformer", "Pooling", "Normalize", encoder="0_Transformer")
    inner = tmp_path / "0_Transformer"
    assert find_model(tmp_path) == encoder_folder(tmp_path) == inner
    assert read_sentence_modules(inner) == read_sentence_modules(tmp_path)
    assert read_sentence_modules(tmp_path).encoder == inner


def test_prompts_and_similarity_are_read(tmp_path):
    write_modules(tmp_path, "Transformer", "Pooling")
    settings = {"prompts": {"query": "q: "}, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    path = tmp_path / "config_sentence_transformers.json"
    path.write_text(json.dumps(settings), encoding="utf-8")
    found = read_sentence_modules(tmp_path)
    assert (found.prompts, found.default_prompt, found.similarity) == ({"query": "q: "}, "q: ", "dot")
    path.write_text(json.dumps(settings | {"default_prompt_name": "other"}), encoding="utf-8")
    with pytest.raises(CorruptFolderError, match="default_prompt_name='other': expected one of its prompts"):
        read_sentence_modules(tmp_path)


def test_a_folder_without_modules_has_none(tmp_path):
    assert read_sentence_modules(tmp_path) is None
    config = with_sentence_head(tmp_path, preset("tiny-bert-base"))
    assert (config.pooling, config.unit_length) == ("mean", True)


@pytest.mark.parametrize(
    ("kinds", "options", "message"),
    [
        (("Transformer", "CNN"), {}, "lists Transformer, CNN, which is not supported: expected Transformer, Pooling"),
        (("Transformer", "Pooling", "Dense", "Dense"), {}, "lists Transformer, Pooling, Dense, Dense, which is not"),
        (("Transformer", "Pooling"), {"pooling": {"pooling_mode": ["cls", "mean"]}}, "the pooling .'cls', 'mean'., wh"),
        (("Transformer", "Pooling"), {"pooling": {"pooling_mode": "mean", "include_prompt": False}}, "include_prompt"),
        (
            ("Transformer", "Pooling", "Dense"),
            {"dense": {"out_features": 3, "activation_function": "os.system"}},
            "activation_function='os.system', which is not supported: expected one of Tanh",
        ),
        (("Transformer", "Pooling", "Dense"), {"dense": {"out_features": 3, "use_residual": True}}, "use_residual"),
    ],
)
def test_other_modules_are_refused_by_name(kinds, options, message, tmp_path):
    write_modules(tmp_path, *kinds, **options)
    with pytest.raises(UnsupportedModelError, match=message):
        read_sentence_modules(tmp_path)


@pytest.mark.parametrize("text", ['{"a": 1}', '[{"type": 3}]', '[{"type": "a.Transformer", "path": ".."}]'])
def test_malformed_lists_of_modules_are_refused(text, tmp_path):
    (tmp_path / "modules.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="expected"):
        encoder_folder(tmp_path)
