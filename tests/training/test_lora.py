"""LoRA: adapters learn, all other parameters stay, and the merged model computes the same."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from glassformer.checkpoint.model_folder import load_parameters, own_parameters
from glassformer.data.batching.pair_batches import PairBatch
from glassformer.models import EncoderDecoderModel, EncoderModel, ModelConfig, build_model, preset
from glassformer.training.estimate import estimate_run
from glassformer.training.lora import (
    LowRank,
    adapted_layers,
    add_adapters,
    fold_adapters,
    is_narrowed,
    merge_adapters,
    n_trained,
    narrowed,
    use_adapters,
)
from glassformer.training.precision import autocast
from glassformer.training.state import OPTIMIZER, checkpoint_path
from glassformer.training.train_config import TrainConfig
from glassformer.training.trainer import Trainer

SIZES = {"vocab_size": 20, "d_model": 16, "d_ff": 24, "n_heads": 2, "max_len": 12, "dropout": 0.1}
RECIPE = TrainConfig(
    updates=6, eval_every=3, save_every=3, warmup=1, lr=0.05, lora_rank=2, lora_alpha=4, device="cpu", precision="fp32"
)
HEAD = ("head.out_proj.weight", "head.out_proj.bias")


class Copies:
    """Random rows to copy. The number of the batch is the seed."""

    def __getitem__(self, step):
        rows = torch.randint(4, 20, (4, 6), generator=torch.Generator().manual_seed(step))
        return PairBatch(rows, rows, rows)


def copier(**changes):
    torch.manual_seed(0)
    layers = {"n_encoder_layers": 1, "n_decoder_layers": 1}
    return EncoderDecoderModel(ModelConfig(**SIZES, **layers, head="language_model", **{"tie": "all", **changes}))


def tagger(**changes):
    torch.manual_seed(0)
    return EncoderModel(ModelConfig(**SIZES, n_encoder_layers=2, head="token_class", n_labels=20, **changes))


def copy_loss(model, batch):
    logits = model(batch.source, batch.target_in) if model.kind == "encoder_decoder" else model(batch.source)
    return F.cross_entropy(logits.flatten(0, 1).float(), batch.target_out.flatten(), reduction="sum")


def trainer_of(model, folder, config=RECIPE):
    return Trainer(
        model=model,
        config=config,
        batches=Copies(),
        loss=partial(copy_loss, model),
        evaluate=lambda: {"loss": copy_loss(model, Copies()[999]).item()},
        folder=folder,
        warn=lambda text: None,
    )


def answers(model, precision="fp32"):
    model.eval()
    batch = Copies()[7]
    with torch.no_grad(), autocast(precision, torch.device("cpu")):
        return model(batch.source, batch.target_in) if model.kind == "encoder_decoder" else model(batch.source)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # the warning of CPUs without bf16 instructions
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_adapted_and_merged_give_the_same_answers(precision, checkpointing, tmp_path):
    model = copier()
    before, own = answers(model), {name: p.detach().clone() for name, p in model.named_parameters()}
    chosen = add_adapters(model, RECIPE)
    assert torch.equal(answers(model), before)  # a new adapter changes nothing
    model.set_gradient_checkpointing(checkpointing)
    trainer_of(model, tmp_path, replace(RECIPE, precision=precision)).run()
    adapted = {name: answers(model, name) for name in ("fp32", "bf16")}
    merge_adapters(model)
    assert not torch.equal(adapted["fp32"], before)
    for name, expected in adapted.items():
        tolerance = {"fp32": 1e-5, "bf16": 0.1}[name]
        torch.testing.assert_close(answers(model, name), expected, atol=tolerance, rtol=tolerance)
    after = dict(model.named_parameters())
    assert after.keys() == own.keys()
    assert all(parameter.requires_grad for parameter in after.values())
    for name, parameter in after.items():
        is_adapted = name.removesuffix(".weight") in chosen
        assert torch.equal(parameter, own[name]) != is_adapted, name
    assert model.head.out_proj.weight is model.source_embeddings.tokens.weight  # still tied


def test_attention_and_feed_forward_are_adapted_and_a_fresh_head_is_trained_fully(tmp_path):
    model = tagger()
    own = {name: p.detach().clone() for name, p in model.named_parameters()}
    chosen = add_adapters(model, RECIPE, fresh=HEAD)
    assert len(chosen) == 2 * (4 + 2)
    trainer = trainer_of(model, tmp_path)
    learned = {name for name, p in model.named_parameters() if p.requires_grad}
    assert learned == {*HEAD, *(f"{c}.adapters.default.{part}" for c in chosen for part in ("up", "down"))}
    assert sum(p.numel() for group in trainer.optimizer.param_groups for p in group["params"]) == n_trained(model)
    trainer.run()
    merge_adapters(model)
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, own[name])}
    assert moved == {*HEAD, *(f"{c}.weight" for c in chosen)}


def test_layers_are_chosen_by_name():
    model = tagger()
    chosen = add_adapters(model, replace(RECIPE, lora_layers=("q_proj", "v_proj")))
    assert chosen == [f"encoder.layers.{i}.self_attn.{part}_proj" for i in (0, 1) for part in "qv"]
    with pytest.raises(ValueError, match=r"lora_layers=\['query'\]: expected some of down_proj, k_proj"):
        add_adapters(tagger(), replace(RECIPE, lora_layers=("query",)))
    with pytest.raises(ValueError, match="lora_rank=-1: expected a whole number, 0 or more"):
        TrainConfig(lora_rank=-1)


def test_a_shared_layer_is_adapted_once(tmp_path):
    model = tagger(share_layers=True)
    assert len(add_adapters(model, RECIPE)) == 6
    trainer_of(model, tmp_path).run()
    expected = answers(model)
    merge_adapters(model)
    torch.testing.assert_close(answers(model), expected)


def test_a_resumed_lora_run_is_bit_identical_and_stores_moments_of_trained_parameters(tmp_path):
    from safetensors.torch import load_file

    def run(folder, stop=None):
        model = tagger()
        add_adapters(model, RECIPE, fresh=HEAD)
        trainer = trainer_of(model, folder)
        if stop:
            for _ in range(stop):
                trainer._update()
            trainer.save()
        else:
            trainer.run()
        return model

    whole = run(tmp_path / "whole")
    run(tmp_path / "parts", stop=2)
    for a, b in zip(whole.parameters(), run(tmp_path / "parts").parameters(), strict=True):
        assert torch.equal(a, b)
    names = load_file(checkpoint_path(tmp_path / "whole", 6) / OPTIMIZER)
    learned = [name for name, p in whole.named_parameters() if p.requires_grad]
    assert {name.rpartition(".")[0] for name in names} == set(learned)


def test_estimated_memory_excludes_moments_of_frozen_parameters(tmp_path, monkeypatch):
    monkeypatch.setattr("glassformer.training.estimate._measure_memory", lambda trainer, step: 1 << 20)
    model = tagger()
    full = estimate_run(trainer_of(model, tmp_path), lambda batch: 1000)
    add_adapters(model, RECIPE)
    adapted = estimate_run(trainer_of(model, tmp_path), lambda batch: 1000)
    assert adapted.parameters == full.parameters + n_trained(model)
    # A parameter takes four bytes. A trained one also has two moments of four bytes each.
    assert full.memory_bytes - adapted.memory_bytes == 4 * (2 * full.parameters - 3 * n_trained(model))


def test_averaging_adapted_models_averages_their_merged_matrices():
    model = build_model(preset("tiny-gpt2"))
    adapted = add_adapters(model, RECIPE)
    states = []
    for seed in range(2):
        torch.manual_seed(seed)
        states.append({name: torch.randn_like(value) for name, value in own_parameters(model).items()})
    merged = []
    for tensors in states:
        load_parameters(model, tensors, "a state")
        merged.append([model.get_submodule(name).merged().weight.detach() for name in adapted])
    folded = [fold_adapters(model, tensors) for tensors in states]
    load_parameters(model, {name: (folded[0][name] + folded[1][name]) / 2 for name in folded[0]}, "the mean")
    for name, *both in zip(adapted, *merged, strict=True):
        torch.testing.assert_close(model.get_submodule(name).merged().weight.detach(), sum(both) / 2)


def test_several_adapters_are_weighted_by_name():
    model = tagger()
    add_adapters(model, RECIPE)
    layers = adapted_layers(model)
    for number, layer in enumerate(layers.values()):
        second = LowRank(layer.in_features, layer.out_features, 3, 0.5, like=torch.empty(0))
        layer.adapters["second"] = second
        for adapter in layer.adapters.values():
            torch.nn.init.normal_(adapter.up, std=0.1 + 0.01 * number)
    plain = {name: layer.base.weight.clone() for name, layer in layers.items()}
    use_adapters(model, {"default": 2.0, "second": 0.5})
    expected = answers(model)
    name, layer = next(iter(layers.items()))
    delta = 2.0 * 2 * layer.adapters["default"].up @ layer.adapters["default"].down
    delta = delta + 0.5 * 0.5 * layer.adapters["second"].up @ layer.adapters["second"].down
    torch.testing.assert_close(layer.merged().weight, plain[name] + delta)
    use_adapters(model, {"second": 1.0})
    assert not torch.allclose(answers(model), expected)
    with pytest.raises(ValueError, match="no adapter 'third': expected some of default, second"):
        use_adapters(model, {"third": 1.0})


@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_adapters_learn_over_quantized_weights(bits, tmp_path):
    model = tagger()
    config = replace(RECIPE, lora_quantize=bits, lr=0.02)
    add_adapters(model, config, fresh=HEAD)
    layers = adapted_layers(model)
    packed = {name: layer.base.packed.clone() for name, layer in layers.items()}
    before = copy_loss(model.eval(), Copies()[999]).item()
    trainer_of(model, tmp_path, config).run()
    assert copy_loss(model.eval(), Copies()[999]).item() < before
    assert all(torch.equal(layer.base.packed, packed[name]) for name, layer in layers.items())
    expected = answers(model)
    merge_adapters(model)
    torch.testing.assert_close(answers(model), expected)
    with pytest.raises(ValueError, match="lora_quantize='int8': expected --lora-rank"):
        TrainConfig(lora_quantize="int8")
    with pytest.raises(ValueError, match="expected --average-last 0"):
        TrainConfig(lora_quantize="int4", lora_rank=2, average_last=2)


def test_frozen_parameters_are_narrow_for_a_while_only():
    model = tagger()
    own = {name: p.detach().clone() for name, p in model.named_parameters()}
    add_adapters(model, RECIPE)
    with narrowed(model, torch.bfloat16):
        assert is_narrowed(model)
        assert {p.dtype for p in model.parameters() if not p.requires_grad} == {torch.bfloat16}
        assert answers(model).dtype == torch.bfloat16
    merge_adapters(model)
    assert all(torch.equal(p, own[name]) for name, p in model.named_parameters())
