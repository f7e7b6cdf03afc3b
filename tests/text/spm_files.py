"""Write SentencePiece files field by field."""

import struct

from glassformer.text.sentencepiece_file import Kind

UNIGRAM, MERGES = 1, 2
SPECIAL = [("<unk>", 0.0, Kind.UNKNOWN), ("<s>", 0.0, Kind.CONTROL), ("</s>", 0.0, Kind.CONTROL)]


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number, value):
    """One protobuf field: a whole number, a 32-bit float or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(fields):
    return b"".join(field(number, value) for number, value in fields.items())


def file_of(pieces, kind, rules=None, trainer=None):
    """A SentencePiece file; rules: 3 the space in front, 4 extra spaces removed; trainer: 35 bytes for the unknown."""
    parts = [field(1, message({1: text.encode(), 2: float(score), 3: int(role)})) for text, score, role in pieces]
    trainer = message({3: kind, 43: -1, **(trainer or {})})
    return b"".join(parts) + field(2, trainer) + field(3, message({1: b"identity", **(rules or {})}))
