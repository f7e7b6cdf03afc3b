"""`glassformer plan`."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import transformers

from glassformer.cli.flag_parser import UsageError
from glassformer.cli.plan import MachineOptions, plan, read_config
from glassformer.models import preset
from glassformer.models.costs import count_parameters

MEASURED = Path(__file__).parents[2] / "benchmarks" / "measured_runs.json"


def test_a_plan_recommends_a_layout_and_lists_assumptions(capsys):
    plan("gpt2", tokens=300e9, machine=MachineOptions(devices=64))
    text = capsys.readouterr().out
    assert "recommended: --parallel" in text
    assert "64 x H200 in 8 machines" in text
    assert "tokens/s" in text
    layouts = [line.split()[0] for line in text.splitlines() if line.startswith(("data=", "shard="))]
    assert len(layouts) == len(set(layouts)) == 5, "each layout once"
    assert "--max-tokens 1048576" in text
    assert "cannot validate" not in text
    assert "Assumptions:\n- bf16" in text


def test_the_example_of_the_documentation_is_what_the_command_prints(capsys):
    plan("gpt-j", tokens=1e12, batch_tokens=4194304, machine=MachineOptions(devices=1024))
    printed = capsys.readouterr().out.splitlines()
    text = (Path(__file__).parents[2] / "docs" / "data-at-scale.md").read_text(encoding="utf-8")
    shown = text.partition("$ glassformer plan gpt-j --devices 1024 --batch-tokens 4194304 --tokens 1e12\n")[2]
    lines = shown.partition("```")[0].splitlines()
    assert len(lines) == 5
    assert [line for line in printed if line in lines] == lines


def test_the_table_of_predictions_is_what_the_command_prints(capsys):
    plan(check=MEASURED)
    printed = [line for line in capsys.readouterr().out.splitlines() if " on H200: " in line]
    text = (Path(__file__).parents[2] / "docs" / "data-at-scale.md").read_text(encoding="utf-8")
    rows = re.search(r"^\| run on one H200.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.M).group(1).splitlines()
    shown = [re.findall(r"\d+\.\d+(?= GiB \|| ms \|)", row) for row in rows]
    assert shown == [re.findall(r"\d+\.\d+(?= GiB predicted| measured| ms predicted)", line) for line in printed]


def test_a_plan_is_json(capsys):
    plan("gpt2", json=True, batch_tokens=8192)
    found = json.loads(capsys.readouterr().out)
    assert found["plans"][0]["tokens_per_second"] > 0
    assert found["assumptions"]


def test_predictions_are_compared_with_measured_runs(capsys):
    plan(check=MEASURED)
    text = capsys.readouterr().out
    assert text.count("measured (") == 9
    assert "predicted, not measured" in text
    assert "GPT-2 124M" in text


@pytest.mark.parametrize("text", ["{}", '{"runs": [{"name": "x"}]}', '{"runs": 3}'])
def test_a_file_of_other_values_is_refused(tmp_path, text):
    (tmp_path / "runs.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"runs.json holds a value that cannot be used"):
        plan(check=tmp_path / "runs.json")


def test_a_model_that_no_gpu_can_hold_whole_is_named(tmp_path, capsys):
    large = preset("llama", n_decoder_layers=80, d_model=8192, n_heads=64, n_kv_heads=8, d_ff=28672)
    (tmp_path / "config.json").write_text(json.dumps({"model": asdict(large)}), encoding="utf-8")
    plan(str(tmp_path), batch_tokens=1 << 22, machine=MachineOptions(devices=1024))
    text = capsys.readouterr().out
    assert re.search(r"cannot validate this model: .* in \d{3} GB of 141\n", text)
    plan(str(tmp_path), batch_tokens=1 << 22, machine=MachineOptions(devices=1024), json=True)
    assert "cannot validate" in json.loads(capsys.readouterr().out)["notes"][0]


def test_a_config_of_hugging_face_is_read(tmp_path):
    sizes = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 128}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
    values = {"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5, **sizes, **layers}
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    found = read_config(str(tmp_path))
    assert (found.kind, found.d_model, found.kv_heads, found.n_decoder_layers) == ("decoder", 64, 2, 2)
    assert count_parameters(found) == transformers.LlamaForCausalLM(transformers.LlamaConfig(**values)).num_parameters()


def test_a_config_is_a_preset_a_file_or_a_folder(tmp_path):
    config = preset("tiny-llama")
    (tmp_path / "config.json").write_text(json.dumps({"model": asdict(config)}), encoding="utf-8")
    assert (
        read_config(str(tmp_path)) == read_config(str(tmp_path / "config.json")) == read_config("tiny-llama") == config
    )
    with pytest.raises(ValueError, match=r"lama is no preset, model folder or config.json: did you mean"):
        read_config("lama")
    (tmp_path / "config.json").write_text('{"width": 3}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"config.json is not a config of Glassformer or Hugging Face: ModelConfig"):
        read_config(str(tmp_path))


def test_numbers_of_the_machine_can_be_given():
    machine = MachineOptions(gpu="a100", memory=40, network=12.5, per_node=4).machine()
    assert (machine.memory, machine.network, machine.per_node) == (40e9, 12.5e9, 4)
    for options, problem in (({"devices": 2000}, "--devices 2000: expected 1 to 1,024"), ({"memory": 0}, "--memory 0")):
        with pytest.raises(UsageError, match=problem):
            MachineOptions(**options).machine()


def test_wrong_commands_are_refused():
    with pytest.raises(UsageError, match="MODEL is missing"):
        plan()
    with pytest.raises(UsageError, match="--tokens -1: expected 0 or more"):
        plan("gpt2", tokens=-1)
    with pytest.raises(UsageError, match="expected at least one sequence per update"):
        plan("gpt2", batch_tokens=10)
