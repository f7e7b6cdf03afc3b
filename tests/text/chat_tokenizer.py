"""A small byte-level tokenizer with control tokens, and the same tokenizer in transformers."""

import tokenizers
import transformers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from glassformer.text.pretrained_tokenizers import PretrainedTokenizer

SPECIAL = [
    "<s>",
    "</s>",
    "<|start|>",
    "<|stop|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|im_x|>",
    "[INST]",
    "[/INST]",
]


SOFT = ["<think>", "</think>", "<tool>", "</tool>"]


ROLES = {"bos_token": "<s>", "eos_token": "</s>"}


MERGES = ["h e", "l l", "he ll", "hell o", "Ġ h", "Ċ Ċ", "Ġ w", "Ġ Ġ"]


def byte_level():
    """Return a byte-level tokenizer that merges spaces and line breaks. <|stop|> strips the spaces after it."""
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    tokens = dict.fromkeys([*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(merge) for merge in merges)])
    inner = tokenizers.Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    added = [AddedToken(token, special=True, normalized=False, rstrip=token == "<|stop|>") for token in SPECIAL]
    inner.add_tokens(added + [AddedToken(token, special=False, normalized=False) for token in SOFT])
    return inner


INNER = byte_level()


TOKENIZER = PretrainedTokenizer.from_json(INNER.to_str(), ROLES)


PEER = transformers.PreTrainedTokenizerFast(tokenizer_object=INNER, **ROLES)
