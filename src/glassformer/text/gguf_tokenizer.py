"""Convert the vocabularies of GGUF and llama2.c files to `tokenizers` tokenizers.

A byte-level vocabulary (GPT-2) has merges and the name of a pre-tokenization rule. A scored vocabulary (SentencePiece)
has no merges but a score per piece: at each step the two neighbors are merged that together form the piece with
the best score. Both kinds become BPE merges.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from glassformer.text.word_patterns import CUTS

T = TypeVar("T")

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""GGUF's token types."""
ADDED = (UNKNOWN, CONTROL, USER)
"""Types of tokens that are matched in the text as a whole, before pre-tokenization."""

# Limits for hostile files. The largest real vocabularies stay below half of each.
MAX_TOKENS = 1 << 19
MAX_ADDED = 1 << 16
MAX_PIECE = 128
MAX_MERGES_A_PIECE = 6

SPACE = "▁"
LLAMA3 = ("llama-bpe", "llama3", "llama-v3")


def byte_level_tokenizer(
    tokens: Sequence[str],
    merges: Sequence[str],
    types: Sequence[int] | None = None,
    *,
    pre: str = "gpt-2",
    begin: int | None = None,
    end: int | None = None,
) -> tokenizers.Tokenizer:
    """Build a byte-level BPE tokenizer.

    `tokens` are in id order, in GPT-2's byte alphabet. `merges` are written "left right", the best first. `types`
    are GGUF's token types, by default all NORMAL. `pre` names the pre-tokenization rule, a key of `CUTS`. `begin` and
    `end` are ids to put before and after every text.
    """
    if pre not in CUTS:
        raise ValueError(f"tokenizer.ggml.pre={pre!r}: expected one of {', '.join(CUTS)}")
    types = _checked_types(tokens, types)
    vocabulary = _vocabulary(tokens)
    pairs = []
    for merge in merges:
        # A token may start with a space, so skip the first character when looking for the separator.
        cut = merge.find(" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        if cut < 1 or left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise ValueError(f"the merge {merge[:80]!r}: expected two tokens that make a third")
        pairs.append((left, right))
    # Llama 3 looks up the whole word before merging.
    inner = _bpe(vocabulary, pairs, ignore_merges=pre in LLAMA3)
    if pre.endswith(("qwen2", "-qwen")):
        inner.normalizer = normalizers.NFC()
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in CUTS[pre]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    return _with_special_tokens(inner, tokens, types, begin, end)


def scored_tokenizer(
    tokens: Sequence[str],
    scores: Sequence[float],
    types: Sequence[int] | None = None,
    *,
    space_prefix: bool = True,
    begin: int | None = None,
    end: int | None = None,
) -> tokenizers.Tokenizer:
    """Build a BPE tokenizer from piece scores. Pieces contain `▁` for a space; `<0x0A>` is the piece of one byte.

    `types` are GGUF's token types, by default all NORMAL. `space_prefix` puts a space before every text. `begin` and
    `end` are ids to put before and after every text.
    """
    types = _checked_types(tokens, types)
    vocabulary = _vocabulary(tokens)
    if len(scores) != len(tokens):
        raise ValueError(f"{len(scores)} scores: expected one for each of the {len(tokens)} tokens")
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    merges = _merges_by_score(tokens, scores, types)
    inner = _bpe(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    spaces = [normalizers.Prepend(SPACE)] if space_prefix else []
    inner.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", SPACE)])
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if space_prefix else []),
        ]
    )
    return _with_special_tokens(inner, tokens, types, begin, end)


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Convert the `tokenizer.*` keys of a GGUF file to the contents of `tokenizer.json` and `tokenizer_config.json`.

    Returns None and an empty config for a file without a vocabulary.
    """
    kind = _value(metadata, "model", str, "a name")
    if kind in (None, "none", "no_vocab"):
        return None, {}
    if kind not in ("gpt2", "llama"):
        raise ValueError(f"tokenizer.ggml.model={kind!r}: expected gpt2 or llama")
    tokens = _column(metadata, "tokens", str)
    types = _column(metadata, "token_type", int) if "tokenizer.ggml.token_type" in metadata else None
    is_qwen = str(metadata.get("general.architecture", "")).startswith("qwen")
    # Files that are older than the key `tokenizer.ggml.pre` do not have it.
    pre = _value(metadata, "pre", str, "a name") or ("qwen2" if is_qwen else "default")
    adds_begin = _value(metadata, "add_bos_token", bool, "true or false")
    if adds_begin is None:
        adds_begin = kind == "llama" or pre in LLAMA3
    adds_end = bool(_value(metadata, "add_eos_token", bool, "true or false"))
    config: dict[str, Any] = {"add_bos_token": adds_begin, "add_eos_token": adds_end}
    ids = {}
    for key, name in (("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"), ("padding", "pad_token")):
        index = token_id(metadata, key, len(tokens))
        if index is not None:
            ids[key], config[name] = index, tokens[index]
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        config["chat_template"] = template
    around = {"begin": ids.get("bos") if adds_begin else None, "end": ids.get("eos") if adds_end else None}
    if kind == "gpt2":
        inner = byte_level_tokenizer(tokens, _column(metadata, "merges", str), types, pre=pre, **around)
    else:
        prefix = _value(metadata, "add_space_prefix", bool, "true or false")
        scores = _column(metadata, "scores", float)
        inner = scored_tokenizer(tokens, scores, types, space_prefix=prefix is not False, **around)
    return inner.to_str(), config


def token_id(metadata: Mapping[str, Any], name: str, count: int) -> int | None:
    """Return the id of a special token (bos, eos, unknown, padding), or None if the file does not name it.

    `count` is the vocabulary's size. Raises ValueError for an id outside the vocabulary.
    """
    index = _value(metadata, f"{name}_token_id", int, "a whole number")
    if index is not None and not 0 <= index < count:
        raise ValueError(f"tokenizer.ggml.{name}_token_id={index}: expected an id below {count}")
    return index


def _value(metadata: Mapping[str, Any], name: str, kind: type[T], expected: str) -> T | None:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if value is not None and type(value) is not kind:
        raise ValueError(f"tokenizer.ggml.{name}={str(value)[:80]!r}: expected {expected}")
    return value


def _column(metadata: Mapping[str, Any], name: str, kind: type[T]) -> list[T]:
    values = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(values, list) or any(type(value) is not kind for value in values):
        raise ValueError(f"tokenizer.ggml.{name}={str(values)[:80]}: expected a list of {kind.__name__}")
    return values


def _checked_types(tokens: Sequence[str], types: Sequence[int] | None) -> Sequence[int]:
    if len(tokens) > MAX_TOKENS:
        raise ValueError(f"{len(tokens)} tokens: expected at most {MAX_TOKENS}")
    if types is None:
        return [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ValueError(f"{len(types)} token types: expected one for each of the {len(tokens)} tokens")
    added = sum(kind in ADDED for kind in types)
    if added > MAX_ADDED:
        raise ValueError(f"{added} control and user-defined tokens: expected at most {MAX_ADDED}")
    return types


def _vocabulary(tokens: Sequence[str]) -> dict[str, int]:
    vocabulary: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if vocabulary.setdefault(token, index) != index:
            raise ValueError(f"the token {token[:80]!r} has the ids {vocabulary[token]} and {index}: expected one")
    return vocabulary


def _merges_by_score(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """Return all merges of two pieces into a third, in descending order of the third's score."""
    ranks = {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind == NORMAL}
    for token, index in ranks.items():
        if len(token) > MAX_PIECE:
            raise ValueError(f"the piece {token[:80]!r} has {len(token)} characters: expected at most {MAX_PIECE}")
        if math.isnan(scores[index]):
            raise ValueError(f"the piece {token!r} has the score {scores[index]}: expected a number")
    merges: list[tuple[str, str]] = []
    # The constant is for very small vocabularies.
    most = MAX_MERGES_A_PIECE * len(tokens) + 4096
    for token in sorted(ranks, key=lambda token: -scores[ranks[token]]):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                merges.append((left, right))
        if len(merges) > most:
            raise ValueError(f"{len(tokens)} pieces have over {most} merges: expected about two a piece")
    return merges


