"""The rules of the runtime: the first that applies decides, and the documentation lists exactly these rules."""

from pathlib import Path

import pytest

from glassformer.runtime.decision_rules import (
    DECISIONS,
    DEVICE_RULES,
    KERNEL_RULES,
    STEP_RULES,
    TWO_BYTE_ACTIVATIONS,
    WEIGHT_RULES,
    Situation,
    decide,
    rules_table,
)

PAGE = Path(__file__).parents[2] / "docs" / "decoding.md"


def test_the_documentation_has_the_table_of_the_rules():
    text = PAGE.read_text(encoding="utf-8")
    found = text.split("<!-- runtime rules -->\n")[1].split("\n<!-- end of the rules -->")[0]
    assert found == rules_table()


@pytest.mark.parametrize("rules", DECISIONS.values(), ids=DECISIONS)
def test_one_rule_always_applies(rules):
    assert rules[-1].when == "otherwise"
    assert rules[-1].applies(Situation())


@pytest.mark.parametrize(
    ("rules", "facts", "decision"),
    [
        (DEVICE_RULES, {"has_gpu": True}, "cuda"),
        (DEVICE_RULES, {"has_gpu": True, "is_quantized": True}, "cpu"),
        (DEVICE_RULES, {"has_gpu": True, "asked_device": "cpu"}, "the one asked for"),
        (DEVICE_RULES, {}, "cpu"),
        (KERNEL_RULES, {"device": "cuda", "runs_triton": True}, "triton"),
        (KERNEL_RULES, {"device": "cuda"}, "torch"),
        (KERNEL_RULES, {"device": "mps", "asks_for_kernels": True}, "torch"),
        (KERNEL_RULES, {"is_quantized": True}, "c++"),
        (KERNEL_RULES, {"is_quantized": True, "builds_kernels": False}, "torch"),
        (KERNEL_RULES, {"asks_for_kernels": True}, "c++"),
        (KERNEL_RULES, {"keeps_gguf": True}, "c++"),
        (WEIGHT_RULES, {"is_quantized": True, "has_4_bits": True}, "4-bit, projections fused"),
        (WEIGHT_RULES, {"is_quantized": True}, "8-bit, projections fused"),
        (WEIGHT_RULES, {"is_quantized": True, "is_decoder_only": True}, TWO_BYTE_ACTIVATIONS),
        (WEIGHT_RULES, {"is_decoder_only": True}, "as stored"),
        (WEIGHT_RULES, {"keeps_gguf": True}, "as stored, projections fused"),
        (WEIGHT_RULES, {}, "as stored"),
        (KERNEL_RULES, {}, "torch"),
        (KERNEL_RULES, {"has_built_kernels": True}, "c++"),
        (KERNEL_RULES, {"has_built_kernels": True, "in_float32": False}, "torch"),
        (KERNEL_RULES, {"has_built_kernels": True, "builds_kernels": False}, "torch"),
        (KERNEL_RULES, {"is_quantized": True, "in_float32": False}, "c++"),
        (STEP_RULES, {"device": "cuda"}, "recorded"),
        (STEP_RULES, {"device": "cuda", "is_watched": True}, "plain"),
        (STEP_RULES, {"records": "compiled"}, "compiled"),
        (STEP_RULES, {"records": "recorded", "under_autocast": True}, "plain"),
        (STEP_RULES, {"records": "recorded", "needs_attention": True}, "plain"),
        (STEP_RULES, {"can_replay": True}, "replayed"),
        (STEP_RULES, {"can_replay": True, "is_watched": True}, "plain"),
        (STEP_RULES, {}, "plain"),
    ],
)
def test_the_first_rule_that_applies_decides(rules, facts, decision):
    assert decide(rules, Situation(**facts)).decision == decision
