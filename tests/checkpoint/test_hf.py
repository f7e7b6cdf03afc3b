"""Imported HF models give HF's outputs, gradients and texts, and export returns HF's tensors."""

import random
from dataclasses import replace

import pytest
import torch

from checkpoint import hf_models
from checkpoint.hf_comparison import EVERYTHING, NEWER, InMemory, close, make, stored_tensors, values_of
from glassformer.checkpoint.hf import (
    FAMILIES,
    TensorMismatchError,
    UnsupportedModelError,
    export_model,
    import_model,
    with_model_type,
)
from glassformer.checkpoint.hf.folder import read_hf_folder, save_hf_folder
from glassformer.decoding import GenerationConfig, generate
from glassformer.models import build_model, preset
from recording import assert_same, written_by_hf

SEEDS = range(6)


def with_seeds(families, seeds, few=2):
    """Return all pairs of a family and a seed. Without --full, `few` seeds run, and one of a newer family."""
    return [
        pytest.param(family, seed, marks=[pytest.mark.full] if seed >= (1 if family in NEWER else few) else [])
        for family in families
        for seed in seeds
    ]


some_seeds = pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.full] if seed >= 2 else []) for seed in SEEDS]
)


CLASS = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "albert": "Albert", "electra": "Electra"}
CLASS |= {"xlm-roberta": "XLMRoberta", "camembert": "Camembert", "deberta-v2": "DebertaV2"}
ENCODERS = [(family, head) for family, (_, heads) in hf_models.ENCODERS.items() for head in heads]


def imported(theirs):
    return import_model(values_of(theirs), InMemory(stored_tensors(theirs)))


def make_encoder(family, head, seed):
    draw, _ = hf_models.ENCODERS[family]
    return hf_models.make(draw(random.Random(seed)), CLASS[family] + head, seed)


def padded(side, seed):
    """Return three padded inputs and their mask. Token 1 is the padding token of every family here."""
    torch.manual_seed(seed)
    tokens, mask = torch.randint(3, hf_models.VOCAB, (3, 7)), torch.ones(3, 7, dtype=torch.long)
    for row, length in ((1, 5), (2, 1)):
        mask[row, length:] = 0
    if side == "left":
        mask = mask.flip(1)
    return tokens.masked_fill(mask == 0, 1), mask


@some_seeds
@pytest.mark.parametrize(("family", "head"), ENCODERS)
def test_an_encoder_gives_hfs_outputs(family, head, seed):
    theirs = make_encoder(family, head, seed)
    ours = imported(theirs)
    tokens, mask = padded("right", seed)
    with torch.no_grad():
        answer = theirs(input_ids=tokens, attention_mask=mask)
        found = ours(tokens, mask)
    expected = answer[0]
    if head == "ForQuestionAnswering":
        expected = torch.stack((answer.start_logits, answer.end_logits), -1)
    close(found, expected, mask)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("family", "seed"), with_seeds(hf_models.DECODERS, SEEDS))
def test_a_decoder_gives_hfs_outputs(family, side, seed):
    theirs = make(family, seed)
    ours = imported(theirs)
    tokens, mask = padded(side, seed)
    positions = (mask.cumsum(1) - 1).clamp_min(0)  # as HF's `generate`; HF's forward counts padding
    with torch.no_grad():
        expected = theirs(input_ids=tokens, attention_mask=mask, position_ids=positions).logits
        close(ours(tokens, mask), expected, mask)
        cache = ours.new_cache(3, 7)
        steps = [ours(tokens[:, i : i + 1], mask[:, i : i + 1], cache=cache) for i in range(7)]
        close(torch.cat(steps, 1), expected, mask)


