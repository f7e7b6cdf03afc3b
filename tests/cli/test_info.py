"""`glassformer info`: its description of each kind of model. It never imports torch."""

import importlib.util
import json
import random
import subprocess
import sys

import pytest

from checkpoint import hf_models
from checkpoint.cached_repositories import put_in_cache
from glassformer.checkpoint import CorruptFolderError, load_model
from glassformer.checkpoint.gguf_export import write_gguf
from glassformer.checkpoint.model_folder import save_model
from glassformer.checkpoint.safe_files import seal_folder
from glassformer.checkpoint.summary import summarize
from glassformer.cli import main
from glassformer.cli.info import describe
from glassformer.models import DecoderModel, preset
from glassformer.models.costs import count_active_parameters, count_parameters
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.trained_pipeline import TrainedPipeline
from glassformer.pipelines.translator import Translator
from glassformer.tasks.translation import PairData
from pipelines.tiny_pipelines import LABELS, MAKERS, ROLES, TEMPLATE, make, pretrained, tokenizer

OURS = [kind for kind in MAKERS if issubclass(kind, TrainedPipeline)]
WITHOUT_TORCH = """
import sys
from glassformer import cli

for path in sys.argv[1:]:
    for options in ([], ["--json"]):
        sys.argv = ["glassformer", "info", path, *options]
        cli.main()
assert "torch" not in sys.modules
"""


def told(capsys, *arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["glassformer", "info", *map(str, arguments)])
        main()
    return capsys.readouterr().out


ENCODERS = {"bert": (hf_models.ENCODERS["bert"][0], "BertForMaskedLM")}
THEIRS = {**hf_models.DECODERS, **hf_models.PAIRS, **ENCODERS}


def hf_folder(folder, kind="llama"):
    draw, class_name = THEIRS[kind]
    hf_models.make(draw(random.Random(3)), class_name, 3).save_pretrained(folder)
    return folder


def gguf_file(path, numbers):
    model = DecoderModel(preset("tiny-llama", d_model=32, d_ff=64))
    write_gguf(path, model, numbers=numbers)
    return model


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_a_folder_of_ours_is_described_as_it_is_loaded(kind, tmp_path):
    tool = make(kind)
    tool.save(tmp_path / "m", "card")
    found = describe(tmp_path / "m")
    assert found["parameters"] == tool.model.n_parameters()
    assert (found["kind"], found["task"]) == (tool.model.kind, tool.task)
    assert found["numbers"] == {"F32": tool.model.n_parameters()}
    ((side, about),) = found["tokenizers"].items()
    assert (side, about["kind"], about["size"]) == ("text", "BPE", tool.model.config.vocab_size)
    assert about["special_tokens"][:4] == ["<pad>", "<s>", "</s>", "<unk>"]
    assert found["settings"]["d_model"] == 16


def test_the_text_output_has_one_fact_per_line(tmp_path, capsys):
    make(Classifier).save(tmp_path / "m", "card")
    lines = told(capsys, tmp_path / "m").splitlines()
    assert lines[0].startswith(f"{tmp_path / 'm'}: encoder, ")
    assert "  task           classification" in lines
    assert f"  task settings  labels={json.dumps(LABELS)}, multi_label=false" in lines
    assert "  numbers        float32 (not quantized)" in lines
    assert "  chat template  none" in lines
    assert "    d_model = 16" in lines
    assert json.loads(told(capsys, tmp_path / "m", "--json"))["task"] == "classification"


def test_parameters_of_a_token_are_shown_if_there_are_experts(tmp_path, capsys):
    config = preset("tiny-mixtral")
    save_model(tmp_path / "m", DecoderModel(config))
    first = told(capsys, tmp_path / "m").splitlines()[0]
    every, few = count_parameters(config), count_active_parameters(config)
    assert first.endswith(f"{every:,} parameters, {few:,} of them for each token")


def test_data_settings_are_shown_where_they_are_not_the_default(tmp_path, capsys):
    make(Translator).save(tmp_path / "m", "card", PairData(target_language="fr", source_column="english"))
    found = describe(tmp_path / "m")
    assert found["data"] == {"source_column": "english"}
    assert found["languages"] == {"source": None, "target": {"code": "fr", "origin": "option"}}
    assert "  data           source_column=english\n" in told(capsys, tmp_path / "m")


def test_a_folder_from_before_languages_were_known_claims_no_default_language(tmp_path, capsys):
    make(Translator).save(tmp_path / "m", "card", PairData())
    about = json.loads((tmp_path / "m" / "task.json").read_text(encoding="utf-8"))
    del about["language_origins"]
    about["data"] |= {"source_language": "en", "target_language": "fr"}
    (tmp_path / "m" / "task.json").write_text(json.dumps(about), encoding="utf-8")
    seal_folder(tmp_path / "m")
    shown = told(capsys, tmp_path / "m")
    assert "  data           target_language=fr\n" in shown
    assert "languages" not in shown
    assert "source_language" not in shown


def test_a_gguf_file_shows_its_quantization(tmp_path, capsys):
    pytest.importorskip("gguf")
    model = gguf_file(tmp_path / "m.gguf", "q8_0")
    found = summarize(tmp_path / "m.gguf")
    assert found.n_parameters == model.n_parameters()
    assert found.stored["Q8_0"] > 0
    lines = told(capsys, tmp_path / "m.gguf")
    assert "  numbers        Q8_0 " in lines
    assert "(quantized)" in lines
    assert "  family         llama" in lines


