"""Tokenizers from files older than `tokenizer.json`: WordPiece, byte-level BPE, SentencePiece.

These files do not say how a text is pre-tokenized or which special tokens surround it; the model family does. An
unknown family is refused rather than guessed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from glassformer.text.sentencepiece_file import SentencePieceModel, build_tokenizer, read_sentencepiece
from glassformer.text.tokenizer_files import parse_json, read_utf8

_WORDPIECE = {"albert", "bert", "distilbert", "electra", "mobilebert", "retribert", "squeezebert"}
_GPT2 = {"gpt2", "gptneo", "gptj", "codegen", "opt", "phi", "gptbigcode"}
_ROBERTA = {"roberta", "bart", "longformer", "led", "robertaprelayernorm"}
_T5 = {"t5", "mt5", "umt5", "longt5", "switchtransformers"}


@dataclass
class ClassicTokenizer:
    """A tokenizer read from the file formats before `tokenizer.json`, such as `vocab.txt`."""

    inner: tokenizers.Tokenizer
    roles: dict[str, str] = field(default_factory=dict)
    """Special tokens by role (`bos_token`, ...): those that the config names, else those usual for the family."""
    hidden: frozenset[str] = frozenset()
    """Vocabulary entries that can be decoded but are never produced by encoding."""
    limit: int | None = None
    """Ids of at least this value belong to pieces outside the model's vocabulary. None if there are no such pieces."""


def read_classic(folder: Path, config: Mapping[str, Any], model_type: str | None, *, target: bool) -> ClassicTokenizer:
    """Read the tokenizer of a model folder without `tokenizer.json`.

    `config` is the parsed `tokenizer_config.json`, `model_type` that of `config.json`. `target` selects the
    target-language tokenizer of a translation model with two.
    """
    family = _family(config, model_type)
    for names, read in _READERS:
        if all((folder / name).is_file() for name in names):
            return read(folder, config, family, target)
    choices = ", ".join("+".join(names) for names, _ in _READERS)
    raise ValueError(f"{folder} holds no tokenizer: expected tokenizer.json or one of {choices}")


def _family(config: Mapping[str, Any], model_type: str | None) -> str | None:
    """Return the model family in lower case, from the tokenizer class or else the model type; None if unknown."""
    named = config.get("tokenizer_class")
    if isinstance(named, str) and named not in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        return named.removesuffix("Fast").removesuffix("Tokenizer").lower()
    return model_type.replace("_", "").replace("-", "").lower() if model_type else None


def _check_family(file: Path, family: str | None, known: set[str]) -> None:
    if family is not None and family not in known:
        raise ValueError(
            f"{file} belongs to a {family!r} model: expected a tokenizer.json beside it, or one of {sorted(known)}"
        )


def _read_wordpiece(folder: Path, config: Mapping[str, Any], family: str | None, target: bool) -> ClassicTokenizer:
    file = folder / "vocab.txt"
    _check_family(file, family, _WORDPIECE)
    lines = read_utf8(file).split("\n")  # not splitlines: a token may be another line-separator character
    vocab = {line: index for index, line in enumerate(lines[:-1] if lines[-1] == "" else lines)}
    roles = {
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    } | _named(config)
    first, last = roles["cls_token"], roles["sep_token"]
    _check_tokens(file, vocab, (roles["unk_token"], first, last))
    inner = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=roles["unk_token"], max_input_chars_per_word=100))
    inner.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
        strip_accents=config.get("strip_accents"),
        lowercase=bool(config.get("do_lower_case", True)),
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.post_processor = processors.TemplateProcessing(
        single=["first:0", "$A:0", "last:0"],
        pair=["first:0", "$A:0", "last:0", "$B:1", "last:1"],
        special_tokens=[("first", vocab[first]), ("last", vocab[last])],
    )
    inner.decoder = decoders.WordPiece(prefix="##")
    return ClassicTokenizer(inner, roles)


