"""Read SentencePiece models without the `sentencepiece` library, and convert them to `tokenizers` tokenizers.

The files are protobuf messages. A message is a sequence of fields; a field is a key, `number << 3 | wire type`, and a
value. Fields that do not affect the segmentation are skipped.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""SentencePiece's character for a space."""
LONGEST_PIECE = 512
"""Maximum length of a piece in characters, because trying all its splits costs the square of its length."""

_Value = int | bytes


class Kind(IntEnum):
    """The type of a piece, numbered as in the file format."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Piece:
    """A vocabulary entry of a SentencePiece model."""

    text: str
    score: float
    """Log probability in a unigram model. In a BPE model, pieces with higher scores are merged first."""
    kind: Kind


@dataclass(frozen=True)
class SentencePieceModel:
    """The parts of a SentencePiece file that decide how a text is segmented."""

    pieces: tuple[Piece, ...]
    """Pieces in id order."""
    is_unigram: bool
    """Whether this is a unigram model; otherwise it is a BPE model."""
    unknown: int
    """The id of the unknown piece."""
    begin: int | None
    end: int | None
    pad: int | None
    byte_fallback: bool
    """Whether characters outside the vocabulary are encoded as UTF-8 bytes."""
    add_dummy_prefix: bool
    """Whether a space is put before every text, so that a word has the same piece everywhere."""
    remove_extra_whitespaces: bool
    normalizer: str
    """Name of the normalization rules in `charsmap`."""
    charsmap: bytes
    """Compiled normalization rules; empty if there are none."""

    def token(self, index: int | None) -> str | None:
        """Return the text of the piece with this id, or None if the id is None."""
        return None if index is None else self.pieces[index].text


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Read a `tokenizer.model`, `spiece.model` or `.spm` file."""
    return parse_sentencepiece(path.read_bytes(), where=str(path))


def parse_sentencepiece(data: bytes, *, where: str = "tokenizer.model") -> SentencePieceModel:
    """Parse the contents of a SentencePiece file. `where` names the source in errors."""
    try:
        return _model(data)
    except (ValueError, IndexError, struct.error) as error:
        raise ValueError(f"{where} is not a SentencePiece model: {error}") from error


def build_tokenizer(
    model: SentencePieceModel,
    vocab: Sequence[tuple[str, float]] | None = None,
    *,
    unknown: int | None = None,
    prefix_everywhere: bool = True,
) -> tokenizers.Tokenizer:
    """Build a tokenizer that segments texts as the SentencePiece model does.

    `vocab` (pieces and scores in id order) and `unknown` (the id of the unknown piece) are for unigram models whose ids
    are defined in another file. If the model puts a space before every text, the tokenizer does so too, and also puts
    one after each special token unless `prefix_everywhere` is False.
    """
    if model.is_unigram:
        entries = [(piece.text, piece.score) for piece in model.pieces] if vocab is None else list(vocab)
        unknown = model.unknown if unknown is None else unknown
        inner = tokenizers.Tokenizer(models.Unigram(entries, unknown, model.byte_fallback))
    else:
        inner = tokenizers.Tokenizer(
            models.BPE(
                vocab={piece.text: index for index, piece in enumerate(model.pieces)},
                merges=_merges(model.pieces),
                unk_token=model.token(model.unknown),
                fuse_unk=True,
                byte_fallback=model.byte_fallback,
            )
        )
    prefix_first = model.add_dummy_prefix and not prefix_everywhere
    inner.normalizer = normalizers.Sequence(_normalizers(model, prefix=model.add_dummy_prefix and prefix_everywhere))
    cutters: list[pre_tokenizers.PreTokenizer] = []
    if prefix_first:
        cutters.append(pre_tokenizers.Metaspace(prepend_scheme="first", split=False))
    if model.is_unigram and model.byte_fallback:
        # Otherwise the library would read the text "<0x0A>" as the piece of that byte.
        cutters.append(pre_tokenizers.Split(Regex("<(?=0x[0-9A-F]{2}>)"), "merged_with_previous"))
    if cutters:
        inner.pre_tokenizer = pre_tokenizers.Sequence(cutters)
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.add_dummy_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    inner.decoder = decoders.Sequence(steps)
    inner.add_special_tokens(
        [piece.text for piece in model.pieces if piece.kind in (Kind.CONTROL, Kind.UNKNOWN) and piece.text]
    )
    inner.add_tokens(
        [
            # Pieces that contain the space mark are matched after spaces have become marks.
            tokenizers.AddedToken(piece.text, normalized=SPACE in piece.text, special=False)
            for piece in model.pieces
            if piece.kind == Kind.USER_DEFINED and piece.text
        ]
    )
    return inner