@pytest.mark.parametrize("kind", THEIRS)
def test_another_librarys_folder_is_counted_as_it_is_loaded(kind, tmp_path):
    folder = hf_folder(tmp_path / "hf", kind)
    found = summarize(folder)
    model = load_model(folder)
    assert (found.config, found.n_parameters) == (model.config, model.n_parameters())


def test_the_chat_template_is_shown_by_its_first_line(tmp_path, capsys):
    folder = hf_folder(tmp_path / "hf")
    (folder / "tokenizer.json").write_text(tokenizer().to_json(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps(ROLES | {"chat_template": TEMPLATE + "\nmore"}), encoding="utf-8"
    )
    lines = told(capsys, folder)
    assert f"  chat template  {TEMPLATE.splitlines()[0][:60]}" in lines
    assert f"BPE, {pretrained().vocab_size:,} tokens, special: <pad> <s> </s> <unk>" in lines


def test_a_model_without_a_tokenizer_is_still_described(tmp_path, capsys):
    lines = told(capsys, hf_folder(tmp_path / "hf"))
    assert "decoder, " in lines
    assert "  tokenizer      " in lines


def test_a_weight_count_that_contradicts_the_config_is_refused(tmp_path):
    make(Translator).save(tmp_path / "m", "card")
    config = json.loads((tmp_path / "m" / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "m" / "config.json").write_text(json.dumps(config | {"d_ff": 8}), encoding="utf-8")
    with pytest.raises(CorruptFolderError):
        describe(tmp_path / "m")
    seal_folder(tmp_path / "m")
    with pytest.raises(CorruptFolderError, match=r"holds [\d,]+ numbers: expected [\d,]+ by config.json"):
        describe(tmp_path / "m")


def test_info_never_imports_torch(tmp_path):
    make(Translator).save(tmp_path / "ours", "card")
    paths = [tmp_path / "ours", *(hf_folder(tmp_path / kind, kind) for kind in ("llama", "bert", "t5", "marian"))]
    if importlib.util.find_spec("gguf"):
        gguf_file(tmp_path / "m.gguf", "f16")
        paths.append(tmp_path / "m.gguf")
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *map(str, paths)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_the_runtime_is_shown_on_request(tmp_path, capsys):
    make(Translator).save(tmp_path / "m", "card")
    lines = told(capsys, tmp_path / "m", "--runtime", "--device", "cpu", "--dtype", "bfloat16")
    assert "    device    cpu (it was asked for)" in lines
    assert "    numbers   bfloat16 (it was asked for)" in lines
    assert "    steps     plain (" in lines
    found = json.loads(told(capsys, tmp_path / "m", "--runtime", "--device", "cpu", "--json"))
    assert found["runtime"]["weights"]["decision"] == "as stored"


def test_options_of_the_runtime_need_the_flag(tmp_path, capsys):
    make(Translator).save(tmp_path / "m", "card")
    with pytest.raises(SystemExit) as stopped:
        told(capsys, tmp_path / "m", "--dtype", "bfloat16")
    assert stopped.value.code == 2
    assert "--dtype bfloat16 has no effect without --runtime" in capsys.readouterr().err


def test_heads_memory_and_skipped_heads_are_shown(tmp_path, capsys):
    theirs = hf_models.small_bert("Bert", "ForPreTraining")
    theirs.save_pretrained(tmp_path)
    found = describe(tmp_path)
    assert found["head"] == "language_model, with a dense layer, tied"
    assert found["skipped_heads"] == ["bert.pooler.dense", "cls.seq_relationship"]
    assert found["memory_bytes"]["float32"] == 2 * found["memory_bytes"]["bfloat16"] == 4 * found["parameters"]
    lines = told(capsys, tmp_path).splitlines()
    assert "  skipped heads  bert.pooler.dense, cls.seq_relationship" in lines
    assert any(line.startswith("  memory         float32 0.0") and ", int4 0.0" in line for line in lines)


def test_the_tasks_of_an_encoder_decoder_are_shown(tmp_path, capsys):
    folder = hf_folder(tmp_path, "t5")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tasks = {"summarization": {"prefix": "summarize: "}, "summarization_cnn": {"max_length": 9}}
    (folder / "config.json").write_text(json.dumps(config | {"task_specific_params": tasks}), encoding="utf-8")
    assert describe(folder)["model_tasks"] == {"summarization": "summarize: ", "summarization_cnn": ""}
    assert "  tasks          summarization ('summarize: '), summarization_cnn\n" in told(capsys, folder)


def test_the_number_of_classes_is_shown(tmp_path):
    hf_models.small_bert("Bert", "ForSequenceClassification", num_labels=3).save_pretrained(tmp_path)
    assert describe(tmp_path)["head"] == "sequence_class, 3 classes, with a dense layer"


def test_a_model_of_the_download_cache_is_described_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    put_in_cache(hf_folder(tmp_path / "files"), tmp_path / "hub", "org/name")
    assert describe("org/name")["family"] == "llama"