def _read_byte_level(folder: Path, config: Mapping[str, Any], family: str | None, target: bool) -> ClassicTokenizer:
    file = folder / "vocab.json"
    _check_family(file, family, _GPT2 | _ROBERTA)
    vocab = _read_vocab(file)
    merges = [
        _merge(folder / "merges.txt", number, line)
        for number, line in enumerate(read_utf8(folder / "merges.txt").split("\n"), start=1)
        if line.strip() and not (number == 1 and line.startswith("#version"))
    ]
    try:
        model = models.BPE(vocab=vocab, merges=merges, fuse_unk=False)
    except Exception as error:  # the library raises bare Exceptions
        raise ValueError(f"{folder / 'merges.txt'} does not fit {file.name}: {error}") from error
    inner = tokenizers.Tokenizer(model)
    prefix = bool(config.get("add_prefix_space", False))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    inner.decoder = decoders.ByteLevel()
    if family not in _ROBERTA:
        end = "<|endoftext|>"
        roles = dict.fromkeys(("bos_token", "eos_token", "unk_token"), end) if end in vocab else {}
        return ClassicTokenizer(inner, roles | _named(config))
    roles = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "sep_token": "</s>",
        "cls_token": "<s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    } | _named(config)
    first, last = roles["cls_token"], roles["sep_token"]
    _check_tokens(file, vocab, (first, last))
    if roles["mask_token"] in vocab:
        # Unless the config says otherwise, the mask token includes the space before it.
        mask = config.get("mask_token")
        lstrip = bool(mask.get("lstrip", True)) if isinstance(mask, Mapping) else True
        inner.add_special_tokens([tokenizers.AddedToken(roles["mask_token"], lstrip=lstrip, special=True)])
    inner.post_processor = processors.RobertaProcessing(
        (last, vocab[last]), (first, vocab[first]), trim_offsets=True, add_prefix_space=prefix
    )
    return ClassicTokenizer(inner, roles)


def _merge(file: Path, number: int, line: str) -> tuple[str, str]:
    parts = line.split(" ")
    if len(parts) != 2:
        raise ValueError(f"{file}:{number}: {line[:80]!r}: expected two tokens and a space between them")
    return parts[0], parts[1]


def _read_llama(folder: Path, config: Mapping[str, Any], family: str | None, target: bool) -> ClassicTokenizer:
    file = folder / "tokenizer.model"
    model = read_sentencepiece(file)
    # `legacy`: also add a space after special tokens, as the first Llama models do.
    inner = _build(file, model, prefix_everywhere=bool(config.get("legacy", True)))
    begin = model.begin
    if begin is not None:
        inner.post_processor = processors.TemplateProcessing(
            single=["begin:0", "$A:0"], pair=["begin:0", "$A:0", "begin:1", "$B:1"], special_tokens=[("begin", begin)]
        )
    return ClassicTokenizer(inner, _sentencepiece_roles(model) | _named(config))


def _read_t5(folder: Path, config: Mapping[str, Any], family: str | None, target: bool) -> ClassicTokenizer:
    file = folder / "spiece.model"
    _check_family(file, family, _T5)
    model = read_sentencepiece(file)
    if not model.is_unigram or model.end is None:
        raise ValueError(f"{file} is no T5 vocabulary: expected a unigram model with an end token")
    vocab = [(piece.text, piece.score) for piece in model.pieces]
    known = {piece for piece, _ in vocab}
    listed = config.get("additional_special_tokens") or []
    count = sum(1 for token in listed if "<extra_id_" in str(token)) or config.get("extra_ids", 100)
    if not isinstance(count, int) or not 0 <= count <= 10_000:
        raise ValueError(f"{folder / 'tokenizer_config.json'}: extra_ids={count!r}: expected a number from 0 to 10000")
    # T5's sentinels count down: the first has the highest id.
    extra = [f"<extra_id_{index}>" for index in reversed(range(count)) if f"<extra_id_{index}>" not in known]
    inner = _build(file, model, [*vocab, *((token, 0.0) for token in extra)])
    inner.add_special_tokens(extra)
    inner.post_processor = _ending(model.end)
    return ClassicTokenizer(inner, _sentencepiece_roles(model) | _named(config))


