"""Load the tokenizers of pretrained models. User text never becomes a control token.

`<|im_start|>`, `[SEP]` or `</s>` in a text are encoded as plain text. To encode control tokens, `encode_parts` takes a
text in parts, each marked as trusted or not.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import decoders, processors

from glassformer.text import long_texts
from glassformer.text.classic_files import ClassicTokenizer, read_classic
from glassformer.text.encoded import Encoded
from glassformer.text.secret_names import give_secret_names, is_control
from glassformer.text.tokenizer_files import parse_object, read_object, read_utf8

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTS = ("additional_special_tokens", "extra_special_tokens")
HIDDEN_PIECES, PIECE_LIMIT = "hidden_pieces", "piece_limit"
"""Entries of the `tokenizer_config.json` that `tokenizer_files` writes: the fields of a `ClassicTokenizer`."""


class _Sources(NamedTuple):
    """The files of a tokenizer, parsed; `classic` is given for files older than `tokenizer.json`."""

    contents: dict[str, Any]
    config: dict[str, Any]
    generation: dict[str, Any]
    classic: ClassicTokenizer | None
    where: str


class PretrainedTokenizer:
    """The tokenizer of a pretrained model.

    `contents` is a parsed `tokenizer.json`, `config` the `tokenizer_config.json` and `generation` the
    `generation_config.json`; `classic` is given for files older than `tokenizer.json`, and `where` names the source in
    errors. Usually created by `from_folder` or `from_json`.
    """

    def __init__(
        self,
        contents: dict[str, Any],
        config: Mapping[str, Any] | None = None,
        generation: Mapping[str, Any] | None = None,
        *,
        classic: ClassicTokenizer | None = None,
        where: str = "tokenizer.json",
    ):
        config, generation = config or {}, generation or {}
        self.where = where
        self._limit = classic.limit if classic else config.get(PIECE_LIMIT)
        try:
            # A file may configure truncation, padding or dropout; the caller decides these.
            contents = contents | {"truncation": None, "padding": None, "model": dict(contents["model"])}
            contents["model"].pop("dropout", None)
            contents["added_tokens"] = _added_tokens(contents, config)
            wanted = {token["content"]: token["id"] for token in contents["added_tokens"]}
            special = {token["content"] for token in contents["added_tokens"] if token["special"]}
            self._secrets = give_secret_names(contents, classic.hidden if classic else config.get(HIDDEN_PIECES, ()))
            self._inner = tokenizers.Tokenizer.from_str(json.dumps(contents))
            self._texts = long_texts.TextEncoder(self._inner)
            self._inner.encode("?", "\N{WHITE SMILING FACE}")  # some errors appear only with the first text
        except BaseException as error:
            _refuse_others(error)
            raise ValueError(f"{where} is not a tokenizer: {type(error).__name__}: {error}") from error
        originals = {name: token for token, name in self._secrets.items()}
        self._ids = {originals.get(name, name): index for name, index in self._inner.get_vocab().items()}
        self._tokens = {index: token for token, index in self._ids.items()}
        for token, index in wanted.items():
            if self._ids[token] != index:
                raise ValueError(f"{where} gives {token!r} the id {index}: by its vocabulary it is {self._ids[token]}")
        self.special_ids = frozenset(self._ids[token] for token in special)
        """Ids that `decode` omits."""
        self._decoded = {index: token for index, token in self._tokens.items() if index not in self.special_ids}
        self.control_tokens = tuple(sorted(self._secrets.keys() & wanted.keys(), key=lambda t: (-len(t), t)))
        """Control tokens, longest first. Plain text never encodes to them."""
        self.named_tokens = {role: token for role, token in _roles(config).items() if token in self._ids}
        """Special tokens by role (`bos_token`, ...), as chat templates name them."""
        self.chat_template = _chat_template(config)
        """The model's chat template, or None."""
        self._generation = generation
        self._bytes = '"ByteLevel"' in json.dumps(contents.get("decoder"))
        self.control_pattern = re.compile("|".join(map(re.escape, self.control_tokens)) or "(?!)")
        """Matches a control token."""
        if "add_bos_token" in config or "add_eos_token" in config:
            self._inner.post_processor = self._around(
                self.begin if config.get("add_bos_token") else None, self.end if config.get("add_eos_token") else None
            )

    @classmethod
    def from_folder(cls, folder: Path | str, *, target: bool = False) -> "PretrainedTokenizer":
        """Load the tokenizer of a model folder: its `tokenizer.json`, or else older files (`classic_files.py`).

        `target` selects the target-language tokenizer of a translation model with two.
        """
        found = _read_sources(Path(folder), target=target)
        return cls(found.contents, found.config, found.generation, classic=found.classic, where=found.where)

    @classmethod
    def from_json(
        cls,
        text: str,
        config: Mapping[str, Any] | None = None,
        generation: Mapping[str, Any] | None = None,
        *,
        where: str = "tokenizer.json",
    ) -> "PretrainedTokenizer":
        """Create a tokenizer from the text of a `tokenizer.json`.

        `config` and `generation` are the parsed `tokenizer_config.json` and `generation_config.json`.
        """
        return cls(parse_object(text, where), config, generation, where=where)

    @property
    def vocab_size(self) -> int:
        """Return the highest id that the model knows, plus one."""
        return self._limit or max(self._tokens, default=-1) + 1

    @property
    def kind(self) -> str:
        """Return the tokenization algorithm: BPE, Unigram, WordPiece or WordLevel."""
        return type(self._inner.model).__name__

    @property
    def begin(self) -> int | None:
        """Return the id of the token that starts a text (`bos_token`), or None."""
        return self._role("bos")

    @property
    def end(self) -> int | None:
        """Return the id of the token that ends a text (`eos_token`), or None."""
        return self._role("eos")

    @property
    def ends(self) -> tuple[int, ...]:
        """Return all ids that end generation; chat models may have several."""
        listed = self._generation.get("eos_token_id")
        found = [self.end, *(listed if isinstance(listed, list) else [listed])]
        return tuple(dict.fromkeys(index for index in found if type(index) is int))

    @property
    def pad(self) -> int | None:
        """Return the id of the padding token, or None."""
        return self._role("pad")

    @property
    def unknown(self) -> int | None:
        """Return the id of the token for unknown pieces (`unk_token`), or None."""
        return self._role("unk")

    @property
    def mask(self) -> int | None:
        """Return the id of the mask token, or None."""
        return self._role("mask")

    @property
    def separator(self) -> int | None:
        """Return the id of the separator token (`sep_token`), or None."""
        return self._role("sep")

    @property
    def classifier(self) -> int | None:
        """Return the id of the classification token (`cls_token`), or None."""
        return self._role("cls")

    def id_of(self, token: str) -> int | None:
        """Return the id of a token by its exact name, control tokens included, or None."""
        index = self._ids.get(token)
        return None if index is None or (self._limit and index >= self._limit) else index

    def special_id(self, name: str) -> int:
        """Return the id of a token by its exact name. Raises ValueError if there is none."""
        index = self.id_of(name)
        if index is None:
            raise ValueError(f"{self.where} has no token {name!r}: expected it")
        return index

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, including the special tokens that the model expects around it."""
        if len(text) >= long_texts.LONG_TEXT:
            return self.encode_batch([text])[0]
        return self._known(self._encode(text).ids)

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of a text without special tokens around it."""
        if len(text) >= long_texts.LONG_TEXT:
            return self.encode_batch([text], special=False)[0]
        return self._known(self._encode(text, special=False).ids)

    def encode_batch(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
        """Return the ids of each text as `encode` does, or without `special` as `encode_plain`, in parallel."""
        try:
            return list(map(self._known, self._texts.encode(texts, special=special)))
        except BaseException as error:
            _refuse_others(error)
            raise ValueError(f"{self.where} cannot read one of {len(texts)} texts: {error}") from error

    def encode_plain_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text without special tokens around it, computed in parallel."""
        return self.encode_batch(texts, special=False)

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Encode a pair of texts as one sequence with special tokens.

        Returns the ids and, for models with token type embeddings such as BERT, the token type of each id, 0 or 1.
        """
        encoded = self.offsets(first, second)
        return encoded.ids, encoded.token_types

    def encode_parts(self, parts: Iterable[tuple[str, bool]]) -> list[int]:
        """Return the ids of a text that is given in parts, without special tokens around it.

        Control tokens are recognized only in parts marked True. Words may span parts, control tokens never do.
        """
        text = "".join(
            self.control_pattern.sub(lambda found: self._secrets[found[0]], part) if trusted else part
            for part, trusted in parts
        )
        return self.encode_plain(text)

    def offsets(self, text: str, second: str | None = None) -> Encoded:
        """Encode one text or a pair, with special tokens, and return the character span of each token too."""
        encoding = self._encode(text, second)
        return Encoded(self._known(encoding.ids), encoding.offsets, encoding.type_ids, encoding.sequence_ids)

    def offsets_batch(self, texts: Sequence[tuple[str, str | None]]) -> list[Encoded]:
        """Encode many texts or pairs as `offsets` does, in parallel. A single text is given as `(text, None)`."""
        try:
            found = self._inner.encode_batch([first if second is None else (first, second) for first, second in texts])
        except BaseException as error:
            _refuse_others(error)
            raise ValueError(f"{self.where} cannot read one of {len(texts)} texts: {error}") from error
        return [Encoded(self._known(e.ids), e.offsets, e.type_ids, e.sequence_ids) for e in found]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of these ids. Special tokens, and ids outside the vocabulary, are omitted."""
        tokens = [token for token in map(self._decoded.get, ids) if token is not None]
        decoder = self._inner.decoder
        return decoder.decode(tokens) if decoder else " ".join(tokens)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return each id as readable text, for display. Special tokens are included."""
        return [self._readable(index) for index in ids]

    def _encode(self, text: str, second: str | None = None, *, special: bool = True) -> tokenizers.Encoding:
        try:
            return self._inner.encode(text, second, add_special_tokens=special)
        except BaseException as error:
            _refuse_others(error)
            raise ValueError(f"{self.where} cannot read {text[:40]!r}: {error}") from error

    def _readable(self, index: int) -> str:
        token = self._tokens.get(index, f"<{index}>")
        if self._bytes and token not in self._secrets:
            return decoders.ByteLevel().decode([token])  # decoded alone: the full decoder may strip its first space
        return token.replace("\N{LOWER ONE EIGHTH BLOCK}", " ")

    def _role(self, role: str) -> int | None:
        if f"{role}_token" in self.named_tokens:
            return self.id_of(self.named_tokens[f"{role}_token"])
        index = self._generation.get(f"{role}_token_id")
        index = index[0] if isinstance(index, list) and index else index
        return index if type(index) is int and index in self._tokens else None

    def _known(self, ids: list[int]) -> list[int]:
        limit, unknown = self._limit, self.unknown
        if limit is None or unknown is None or max(ids, default=0) < limit:
            return ids
        return [unknown if index >= limit else index for index in ids]

    @staticmethod
    def _around(begin: int | None, end: int | None) -> processors.PostProcessor:
        """Return a post-processor that puts the ids `begin` and `end` around each text; None adds nothing."""
        special = [(name, index) for name, index in (("begin", begin), ("end", end)) if index is not None]

        def around(text: str, number: int) -> list[str]:
            whole = ["begin"] * (begin is not None) + [text] + ["end"] * (end is not None)
            return [f"{piece}:{number}" for piece in whole]

        return processors.TemplateProcessing(
            single=around("$A", 0), pair=around("$A", 0) + around("$B", 1), special_tokens=special
        )


def tokenizer_files(folder: Path, *, target: bool = False) -> dict[str, str]:
    """Return `tokenizer.json` and `tokenizer_config.json`, by name, which load as the tokenizer of `folder`.

    They hold what older files say, and the chat template, too. `target` is as in `PretrainedTokenizer.from_folder`.
    """
    found = _read_sources(folder, target=target)
    config = dict(found.config)
    if found.classic is not None:
        config |= {HIDDEN_PIECES: sorted(found.classic.hidden), PIECE_LIMIT: found.classic.limit}
    return {
        "tokenizer.json": json.dumps(found.contents, ensure_ascii=False),
        "tokenizer_config.json": json.dumps(config, indent=2, ensure_ascii=False),
    }


def _read_sources(folder: Path, *, target: bool) -> _Sources:
    config = read_object(folder / "special_tokens_map.json") | read_object(folder / "tokenizer_config.json")
    if (folder / "chat_template.jinja").is_file():
        config["chat_template"] = read_utf8(folder / "chat_template.jinja")
    model = read_object(folder / "config.json")
    generation = model | read_object(folder / "generation_config.json")
    file = folder / "tokenizer.json"
    if file.is_file():
        return _Sources(read_object(file), config, generation, None, str(file))
    kind = model.get("model_type")
    added = read_object(folder / "added_tokens.json")
    declared = {str(index): {"content": token} for token, index in added.items()}
    try:
        classic = read_classic(folder, config, kind if isinstance(kind, str) else None, target=target)
        declared |= config.get("added_tokens_decoder") or {}
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{folder / 'tokenizer_config.json'} does not describe a tokenizer: {error}") from error
    config = classic.roles | {key: value for key, value in config.items() if value is not None}
    config["added_tokens_decoder"] = declared
    return _Sources(json.loads(classic.inner.to_str()), config, generation, classic, str(folder))


def _refuse_others(error: BaseException) -> None:
    """Re-raise an error such as KeyboardInterrupt, which does not come from the `tokenizers` library.

    The library raises bare Exceptions, and panics, which are BaseExceptions.
    """
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error


def _added_tokens(contents: Mapping[str, Any], config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the added tokens of a `tokenizer.json` and of its config, in id order, as entries of `tokenizer.json`."""
    vocab = contents["model"]["vocab"]
    known = vocab if isinstance(vocab, dict) else {piece: index for index, (piece, _) in enumerate(vocab)}
    added = {token["content"]: dict(token) for token in contents.get("added_tokens") or [] if token["content"]}
    roles = _roles(config)
    special = {*roles.values()}
    for group in _LISTS:
        entries = config.get(group) or []
        special.update(_content(entry) for entry in (entries.values() if isinstance(entries, dict) else entries))
    for index, entry in (config.get("added_tokens_decoder") or {}).items():
        token = _content(entry)
        if token and token not in added:
            flags = entry if isinstance(entry, Mapping) else {}
            added[token] = _added(token, int(index), flags, special=bool(flags.get("special", token in special)))
    for token in special:
        if token in added:
            added[token]["special"] = True
        elif token in known and is_control(token, special=True):
            added[token] = _added(token, known[token], {}, special=True)
    return sorted(added.values(), key=lambda token: token["id"])


def _added(token: str, index: int, flags: Mapping[str, Any], *, special: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {name: bool(flags.get(name, False)) for name in ("single_word", "lstrip", "rstrip")}
    normalized = bool(flags.get("normalized", not special))
    return {"id": index, "content": token, "normalized": normalized, "special": special, **entry}


def _roles(config: Mapping[str, Any]) -> dict[str, str]:
    return {role: token for role in _ROLES if (token := _content(config.get(role)))}


def _content(entry: Any) -> str:
    """Return the token in a config entry, which is a string or an object; "" if there is none."""
    token = entry.get("content") if isinstance(entry, Mapping) else entry
    return token if isinstance(token, str) else ""


def _chat_template(config: Mapping[str, Any]) -> str | None:
    """Return the chat template of a config, or None. Of several named ones, `default` is preferred to the first."""
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, Mapping)}
        found = named.get("default", next(iter(named.values()), None))
    return found if isinstance(found, str) else None
