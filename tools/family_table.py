"""Write the table of HF model families in docs/pretrained.md: heads and exports, as the code decides them.

The comparisons with HF are those of benchmarks/results/parity.json. Usage: `python tools/family_table.py` rewrites the
table; a test compares it with the code.
"""

import json
from contextlib import suppress
from pathlib import Path

from glassformer.checkpoint.ct2_export import blocking_ct2
from glassformer.checkpoint.gguf_export import blocking_gguf
from glassformer.checkpoint.hf import FAMILIES, Family, blocking_settings
from glassformer.models import PRESETS, ModelConfig, preset

PAGE = Path(__file__).parents[1] / "docs" / "pretrained.md"
PARITY = Path(__file__).parents[1] / "benchmarks" / "results" / "parity.json"
START, END = "<!-- families -->\n\n", "\n<!-- end of families -->\n"
ALSO = {
    "bert": "SpanBERT, MiniLM",
    "llama": "Llama 1 to 3.3, CodeLlama, SmolLM 1 and 2",
    "t5": "Flan-T5",
    "m2m_100": "NLLB",
    "deberta-v2": "DeBERTa v2 and v3, mDeBERTa",
    "deberta": "DeBERTa v1",
    "xlm-roberta": "XLM-R",
    "phi3": "Phi-3 and Phi-3.5 (text)",
    "gemma": "Gemma 1",
    "gpt_neox": "GPT-NeoX, Pythia",
    "gptj": "GPT-J",
    "phi": "Phi-1, Phi-1.5, Phi-2",
    "falcon": "Falcon 7B, 40B, 180B, Falcon 2",
    "cohere": "Command R",
    "cohere2": "Command R7B, Command A",
    "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3 (text)",
    "olmo": "OLMo 1",
    "olmo2": "OLMo 2",
    "olmo3": "OLMo 3",
    "smollm3": "SmolLM3",
    "mixtral": "Mixtral 8x7B and 8x22B",
    "qwen2_moe": "Qwen1.5-MoE, Qwen2-57B-A14B",
    "qwen3_moe": "Qwen3-30B-A3B, Qwen3-235B-A22B",
    "olmoe": "OLMoE",
}
NORMED = {"head_transform": True, "head_activation": "gelu", "head_norm": True, "head_bias": False}
"""The dense layer of all heads of ModernBERT."""
HEADS = {
    "language_model": "language model",
    "sequence_class": "classes",
    "token_class": "token classes",
    "span": "spans",
}


def family_table() -> str:
    """Return the table: one row for each family, in the order in which the code tries them."""
    compared = {row[0]: row for row in json.loads(PARITY.read_text(encoding="utf-8"))["rows"]}
    lines = ["| `model_type` | also | kind | heads | exports | equal + refused |", "|---|---|---|---|---|---|"]
    for family in FAMILIES.values():
        base = _config_of(family)
        heads = [name for head, name in HEADS.items() if _fits(family, base, head)]
        kind = family.kind.replace("_", "-")
        name = f"`{family.model_type}`"
        _, equal, refused, *_ = compared[name]
        cells = name, ALSO.get(family.model_type, ""), kind, ", ".join(heads), _exports(base), f"{equal} + {refused}"
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _config_of(family: Family) -> ModelConfig:
    """Return the config of a small model with the family's usual settings."""
    for name in sorted(PRESETS, key=lambda name: name != "tiny-llama"):  # most decoders are like Llama
        if not name.startswith("tiny-"):
            continue
        config = preset(name)
        if config.kind == family.kind:
            with suppress(ValueError, KeyError):
                values = {"model_type": family.model_type, **family.write_config(config)}
                return family.read_config(values, frozenset({"final_logits_bias"}))
    raise LookupError(f"no preset has a form in {family.model_type}: expected one")


def _fits(family: Family, base: ModelConfig, head: str) -> bool:
    more = {"n_labels": 3} if head in ("sequence_class", "token_class") else {}
    plain = ({"head_transform": False}, {"head_transform": True}, {"head_transform": True, "head_activation": "gelu"})
    for form in (*plain, {"head_transform": True, "head_activation": "relu"}, NORMED):
        with suppress(ValueError):
            config = base.with_head(head, **form, **more)
            if not blocking_settings(family, config):
                return True
    return False


def _exports(base: ModelConfig) -> str:
    found = []
    with suppress(ValueError):
        if base.kind == "decoder" and not all(blocking_gguf(base).values()):
            found.append("GGUF")
    if base.kind == "encoder_decoder" and not blocking_ct2(base):
        found.append("CTranslate2")
    return ", ".join(found)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(START)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{START}{family_table()}{END}{after}", encoding="utf-8")
