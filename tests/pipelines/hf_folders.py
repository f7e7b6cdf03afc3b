"""A tokenizer of a few words for random models of HF Transformers."""

import json

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from checkpoint import hf_models

WORDS = ["</s>", "<pad>", "<s>", "[UNK]", "a", "b", "c", "d", "cat", "dog", "sat", "on", "the", "mat", "."]


WORDS += [f"w{index}" for index in range(hf_models.VOCAB - len(WORDS))]


def save_tokenizer(folder, *, around=None, pair=None, chat=True):
    inner = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(["</s>", "<pad>", "<s>"])
    if around is not None:
        inner.post_processor = processors.TemplateProcessing(
            single=around, pair=pair, special_tokens=[("<s>", WORDS.index("<s>")), ("</s>", WORDS.index("</s>"))]
        )
    inner.save(str(folder / "tokenizer.json"))
    roles = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "[UNK]"}
    roles |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    roles |= {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    if chat:
        roles["chat_template"] = (
            "{% for m in messages %}<s>{{ m.content }}{% endfor %}{% if add_generation_prompt %} on{% endif %}"
        )
    (folder / "tokenizer_config.json").write_text(json.dumps(roles), encoding="utf-8")