def _read_marian(folder: Path, config: Mapping[str, Any], family: str | None, target: bool) -> ClassicTokenizer:
    """Read the tokenizer of a Marian translation model.

    The source and target languages have one SentencePiece model each; `vocab.json` has the ids of both.
    """
    _check_family(folder / "source.spm", family, {"marian", "marianmt"})
    file = folder / ("target.spm" if target else "source.spm")
    model = read_sentencepiece(file)
    vocab = _read_vocab(folder / "vocab.json")
    roles = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"} | _named(config)
    _check_tokens(folder / "vocab.json", vocab, (roles["unk_token"], roles["eos_token"]))
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise ValueError(f"{folder / 'vocab.json'} has gaps between its ids: expected 0 to {len(vocab) - 1}")
    if not model.is_unigram:
        raise ValueError(f"{file} is made of byte-pair merges: expected a unigram model")
    scores = {piece.text: piece.score for piece in model.pieces}
    ordered = sorted(vocab, key=vocab.__getitem__)
    # Texts are segmented with all pieces of the SentencePiece model; pieces without an id become unknown.
    surplus = [(piece, score) for piece, score in scores.items() if piece not in vocab]
    entries = [(piece, scores.get(piece, 0.0)) for piece in ordered]
    inner = _build(file, model, [*entries, *surplus], unknown=vocab[roles["unk_token"]])
    # A text for a multilingual model starts with a language token.
    inner.add_special_tokens([token for token in ordered if token.startswith(">>") and token.endswith("<<")])
    inner.post_processor = _ending(vocab[roles["eos_token"]])
    return ClassicTokenizer(inner, roles, frozenset(vocab.keys() - scores.keys()), limit=len(vocab))


_Reader = Callable[[Path, Mapping[str, Any], str | None, bool], ClassicTokenizer]
_READERS: Sequence[tuple[tuple[str, ...], _Reader]] = (
    (("source.spm", "target.spm", "vocab.json"), _read_marian),
    (("tokenizer.model",), _read_llama),
    (("spiece.model",), _read_t5),
    (("vocab.json", "merges.txt"), _read_byte_level),
    (("vocab.txt",), _read_wordpiece),
)


def _build(
    file: Path,
    model: SentencePieceModel,
    vocab: Sequence[tuple[str, float]] | None = None,
    *,
    unknown: int | None = None,
    prefix_everywhere: bool = True,
) -> tokenizers.Tokenizer:
    try:
        return build_tokenizer(model, vocab, unknown=unknown, prefix_everywhere=prefix_everywhere)
    except Exception as error:  # the library raises bare Exceptions
        raise ValueError(f"{file} makes no tokenizer: {error}") from error


def _ending(end: int) -> processors.PostProcessor:
    """Return a post-processor that appends the end token to each text. `end` is its id."""
    return processors.TemplateProcessing(
        single=["$A:0", "end:0"], pair=["$A:0", "end:0", "$B:0", "end:0"], special_tokens=[("end", end)]
    )


def _sentencepiece_roles(model: SentencePieceModel) -> dict[str, str]:
    roles = {
        "unk_token": model.token(model.unknown),
        "bos_token": model.token(model.begin),
        "eos_token": model.token(model.end),
        "pad_token": model.token(model.pad),
    }
    return {role: token for role, token in roles.items() if token}


def _named(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens that a tokenizer config names, by role. The config has them as strings or objects."""
    found = {}
    for role, value in config.items():
        token = value.get("content") if isinstance(value, Mapping) else value
        if role.endswith("_token") and isinstance(token, str) and token:
            found[role] = token
    return found


def _check_tokens(file: Path, vocab: Mapping[str, int], tokens: Sequence[str]) -> None:
    for token in tokens:
        if token not in vocab:
            raise ValueError(f"{file} lacks the special token {token!r}")


def _read_vocab(file: Path) -> dict[str, int]:
    vocab = parse_json(read_utf8(file), str(file))
    if not isinstance(vocab, dict) or not all(type(index) is int and 0 <= index < 2**31 for index in vocab.values()):
        raise ValueError(f"{file} is no vocabulary: expected an object of tokens and their ids")
    if len(set(vocab.values())) != len(vocab):
        raise ValueError(f"{file} gives one id to two tokens")
    return vocab
