"""Random HF models, saved by HF, give HF's outputs or are refused by name."""

import json
import random
import shutil
from collections import Counter
from itertools import islice

import pytest
import torch
from safetensors.torch import load_file

from checkpoint import random_hf
from checkpoint.hf_comparison import (
    change_tensors,
    compared_outputs,
    few,
    first_seed,
    load_or_reason,
    near,
    open_theirs,
    same_gradients,
    same_numbers,
    save,
    stored_tensors,
    tied,
)
from glassformer.checkpoint import load_model
from glassformer.checkpoint.hf import FAMILIES
from glassformer.decoding import GenerationConfig, generate
from glassformer.pipelines.conversion import convert
from recording import assert_same, written_by_hf


@pytest.mark.parametrize("family", FAMILIES)
def test_a_random_hf_model_gives_the_same_outputs_or_is_refused_by_name(family, tmp_path, count):
    tally = {"loaded": 0, "refused": 0}
    for seed in range(count(few(family), 100)):
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


COUNTS_PADDING = ("bart", "mbart", "marian", "pegasus")
"""Families in which HF counts padding on the left as positions, and takes no positions; ours do not count it."""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_random_hf_model_gives_the_same_gradients_and_ignores_padding(family, tmp_path, count):
    seeds = (seed for seed in range(10_000) if random_hf.draw(family, seed).refusal is None)
    n_models = 0
    for seed in islice(seeds, count(1, 100)):
        drawn = random_hf.draw(family, seed)
        theirs = save(drawn, tmp_path / f"{seed}", seed)
        ours = load_model(tmp_path / f"{seed}")
        assert same_gradients(ours, theirs, seed), (seed, drawn)
        n_models += 1
        if family not in COUNTS_PADDING:
            with torch.no_grad():
                found, wanted = compared_outputs(ours, theirs, seed, "left")
            if ours.config.head != "sequence_class":  # HF pools the first token, padding or not
                assert near(found, wanted), (seed, drawn)
        shutil.rmtree(tmp_path / f"{seed}")
    print(family, n_models, "gradients")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_random_model_exported_to_hf_gives_the_same_outputs(family, tmp_path, count):
    seeds = (seed for seed in range(10_000) if random_hf.draw(family, seed).refusal is None)
    for seed in islice(seeds, count(1, 100)):
        drawn = random_hf.draw(family, seed)
        save(drawn, tmp_path / f"{seed}", seed)
        ours = convert(tmp_path / f"{seed}", tmp_path / f"{seed}-out", "hf")
        written = json.loads((tmp_path / f"{seed}-out" / "config.json").read_text(encoding="utf-8"))["architectures"][0]
        theirs, problems = open_theirs(tmp_path / f"{seed}-out", written)
        poolers = [name for name in problems["missing_keys"] if "pooler" in name]  # a body without a head has no pooler
        assert sorted(problems["missing_keys"]) == sorted(poolers), seed
        assert not problems["unexpected_keys"], seed
        assert not problems["mismatched_keys"], seed
        assert same_numbers(ours, theirs, seed), (seed, drawn)


