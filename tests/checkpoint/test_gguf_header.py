"""Headers of GGUF files: what is wrong with a corrupt one is said before anything else is read."""

import struct

import pytest

from glassformer.checkpoint import CorruptFolderError
from glassformer.checkpoint.gguf_file import read_gguf


def header(*, magic=b"GGUF", version=3, tensors=0, values=0, rest=b""):
    return magic + struct.pack("<IQQ", version, tensors, values) + rest


def text(value):
    return struct.pack("<Q", len(value)) + value


def info(name=b"t", dims=(32,), kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes: expected a GGUF file"),
        (header(magic=b"GGML"), "starts with b'GGML': expected b'GGUF'"),
        (header(version=1), "version 1: expected little-endian, version 2 or 3"),
        (header(version=3 << 24), "expected little-endian"),
        (header(tensors=2**63), "9223372036854775808 tensors: expected at most 65536"),
        (header(values=2**40), "1099511627776 values: expected at most 65536"),
        (header(values=1, rest=text(b"a") + struct.pack("<IIQ", 9, 0, 2**60)), "arrays of 1152921504606846976 items"),
        (header(values=1, rest=text(b"a") + struct.pack("<IIQ", 9, 4, 2**20)), "ends at byte"),
        (header(values=1, rest=text(b"a") + struct.pack("<IIQ", 9, 8, 2**20) + text(b"x")), "ends at byte"),
        (header(values=1, rest=text(b"a") + struct.pack("<IIQ", 9, 8, 1) + text(b"\xff")), "that is not UTF-8"),
        (header(values=1, rest=text(b"a") + struct.pack("<IIQ", 9, 9, 1)), "an array of type 9"),
        (header(values=1, rest=text(b"a") + struct.pack("<I", 77)), "a value of type 77"),
        (header(values=1, rest=struct.pack("<Q", 2**64 - 1)), "ends at byte"),
        (header(values=2, rest=(text(b"a") + struct.pack("<IB", 0, 1)) * 2), "has 'a' twice"),
        (header(values=1, rest=text(b"general.alignment") + struct.pack("<II", 4, 3)), "general.alignment=3"),
        (header(tensors=1, rest=info(dims=())), "in 0 dimensions"),
        (header(tensors=1, rest=text(b"t") + struct.pack("<I", 2**31)), "2147483648 dimensions"),
        (header(tensors=2, rest=info() * 2), "has 't' twice"),
        (header(tensors=1, rest=info(kind=4)), "stored in 4: expected a known type"),
        (header(tensors=1, rest=info(kind=8, dims=(31,))), "expected rows of 32 in a block"),
        (header(tensors=1, rest=info(dims=(2**63, 2**63))), "expected a separate range"),
        (header(tensors=1, rest=info(offset=2**60)), "expected a separate range"),
        (header(tensors=2, rest=info() + info(b"u") + bytes(256)), "expected a separate range"),
    ],
)
def test_a_corrupt_header_is_refused(tmp_path, content, message):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_gguf(path)
    assert isinstance(caught.value, CorruptFolderError) or "version" in message or "endian" in message
    assert str(path) in str(caught.value)


def test_an_endless_header_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "model.gguf"
    with path.open("wb") as stream:
        stream.write(header(values=1, rest=text(b"a") + struct.pack("<IQ", 8, 2**27)))
        stream.truncate(2**28)  # a sparse file
    with pytest.raises(CorruptFolderError, match="expected at most 67108864"):
        read_gguf(path)