@some_seeds
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", hf_models.PAIRS)
def test_an_encoder_decoder_gives_hfs_outputs(family, side, seed):
    if side == "left" and family not in ("t5", "mt5", "umt5", "m2m_100"):
        pytest.skip("HF's BART, mBART and Marian count padding as positions; ours do not")
    theirs = make(family, seed)
    ours = imported(theirs)
    tokens, mask = padded(side, seed)
    target = torch.randint(3, hf_models.VOCAB, (3, 5))
    with torch.no_grad():
        expected = theirs(input_ids=tokens, attention_mask=mask, decoder_input_ids=target).logits
        close(ours(tokens, target, mask), expected)
        memory = ours.encode(tokens, mask)
        cache = ours.new_cache(3, 5, 7)
        steps = [ours.apply_head(ours.decode(target[:, i : i + 1], memory, mask, cache=cache)) for i in range(5)]
        close(torch.cat(steps, 1), expected)


def states_after_layers(stack, call):
    """Return the output of each layer of a stack during `call`."""
    found = []
    hooks = [
        layer.register_forward_hook(lambda module, inputs, output: found.append(output.detach()))
        for layer in stack.layers
    ]
    with torch.no_grad():
        call()
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("family", hf_models.ENCODERS)
def test_an_encoder_has_hfs_state_after_every_layer(family):
    theirs = make_encoder(family, "ForTokenClassification" if family != "roberta" else "ForMaskedLM", 3)
    ours = imported(theirs)
    tokens, mask = padded("right", 0)
    with torch.no_grad():
        expected = theirs(input_ids=tokens, attention_mask=mask, output_hidden_states=True).hidden_states[1:]
    found = states_after_layers(ours.encoder, lambda: ours(tokens, mask))
    assert len(found) == len(expected)
    for one, two in zip(found, expected, strict=True):
        close(one, two, mask)


@pytest.mark.parametrize("family", EVERYTHING)
def test_a_decoder_has_hfs_state_after_every_layer(family):
    theirs = make(family, 4)
    ours = imported(theirs)
    tokens = torch.randint(3, hf_models.VOCAB, (2, 6))
    pair = {} if family in hf_models.DECODERS else {"decoder_input_ids": tokens[:, :4]}
    with torch.no_grad():
        answer = theirs(input_ids=tokens, output_hidden_states=True, **pair)

    def call():
        return ours(tokens, tokens[:, :4]) if pair else ours(tokens)

    sides = [(ours.decoder, answer.decoder_hidden_states if pair else answer.hidden_states)]
    sides += [(ours.encoder, answer.encoder_hidden_states)] if pair else []
    for stack, expected in sides:
        found = states_after_layers(stack, call)
        if stack.norm is not None:  # HF's last hidden state is after the final norm
            found[-1] = stack.norm(found[-1])
        assert len(found) == len(expected) - 1
        for one, two in zip(found, expected[1:], strict=True):
            close(one, two)


@pytest.mark.parametrize("family", hf_models.ENCODERS)
def test_gradients_of_an_encoder_equal_hfs(family):
    theirs = make_encoder(family, "ForMaskedLM", 1)
    ours = imported(theirs)
    tokens, mask = padded("right", 1)
    weight = mask[:, :, None]
    (theirs(input_ids=tokens, attention_mask=mask).logits.logsumexp(-1, keepdim=True) * weight).sum().backward()
    (ours(tokens, mask).logsumexp(-1, keepdim=True) * weight).sum().backward()
    compare_gradients(family, ours, theirs)


@pytest.mark.parametrize("family", EVERYTHING)
def test_gradients_of_a_decoder_equal_hfs(family):
    theirs = make(family, 1)
    ours = imported(theirs)
    tokens = torch.randint(3, hf_models.VOCAB, (2, 6))
    pair = {} if family in hf_models.DECODERS else {"decoder_input_ids": tokens[:, :4]}
    theirs(input_ids=tokens, **pair).logits.float().logsumexp(-1).sum().backward()
    (ours(tokens, tokens[:, :4]) if pair else ours(tokens)).logsumexp(-1).sum().backward()
    compare_gradients(family, ours, theirs)


def compare_gradients(family, ours, theirs):
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    rows = {rule.hf_name: rule for rule in FAMILIES[family].table(ours.config) if rule.names[0] in gradients}
    n_compared = 0
    expected = {name: one.grad for name, one in theirs.named_parameters() if one.grad is not None}
    for name, gradient in stored_tensors(theirs, expected).items():
        if name in rows:
            close(rows[name].join(gradients), gradient, tolerance=1e-4)
            n_compared += 1
    assert n_compared > len(rows) / 2


