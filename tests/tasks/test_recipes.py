"""Recipes: TOML files whose keys are the options of a task."""

import re
from pathlib import Path

import pytest

from glassformer.tasks.configs.small_models import small_encoder_decoder
from glassformer.tasks.recipes import load_recipe, read_recipe, recipe_text
from glassformer.tasks.task_registry import TASKS, config_named, task_named
from glassformer.tasks.translation import PairData, TranslationConfig

RECIPES = Path(__file__).parents[2] / "recipes"


def test_a_recipe_sets_options_and_a_wrong_key_gets_a_suggestion(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(
        '[data]\ncorpus = "multi30k"\nfolder = "x"\n[model]\nd_model = 64\n[train]\nlr = 1\nupdates = 5\n',
        encoding="utf-8",
    )
    config = load_recipe(path, TranslationConfig)
    assert (config.model.d_model, config.train.updates, config.data.corpus) == (64, 5, "multi30k")
    assert config.model.d_ff == small_encoder_decoder().d_ff
    for text, message in (
        ("[train]\nupdatez = 5\n", "'updatez' in the table .train.: did you mean 'updates'"),
        ("[model]\nn_head = 5\n", "did you mean 'n_heads'"),
        ('[train]\nlr = "fast"\n', "lr='fast': expected a number"),
        ("[train]\ncuda_graphs = 1\n", "cuda_graphs=1: expected True or False"),
        ("[cooking]\n", "unknown table .cooking.: expected one of"),
        ("[train\n", "is not TOML"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            load_recipe(path, TranslationConfig)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.name)
def test_every_recipe_loads(path):
    task = re.search(r"glassformer train (\w+) --recipe recipes/" + path.name, path.read_text(encoding="utf-8"))
    assert task, "a recipe says how it is used"
    assert load_recipe(path, task_named(task[1]).Config).train.updates > 0


@pytest.mark.parametrize("task", TASKS)
def test_a_config_written_as_a_recipe_is_read_back(task, tmp_path):
    config = config_named(task)()
    (tmp_path / "r.toml").write_text(recipe_text(config), encoding="utf-8")
    assert load_recipe(tmp_path / "r.toml", type(config)) == config


def test_text_with_quotes_and_control_characters_survives(tmp_path):
    config = TranslationConfig(data=PairData(source_column='a "b" \\ \x7f \n'))
    (tmp_path / "r.toml").write_text(recipe_text(config), encoding="utf-8")
    assert read_recipe(tmp_path / "r.toml", TranslationConfig)["data.source_column"] == config.data.source_column