def _bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> tokenizers.Tokenizer:
    return _wrapped("vocabulary", lambda: tokenizers.Tokenizer(models.BPE(vocabulary, merges, **options)))


def _with_special_tokens(
    inner: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int], begin: int | None, end: int | None
) -> tokenizers.Tokenizer:
    """Add the unknown, control and user-defined tokens to the tokenizer `inner`, and return it.

    Such tokens (those with a type in ADDED) are matched before pre-tokenization. `begin` and `end` are ids that the
    tokenizer then puts before and after every text.
    """
    added = [(token, kind) for token, kind in zip(tokens, types, strict=True) if kind in ADDED]
    _wrapped(
        "control tokens",
        lambda: inner.add_tokens(
            [tokenizers.AddedToken(token, special=kind != USER, normalized=False) for token, kind in added]
        ),
    )
    # Use neutral names, because the tokens' own names may contain template syntax.
    special = {name: index for name, index in (("begin", begin), ("end", end)) if index is not None}
    if special:
        before, after = [name for name in special if name == "begin"], [name for name in special if name == "end"]
        inner.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *(f"{name}:1" for name in before), "$B:1", *(f"{name}:1" for name in after)],
            special_tokens=[{"id": name, "ids": [i], "tokens": [tokens[i]]} for name, i in special.items()],
        )
    return inner


def _wrapped(what: str, build: Callable[[], T]) -> T:
    try:
        return build()
    except Exception as error:  # the library raises bare Exceptions
        raise ValueError(f"the {what} make no tokenizer: {error}") from error