SEARCHES = {
    "greedy": {"num_beams": 1},
    "beam": {"num_beams": 3, "early_stopping": "never"},
    "beam, penalties": {"num_beams": 4, "early_stopping": False, "length_penalty": 0.6, "repetition_penalty": 1.3},
}


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(("family", "seed"), with_seeds(EVERYTHING, range(3), few=1))
def test_generate_gives_hfs_texts(family, seed, search):
    theirs = make(family, seed)
    ours = imported(theirs)
    torch.manual_seed(seed)
    tokens = torch.randint(3, hf_models.VOCAB, (2, 5))
    settings = {"max_new_tokens": 8, **SEARCHES[search]}
    if family == "m2m_100":
        settings["suppress_tokens"] = (1,)  # HF's M2M100 gives padding no position, wherever it is
    with torch.no_grad():
        found = theirs.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=False,
            pad_token_id=1,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
            use_cache=family
            not in ("t5", "mt5", "umt5"),  # HF's T5 cache has the encoder's number of layers, which may be too few
            **settings,
        )
    begin = None if family in hf_models.DECODERS else theirs.config.decoder_start_token_id
    config, is_greedy = GenerationConfig(**settings), settings["num_beams"] == 1
    texts = generate(ours, tokens.tolist(), config, begin=begin, end=0, with_log_probs=is_greedy)
    expected = written_by_hf(theirs, found, start=5 if begin is None else 1, end=0)
    assert_same([[text] for text in expected], texts, tolerance=1e-4)


@pytest.mark.parametrize(("family", "seed"), with_seeds([*EVERYTHING, *hf_models.ENCODERS], range(3), few=1))
def test_export_returns_the_imported_tensors(family, seed, tmp_path):
    theirs = make(family, seed) if family in EVERYTHING else make_encoder(family, "ForMaskedLM", seed)
    ours = imported(theirs)
    _, tensors = export_model(ours, FAMILIES[family])
    before = stored_tensors(theirs)
    assert tensors
    for name, tensor in tensors.items():
        assert torch.equal(tensor, before[name]), name
    save_hf_folder(tmp_path / "model", ours, family=FAMILIES[family])
    again, report = type(theirs).from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    for name, value in stored_tensors(again).items():
        assert torch.equal(value, before[name]), name
    stored = read_hf_folder(tmp_path / "model")
    back = import_model(stored.config, stored.tensors)
    for (name, one), two in zip(ours.named_parameters(), back.parameters(), strict=True):
        assert torch.equal(one, two), name


@pytest.mark.parametrize(
    "name",
    [
        *("gpt2", "llama", "t5-small", "t5-v1.1-small", "bart-base", "marian", "bert-base"),
        *("mbart-large", "nllb", "umt5-small", "deberta-v3-base", "mpnet-base", "nomic-bert"),
        "modernbert-base",
        *("deberta-base", "deberta-v2-xlarge"),
        *("pythia", "gpt-j", "phi-2", "falcon-7b", "command-r", "gemma", "gemma-2", "gemma-3", "qwen3"),
        *("olmo", "olmo-2", "smollm3"),
    ],
)
def test_every_preset_finds_its_family(name):
    model = build_model(preset(f"tiny-{name}"))
    values, tensors = export_model(model)
    others = {"nllb": "m2m_100", "deberta-v3-base": "deberta-v2", "pythia": "gpt_neox", "gpt-j": "gptj"}
    others |= {"nomic-bert": "nomic_bert", "deberta-v2-xlarge": "deberta-v2"}
    others |= {"command-r": "cohere", "gemma-2": "gemma2", "gemma-3": "gemma3_text", "olmo-2": "olmo2"}
    assert values["model_type"] == others.get(name, name.split("-")[0])
    again = import_model(values, InMemory(tensors))
    for one, two in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_requested_family_that_cannot_express_the_model_is_refused():
    model = build_model(preset("tiny-llama", sliding_window=3, activation="relu"))
    assert export_model(model, FAMILIES["mistral"])[0]["sliding_window"] == 3
    with pytest.raises(UnsupportedModelError, match="HF's llama cannot express sliding_window=3"):
        export_model(model, FAMILIES["llama"])
    with pytest.raises(UnsupportedModelError, match=r"HF's gpt2 cannot express .*gated=True \(expected False"):
        export_model(model, FAMILIES["gpt2"])