@pytest.mark.parametrize("family", FAMILIES)
def test_missing_and_extra_tensors_are_refused_by_name(family, tmp_path, count):
    seeds = (seed for seed in range(10_000) if random_hf.draw(family, seed).refusal is None)
    for seed in islice(seeds, count(1, 100)):
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
        setattr(drawn.config, size, 20_000)  # larger than every other tensor
    save(drawn, tmp_path, 0)
    tensors = load_file(tmp_path / "model.safetensors")
    largest = [name for name, tensor in tensors.items() if 20_000 in tensor.shape]
    change_tensors(tmp_path, lambda tensors: [tensors.pop(name) for name in largest])
    with pytest.raises(ValueError, match=r"vocab_size=20000: expected at most .* Missing tensors: ") as refused:
        load_model(tmp_path)
    assert any(name in str(refused.value) for name in largest)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stored_copy_of_a_tied_tensor_must_be_equal(family, tmp_path):
    seed = first_seed(family)
    drawn = tied(family)
    model = save(drawn, tmp_path / "stored", seed)
    stored = load_file(tmp_path / "stored" / "model.safetensors")
    state = stored_tensors(model)
    places = Counter(value.data_ptr() for value in state.values())
    copies = sorted(name for name, value in state.items() if name not in stored and places[value.data_ptr()] > 1)
    assert copies
    shutil.copytree(tmp_path / "stored", tmp_path / "equal")
    every = stored | {name: state[name].clone() for name in copies}
    change_tensors(tmp_path / "equal", lambda tensors: tensors.update(every))
    assert same_numbers(load_model(tmp_path / "equal"), model, seed)
    for number, name in enumerate(copies):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "stored", folder)
        change_tensors(folder, lambda tensors, name=name: tensors.update({name: every[name] + 0.5}))
        if family in ("t5", "mt5", "umt5") and name == "lm_head.weight":  # HF's T5 unties what differs
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
    for key in keys[: count(1, 100)]:
        path.write_text(json.dumps({name: value for name, value in whole.items() if name != key}), encoding="utf-8")
        ours, reason = load_or_reason(tmp_path / "model")
        if ours is None:
            assert reason, key
            continue
        theirs, problems = open_theirs(tmp_path / "model", drawn.class_name)
        assert not any(problems.values()), (key, problems)
        assert same_numbers(ours, theirs, seed), (key, drawn)


EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")
WRITERS = [
    pytest.param(name, marks=[] if name in EXPERTS else [pytest.mark.full])  # test_hf.py has texts of other families
    for name, family in FAMILIES.items()
    if family.kind != "encoder"
]
WRITING_HEADS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "MTModel")


@pytest.mark.parametrize("family", WRITERS)
def test_a_random_hf_model_writes_the_same_greedy_text(family, tmp_path, count):
    seeds = (seed for seed in range(10_000) if random_hf.draw(family, seed).refusal is None)
    drawn_by_seed = ((seed, random_hf.draw(family, seed)) for seed in seeds)
    with_head = ((seed, drawn) for seed, drawn in drawn_by_seed if drawn.class_name.endswith(WRITING_HEADS))
    # HF cannot compute scores of texts whose vocabulary is not that of the sources, as Marian's may be.
    with_head = ((seed, drawn) for seed, drawn in with_head if getattr(drawn.config, "decoder_vocab_size", 0) != 47)
    n_texts = 0
    for seed, drawn in islice(with_head, count(3, 100)):
        if family == "m2m_100":
            drawn.config.decoder_start_token_id = 2  # HF's M2M100 gives padding no position, wherever it is
        theirs = save(drawn, tmp_path / f"{seed}", seed)
        ours = load_model(tmp_path / f"{seed}")
        begin = None if FAMILIES[family].kind == "decoder" else theirs.config.decoder_start_token_id
        pad = theirs.config.pad_token_id
        never = () if pad == 0 else (pad,)
        torch.manual_seed(seed)
        tokens = torch.randint(4, min(ours.config.source_vocab, ours.config.vocab_size), (2, 3))
        with torch.no_grad():
            found = theirs.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=5,
                do_sample=False,
                num_beams=1,
                eos_token_id=0,
                pad_token_id=pad,
                suppress_tokens=[*never] or None,
                return_dict_in_generate=True,
                output_scores=True,
                output_logits=True,
                use_cache=family not in ("t5", "mt5", "umt5"),  # HF's T5 cache may have too few layers
            )
        expected = written_by_hf(theirs, found, start=3 if begin is None else 1, end=0)
        config = GenerationConfig(max_new_tokens=5, suppress_tokens=never)
        texts = generate(ours, tokens.tolist(), config, begin=begin, end=0, with_log_probs=True)
        assert_same([[text] for text in expected], texts, tolerance=1e-4)
        n_texts += len(texts)
        shutil.rmtree(tmp_path / f"{seed}")
    print(family, n_texts, "texts")
