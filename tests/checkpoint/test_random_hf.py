"""Random HF models from their own saved folders: each gives HF's numbers or is refused by name, and none differs."""

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from checkpoint import random_hf
from glassformer.checkpoint import load_model
from glassformer.checkpoint.hf import FAMILIES
from glassformer.models import EncoderDecoderModel, EncoderModel
from glassformer.pipelines.conversion import convert

TOLERANCE = 1e-5
"""Relative to the largest number, or to 1 if all are smaller."""


def save(drawn, folder, seed):
    model = random_hf.build(drawn, seed)
    model.save_pretrained(folder)
    return model


def open_theirs(folder, class_name):
    """HF's own reading of a folder, and the names of tensors that it did not find, or did not expect."""
    model, report = getattr(transformers, class_name).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    return model.eval(), {key: report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")}


def states_after_layers(model, call):
    """The answer of our model, and the state after each layer, by stack."""
    found = {"encoder": [], "decoder": []}
    stacks = {name: getattr(model, name) for name in found if hasattr(model, name)}
    hooks = [
        layer.register_forward_hook(lambda module, inputs, output, name=name: found[name].append(output))
        for name, stack in stacks.items()
        for layer in stack.layers
    ]
    answer = call()
    for hook in hooks:
        hook.remove()
    for name, stack in stacks.items():
        if stack.norm is not None and found[name]:  # HF's last state is the one behind the final norm
            found[name][-1] = stack.norm(found[name][-1])
    return answer, found


def near(ours, theirs, mask=None):
    if mask is not None and theirs.dim() == 3:
        ours, theirs = ours[mask], theirs[mask]
    return ours.shape == theirs.shape and (ours - theirs).abs().max() <= TOLERANCE * max(1.0, theirs.abs().max())


@torch.no_grad()
def same_numbers(ours, theirs, seed):
    """Whether the answers, and the states after all layers, agree on padded random texts."""
    config = ours.config
    torch.manual_seed(seed)
    pad = theirs.config.pad_token_id
    tokens = torch.randint(4, config.source_vocab, (3, 8))
    mask = torch.arange(8) < torch.tensor([[8], [5], [1]])
    tokens[~mask] = pad
    given = {"input_ids": tokens, "attention_mask": mask.long(), "output_hidden_states": True}
    if isinstance(ours, EncoderDecoderModel):
        target = torch.randint(4, config.vocab_size, (3, 6))
        answer = theirs(**given, decoder_input_ids=target)
        found, states = states_after_layers(ours, lambda: ours(tokens, target, mask))
        expected = {"encoder": answer.encoder_hidden_states, "decoder": answer.decoder_hidden_states}
        if not near(found, answer[0]):
            return False
    else:
        types = {}
        if config.token_types:
            types = {"token_types": torch.randint(config.token_types, tokens.shape)}
            given["token_type_ids"] = types["token_types"]
        answer = theirs(**given)
        found, states = states_after_layers(ours, lambda: ours(tokens, mask, **types))
        wanted = torch.stack((answer.start_logits, answer.end_logits), -1) if "start_logits" in answer else answer[0]
        wanted = answer.hidden_states[-1] if config.head == "none" else wanted  # ELECTRA's and BERT's other heads
        name = "encoder" if isinstance(ours, EncoderModel) else "decoder"
        expected = {name: answer.hidden_states}
        if not near(found, wanted, mask):
            return False
    for name, theirs_there in expected.items():
        one = states[name]
        if len(one) != len(theirs_there) - 1:
            return False
        reads = mask if one[0].shape[:2] == mask.shape else None
        if not all(near(x, y, reads) for x, y in zip(one, theirs_there[1:], strict=True)):
            return False
    return True


@pytest.mark.parametrize("family", FAMILIES)
def test_a_random_hf_model_gives_the_same_outputs_or_is_refused_by_name(family, tmp_path, count):
    tally = {"loaded": 0, "refused": 0}
    for seed in range(count(3, 100)):
        drawn, folder = random_hf.draw(family, seed), tmp_path / str(seed)
        save(drawn, folder, seed)
        theirs, problems = open_theirs(folder, drawn.class_name)
        assert not any(problems.values()), (seed, problems)
        if drawn.refusal is not None:
            with pytest.raises(ValueError, match=drawn.refusal):
                load_model(folder)
            tally["refused"] += 1
        else:
            assert same_numbers(load_model(folder), theirs, seed), (seed, drawn)
            tally["loaded"] += 1
        shutil.rmtree(folder)
    print(family, tally)
    assert tally["loaded"] > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_random_model_exported_to_hf_gives_the_same_outputs(family, tmp_path, count):
    seeds = (seed for seed in range(10_000) if random_hf.draw(family, seed).refusal is None)
    for seed, _ in zip(seeds, range(count(3, 100)), strict=False):
        drawn = random_hf.draw(family, seed)
        save(drawn, tmp_path / f"{seed}", seed)
        ours = convert(tmp_path / f"{seed}", tmp_path / f"{seed}-out", "hf")
        written = json.loads((tmp_path / f"{seed}-out" / "config.json").read_text(encoding="utf-8"))["architectures"][0]
        theirs, problems = open_theirs(tmp_path / f"{seed}-out", written)
        poolers = [name for name in problems["missing_keys"] if "pooler" in name]  # no part of the state of a body
        assert sorted(problems["missing_keys"]) == sorted(poolers), seed
        assert not problems["unexpected_keys"], seed
        assert not problems["mismatched_keys"], seed
        assert same_numbers(ours, theirs, seed), (seed, drawn)


def load_or_reason(folder: Path):
    """The model, or why it was refused."""
    try:
        return load_model(folder), ""
    except ValueError as error:
        return None, str(error)


def change_tensors(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tensor_too_few_or_too_many_is_an_error_by_name(family, tmp_path, count):
    seeds = (seed for seed in range(10_000) if random_hf.draw(family, seed).refusal is None)
    for seed, _ in zip(seeds, range(count(3, 100)), strict=False):
        choose = random.Random(seed)
        drawn = random_hf.draw(family, seed)
        save(drawn, tmp_path / "whole", seed)
        name = choose.choice(sorted(load_file(tmp_path / "whole" / "model.safetensors")))
        shutil.copytree(tmp_path / "whole", tmp_path / "few")
        change_tensors(tmp_path / "few", lambda tensors, name=name: tensors.pop(name))
        ours, reason = load_or_reason(tmp_path / "few")
        if ours is None:
            assert name in reason, (seed, reason)
        else:  # HF does not need it either
            theirs, problems = open_theirs(tmp_path / "few", drawn.class_name)
            assert set(problems["missing_keys"]) <= {name}, seed
            assert same_numbers(ours, theirs, seed), (seed, name)
        shutil.copytree(tmp_path / "whole", tmp_path / "many")
        extra = name.rsplit(".", 1)[0] + ".another"
        change_tensors(tmp_path / "many", lambda tensors, extra=extra: tensors.update({extra: torch.ones(3)}))
        with pytest.raises(ValueError, match=rf"unexpected: .*{extra}"):
            load_model(tmp_path / "many")
        for folder in ("whole", "few", "many"):
            shutil.rmtree(tmp_path / folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_tensor_larger_than_all_others_is_named(family, tmp_path):
    drawn = random_hf.draw(family, first_seed(family))
    for size in {"vocab_size", "decoder_vocab_size"} & vars(drawn.config).keys():
        setattr(drawn.config, size, 20_000)  # more than any other tensor has numbers
    save(drawn, tmp_path, 0)
    tensors = load_file(tmp_path / "model.safetensors")
    largest = [name for name, tensor in tensors.items() if 20_000 in tensor.shape]
    change_tensors(tmp_path, lambda tensors: [tensors.pop(name) for name in largest])
    with pytest.raises(ValueError, match=r"vocab_size=20000: expected at most .* Missing tensors: ") as refused:
        load_model(tmp_path)
    assert any(name in str(refused.value) for name in largest)


def first_seed(family):
    """The first number whose draw is a model that must load."""
    return next(seed for seed in range(100) if random_hf.draw(family, seed).refusal is None)


def tied(family):
    """A model of this family in which something is tied."""
    drawn = random_hf.draw(family, first_seed(family))
    heads = {"gpt2": "LMHeadModel", "t5": "ForConditionalGeneration", "bart": "ForConditionalGeneration"}
    heads |= {
        "pegasus": "ForConditionalGeneration",
        "marian": "MTModel",
        **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), "ForCausalLM"),
    }
    prefix = type(drawn.config).__name__.removesuffix("Config")
    drawn.class_name = prefix + heads.get(family, "ForMaskedLM")
    drawn.config.tie_word_embeddings = True
    if family in ("roberta", "electra"):
        drawn.config.hidden_act = "gelu"
    return drawn


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tied_copy_is_the_same_or_an_error_by_name(family, tmp_path):
    seed = first_seed(family)
    drawn = tied(family)
    model = save(drawn, tmp_path / "stored", seed)
    stored = load_file(tmp_path / "stored" / "model.safetensors")
    copies = sorted(
        name for name, value in model.state_dict().items() if name not in stored and "embed_positions" not in name
    )
    assert copies
    shutil.copytree(tmp_path / "stored", tmp_path / "equal")
    every = {name: value.clone() for name, value in model.state_dict().items()}
    change_tensors(tmp_path / "equal", lambda tensors: tensors.update(every))
    assert same_numbers(load_model(tmp_path / "equal"), model, seed)
    for number, name in enumerate(copies):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "stored", folder)
        change_tensors(folder, lambda tensors, name=name: tensors.update({name: every[name] + 0.5}))
        if family == "t5" and name == "lm_head.weight":  # HF's T5 unties what differs
            theirs, _ = open_theirs(folder, drawn.class_name)
            assert same_numbers(load_model(folder), theirs, seed)
            continue
        with pytest.raises(ValueError, match=rf"{name} differs from .*config.json ties them"):
            load_model(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_absent_config_key_has_hfs_default(family, tmp_path, count):
    seed = first_seed(family)
    drawn = random_hf.draw(family, seed)
    save(drawn, tmp_path / "model", seed)
    path = tmp_path / "model" / "config.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    keys = sorted(key for key in whole if key not in ("model_type", "architectures") and not key.endswith("token_id"))
    random.Random(family).shuffle(keys)
    for key in keys[: count(3, 100)]:
        path.write_text(json.dumps({name: value for name, value in whole.items() if name != key}), encoding="utf-8")
        ours, reason = load_or_reason(tmp_path / "model")
        if ours is None:
            assert reason, key
            continue
        theirs, problems = open_theirs(tmp_path / "model", drawn.class_name)
        assert not any(problems.values()), (key, problems)
        assert same_numbers(ours, theirs, seed), (key, drawn)


def test_mistral_has_a_window_unless_it_says_that_it_has_none(tmp_path):
    drawn = random_hf.draw("mistral", first_seed("mistral"))
    save(drawn, tmp_path, 0)
    path = tmp_path / "config.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    for change, window in (({"sliding_window": 7}, 7), ({"sliding_window": None}, None), ({}, 4096)):
        values = {name: value for name, value in whole.items() if name != "sliding_window"}
        path.write_text(json.dumps({**values, **change}), encoding="utf-8")
        assert load_model(tmp_path).config.sliding_window == window


@pytest.mark.parametrize("family", ["marian", "pegasus"])
def test_stored_sinusoids_are_accepted_and_other_tables_refused(family, tmp_path):
    drawn = tied(family)
    model = save(drawn, tmp_path, 0)
    waves = model.model.encoder.embed_positions.weight.detach().clone()
    name = "model.encoder.embed_positions.weight"
    change_tensors(tmp_path, lambda tensors: tensors.update({name: waves}))
    assert same_numbers(load_model(tmp_path), model, 0)
    for other in (waves + 0.1, waves[:-1]):
        change_tensors(tmp_path, lambda tensors, other=other: tensors.update({name: other.contiguous()}))
        with pytest.raises(ValueError, match=f"{name} differs from what {family} computes"):
            load_model(tmp_path)


@pytest.mark.parametrize("family", ["bart", "marian", "pegasus"])
def test_one_table_for_both_sides_and_another_for_the_output(family, tmp_path):
    drawn = tied(family)
    drawn.config.tie_word_embeddings = False
    if family == "marian":
        drawn.config.share_encoder_decoder_embeddings = True
        drawn.config.decoder_vocab_size = drawn.config.vocab_size
    model = random_hf.build(drawn, 0)
    sides = [model.model.encoder.embed_tokens, model.model.decoder.embed_tokens]
    with torch.no_grad():
        for side in sides:
            side.weight.copy_(model.model.shared.weight)
    model.save_pretrained(tmp_path / "new")
    assert same_numbers(load_model(tmp_path / "new"), model, 0)
    # HF before version 5 stored the shared table alone.
    shutil.copytree(tmp_path / "new", tmp_path / "old")
    names = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    change_tensors(tmp_path / "old", lambda tensors: [tensors.pop(name) for name in names])
    ours = load_model(tmp_path / "old")
    assert ours.config.tie == "embeddings"
    assert same_numbers(ours, model, 0)
    convert(tmp_path / "old", tmp_path / "out", "hf")
    theirs, problems = open_theirs(tmp_path / "out", drawn.class_name)
    assert not any(problems.values())
    assert same_numbers(ours, theirs, 0)