def _normalizers(model: SentencePieceModel, *, prefix: bool) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        try:
            steps.append(normalizers.Precompiled(model.charsmap))
        except Exception as error:  # the library raises bare Exceptions
            raise ValueError(f"its character rules {model.normalizer!r} cannot be read: {error}") from error
    if model.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if prefix:
        steps.append(normalizers.Prepend(SPACE))
    return [*steps, normalizers.Replace(" ", SPACE)]


def _merges(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """Return the merges of a SentencePiece BPE model, best first.

    The file has no merges. At each step, SentencePiece merges the two neighbors that together form the piece with the
    best score. So every split of a piece into two pieces is a merge, ranked by the score of the whole piece.
    """
    # Only pieces of these types take part in merges.
    ranks = {piece.text: index for index, piece in enumerate(pieces) if piece.kind in (Kind.NORMAL, Kind.UNUSED)}
    found = [
        (-pieces[index].score, index, cut, whole)
        for whole, index in ranks.items()
        for cut in range(1, len(whole))
        if whole[:cut] in ranks and whole[cut:] in ranks
    ]
    return [(whole[:cut], whole[cut:]) for _, _, cut, whole in sorted(found)]


def _model(data: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    trainer: dict[int, _Value] = {}
    rules: dict[int, _Value] = {}
    for number, value in _fields(data):
        if number == 1:
            pieces.append(_piece(_bytes(value), len(pieces)))
        elif number == 2:
            trainer |= dict(_fields(_bytes(value)))
        elif number == 3:
            rules |= dict(_fields(_bytes(value)))
    if not pieces:
        raise ValueError("it has no pieces")
    if len({piece.text for piece in pieces}) != len(pieces):
        raise ValueError("two of its pieces are the same")
    kind = _int(trainer.get(3, 1))
    if kind not in (1, 2):
        raise ValueError(f"model type {kind}: expected 1 (unigram) or 2 (byte-pair merges)")
    if trainer.get(24):
        raise ValueError("it writes the space after a word (treat_whitespace_as_suffix): expected before")
    if not rules.get(5, 1):
        raise ValueError("it keeps spaces as they are (escape_whitespaces=false): expected them to be marked")
    unknown = [index for index, piece in enumerate(pieces) if piece.kind == Kind.UNKNOWN]
    if len(unknown) != 1:
        raise ValueError(f"{len(unknown)} unknown pieces: expected one")

    def named(field: int, default: int) -> int | None:
        index = _int(trainer.get(field, default))
        index -= 1 << 64 if index >> 63 else 0  # negative numbers are stored as 64 bits
        is_there = 0 <= index < len(pieces) and pieces[index].kind == Kind.CONTROL
        return index if is_there else None

    return SentencePieceModel(
        pieces=tuple(pieces),
        is_unigram=kind == 1,
        unknown=unknown[0],
        begin=named(41, 1),
        end=named(42, 2),
        pad=named(43, -1 & (1 << 64) - 1),
        byte_fallback=bool(trainer.get(35, 0)),
        add_dummy_prefix=bool(rules.get(3, 1)),
        remove_extra_whitespaces=bool(rules.get(4, 1)),
        normalizer=_bytes(rules.get(1, b"")).decode("utf-8"),
        charsmap=_bytes(rules.get(2, b"")),
    )


def _piece(data: bytes, index: int) -> Piece:
    fields = dict(_fields(data))
    text = _bytes(fields.get(1, b"")).decode("utf-8")
    (score,) = struct.unpack("<f", _bytes(fields.get(2, bytes(4))))
    kind = _int(fields.get(3, 1))
    if len(text) > LONGEST_PIECE:
        raise ValueError(f"piece {index} has {len(text)} characters: expected at most {LONGEST_PIECE}")
    if not math.isfinite(score):
        raise ValueError(f"piece {index}, {text!r}, has the score {score}: expected a number")
    if not 1 <= kind <= 6:
        raise ValueError(f"piece {index}, {text!r}, has the type {kind}: expected 1 to 6")
    return Piece(text, score, Kind(kind))


def _fields(data: bytes) -> Iterator[tuple[int, _Value]]:
    """Yield number and value of each field of a protobuf message: varints as integers, everything else as bytes."""
    at = 0
    while at < len(data):
        start = at
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} at byte {start}: expected 0, 1, 2 or 5")
        if size > len(data) - at:
            raise ValueError(f"the field at byte {start} wants {size} bytes: {len(data) - at} are left")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode the varint at position `at`: seven bits per byte, lowest first. Returns it and the next position."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("it ends in the middle of a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"a number longer than 64 bits before byte {at}")


def _bytes(value: _Value) -> bytes:
    if isinstance(value, int):
        raise ValueError(f"a field holds the number {value}: expected bytes")
    return value


def _int(value: _Value) -> int:
    if isinstance(value, bytes):
        raise ValueError(f"a field holds {len(value)} bytes: expected a number")
    return value
