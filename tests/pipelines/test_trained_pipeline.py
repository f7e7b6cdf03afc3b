"""Pipelines of trained models: what a folder stores, and folders that do not fit."""

import json

import pytest

from glassformer.checkpoint import OutputExistsError, load_model, save_model
from glassformer.models import DecoderModel
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.comparer import Comparer
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.load import load
from glassformer.pipelines.trained_pipeline import TrainedPipeline
from glassformer.pipelines.translator import Translator
from glassformer.tasks.classification import LabeledData
from pipelines.tiny_pipelines import MAKERS, make


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if issubclass(kind, TrainedPipeline)])
def test_a_saved_pipeline_is_loaded_with_its_settings(kind, tmp_path):
    tool = make(kind)
    tool.save(tmp_path / "m", "# A card")
    found = load(tmp_path / "m")
    assert type(found) is kind
    assert (found.settings(), found.files()) == (tool.settings(), tool.files())
    assert (tmp_path / "m" / "README.md").read_text(encoding="utf-8") == "# A card"


def test_task_json_stores_how_the_data_was_read(tmp_path):
    make(Classifier).save(tmp_path / "m", "card", LabeledData(text_column="review"))
    about = json.loads((tmp_path / "m" / "task.json").read_text(encoding="utf-8"))
    assert about["data"]["text_column"] == "review"
    assert "data" not in about["data"], "the names of the training files are not stored"


def test_a_folder_of_another_task_or_kind_is_refused(tmp_path):
    make(Classifier).save(tmp_path / "m", "card")
    with pytest.raises(ValueError, match="was not trained for similarity: glassformer info shows what it is"):
        Comparer.from_folder(tmp_path / "m")
    with pytest.raises(ValueError, match="holds a model of kind 'encoder': expected 'decoder'"):
        Classifier.open_folder(tmp_path / "m", DecoderModel)
    with pytest.raises(FileNotFoundError, match="no such model folder"):
        Classifier.from_folder(tmp_path / "none")


def test_another_model_is_replaced_only_on_request(tmp_path):
    make(Classifier).save(tmp_path / "m", "card", owner="one run")
    make(Classifier).save(tmp_path / "m", "card", owner="one run")
    with pytest.raises(OutputExistsError):
        make(Classifier).save(tmp_path / "m", "card", owner="another run")
    make(Classifier).save(tmp_path / "m", "card", owner="another run", overwrite=True)


def test_a_pipeline_is_saved_to_a_path_as_text_with_a_card_of_its_own(tmp_path):
    make(Translator).save(str(tmp_path / "m"))
    card = (tmp_path / "m" / "README.md").read_text(encoding="utf-8")
    assert card.startswith("# m\n\nThis folder holds a translator, saved with Glassformer.")
    assert isinstance(load(str(tmp_path / "m")), Translator)


@pytest.mark.parametrize("kind", [Translator, LanguageModel], ids=["translator", "decoder"])
def test_a_model_without_its_tokenizer_is_refused_by_load(tmp_path, kind):
    save_model(str(tmp_path / "m"), make(kind).model)
    with pytest.raises(ValueError, match=r"m holds a model without tokenizer and task.json: .* reads the model alone"):
        load(tmp_path / "m")
    assert load_model(str(tmp_path / "m")).config == make(kind).model.config
