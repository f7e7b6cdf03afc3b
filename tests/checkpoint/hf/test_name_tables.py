"""Name rules convert tensors in both directions, and mismatches are named."""

import pytest
import torch

from checkpoint.hf_comparison import InMemory
from glassformer.checkpoint.hf import FAMILIES
from glassformer.checkpoint.hf.name_tables import (
    NameRule,
    TensorMismatchError,
    equal_copies,
    from_hf_tensors,
    layer_rules,
    needed_rules,
    to_hf_tensors,
)
from glassformer.models import build_model, preset

GPT2 = FAMILIES["gpt2"]


def parameters_of(model):
    return {name: value.detach() for name, value in model.named_parameters()}


def shapes_of(parameters):
    return {name: tuple(value.shape) for name, value in parameters.items()}


@pytest.mark.parametrize(("transposed", "leading_axis"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_rule_splits_what_it_joined(transposed, leading_axis):
    rule = NameRule("fused", ("a", "b"), transposed=transposed, leading_axis=leading_axis)
    parts = {"a": torch.randn(2, 5), "b": torch.randn(3, 5)}
    joined = rule.join(parts)
    assert tuple(joined.shape) == rule.hf_shape(shapes_of(parts))
    for name, value in rule.split(joined, shapes_of(parts)).items():
        assert torch.equal(value, parts[name])


def test_rules_are_made_for_every_layer_weight_and_bias():
    names = [(rule.hf_name, rule.names) for rule in layer_rules("decoder.layers", "h", 2, {"norm": "ln"})]
    assert names == [
        (f"h.{index}.ln.{kind}", (f"decoder.layers.{index}.norm.{kind}",))
        for index in range(2)
        for kind in ("weight", "bias")
    ]


def test_parameters_survive_the_way_to_hf_and_back_without_the_prefix():
    model = build_model(preset("tiny-gpt2").with_head("none"))
    parameters = parameters_of(model)
    tensors = to_hf_tensors(GPT2, model.config, parameters)
    assert "wte.weight" in tensors, "a body without a head has no prefix"
    found = dict(from_hf_tensors(GPT2, model.config, InMemory(tensors), shapes_of(parameters)))
    assert found.keys() == parameters.keys()
    assert all(torch.equal(found[name], parameters[name]) for name in found)


def test_missing_unexpected_and_misshapen_tensors_are_named_together():
    model = build_model(preset("tiny-gpt2"))
    parameters = parameters_of(model)
    tensors = to_hf_tensors(GPT2, model.config, parameters)
    del tensors["transformer.ln_f.bias"]
    tensors["transformer.more"] = torch.zeros(1)
    tensors["transformer.wpe.weight"] = tensors["transformer.wpe.weight"][1:]
    message = (
        r"1 tensors are missing: transformer\.ln_f\.bias; 1 tensors are unexpected: transformer\.more; "
        r"1 tensors are of a wrong shape: transformer\.wpe\.weight is \(\d+, 16\), expected \(\d+, 16\)"
    )
    with pytest.raises(TensorMismatchError, match=message):
        list(from_hf_tensors(GPT2, model.config, InMemory(tensors), shapes_of(parameters)))


def test_only_equal_copies_of_a_tied_table_are_hidden():
    table = torch.randn(4, 3)
    tensors = InMemory({"transformer.wte.weight": table, "lm_head.weight": table.clone()})
    assert equal_copies(GPT2, tensors) == {"lm_head.weight"}
    tensors["lm_head.weight"][0, 0] += 1
    assert equal_copies(GPT2, tensors) == frozenset()


def test_a_parameter_without_a_rule_is_refused_by_name():
    with pytest.raises(ValueError, match=r"gpt2 has no place for \['another'\]"):
        needed_rules(GPT2, preset("tiny-gpt2"), {"another": (1,)})