def test_settings_that_no_family_supports_are_named():
    model = build_model(replace(preset("tiny-llama"), positions="alibi"))
    with pytest.raises(UnsupportedModelError, match=r"the closest, llama, cannot express positions='alibi' \(expected"):
        export_model(model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "lama"}, "did you mean 'llama'"),
        ({"model_type": None}, "expected one of"),
        ({"rope_scaling": {"rope_type": "mrope", "factor": 8.0}}, "rotary positions of type 'mrope', not supported"),
        ({"hidden_act": "mish"}, "hidden_act='mish', which is not supported"),
        ({"hidden_size": "64"}, "hidden_size='64': expected a whole number"),
        ({"hidden_size": None}, "no 'hidden_size'"),
        ({"num_hidden_layers": 9}, "tensors are missing: model.layers."),
        ({"num_hidden_layers": 1}, "tensors are unexpected: model.layers.1"),
        ({"intermediate_size": 11}, r"of a wrong shape: model.layers.0.mlp.gate_proj.weight is .*, expected \(11"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_by_name(change, message):
    draw, class_name = hf_models.DECODERS["llama"]
    config = draw(random.Random(0))
    config.num_hidden_layers, config.intermediate_size = 2, 10
    theirs = hf_models.make(config, class_name, 0)
    with pytest.raises((UnsupportedModelError, TensorMismatchError, ValueError), match=message):
        import_model({**values_of(theirs), **change}, InMemory(theirs.state_dict()))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("BertForMaskedLM", "bert"),
        ("MegatronBertForPreTraining", "megatron-bert"),
        ("DistilBertModel", "distilbert"),
        ("GPT2LMHeadModel", "gpt2"),
        ("GPT2DoubleHeadsModel", "gpt2"),
        ("MarianMTModel", "marian"),
        ("T5ForConditionalGeneration", "t5"),
        ("LlamaForCausalLM", "llama"),
    ],
)
def test_a_missing_model_type_is_inferred_from_the_class_that_saved_the_model(name, family):
    assert with_model_type({"architectures": [name]}) == {"architectures": [name], "model_type": family}
    assert with_model_type({"architectures": [name], "model_type": "qwen3"})["model_type"] == "qwen3"


@pytest.mark.parametrize("name", ["BertSomethingElse", "WhisperForConditionalGeneration", "Model", "ForMaskedLM"])
def test_a_class_of_an_unknown_family_is_refused(name):
    with pytest.raises(UnsupportedModelError, match=rf"no model_type and architectures=\['{name}'\], which names no"):
        with_model_type({"architectures": [name]})


@pytest.mark.parametrize("family", FAMILIES)
def test_every_class_that_is_written_names_its_family(family):
    kind = FAMILIES[family].kind
    config = {"encoder": "tiny-bert-base", "decoder": "tiny-gpt2", "encoder_decoder": "tiny-bart-base"}[kind]
    names = FAMILIES[family].write_config(preset(config))["architectures"]
    assert with_model_type({"architectures": names})["model_type"] == family


@pytest.mark.parametrize("prefix", ["Bert", "Roberta"])
@pytest.mark.parametrize(("listed", "number"), [(3, 2), (2, 3)])
def test_the_stored_head_decides_how_many_classes_there_are(prefix, listed, number):
    """HF counts the classes of id2label, and refuses a head of another size."""
    theirs = hf_models.small_bert(prefix, "ForSequenceClassification", num_labels=3)
    values = values_of(theirs) | {"id2label": {str(index): str(index) for index in range(listed)}}
    values["num_labels"] = number
    ours = import_model(values, InMemory(theirs.state_dict()))
    tokens, mask = padded("right", 0)
    with torch.no_grad():
        close(ours(tokens, mask), theirs(input_ids=tokens, attention_mask=mask).logits)
