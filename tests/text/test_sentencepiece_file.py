import base64
import json
import random
import struct
import time
import zlib
from itertools import pairwise

import pytest
import transformers
from hypothesis import example, given
from hypothesis import strategies as st

from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from glassformer.text.sentencepiece_file import (
    LONGEST_PIECE,
    Kind,
    build_tokenizer,
    parse_sentencepiece,
    read_sentencepiece,
)
from text.spm_files import MERGES, SPECIAL, UNIGRAM, field, file_of, message, varint

BYTES = [(f"<0x{byte:02X}>", 0.0, Kind.BYTE) for byte in range(256)]
RNG = random.Random(0)
WORDS = [
    "▁",
    *"abc",
    "▁a",
    "▁b",
    "ab",
    "bc",
    "ca",
    "aa",
    "abc",
    "▁ab",
    "bca",
    "c▁",
    "cab",
    "▁abc",
    "</",
    "s>",
    *"</s>x0A",
]
# Random scores, so that no two cuts are equally good.
NORMAL = [(word, -RNG.uniform(2, 4) * len(word) ** 0.5, Kind.NORMAL) for word in WORDS]
# A for b and a thin space for a space: the rules that SentencePiece compiled from `41 62`, `2009 20`, two more beside.
CHARSMAP = (
    "eNod01WslkcQANCPG8oDAYpTKG7BWtz14u4U1wLF3fXiri0uLQSX4O5QKFLc3d3d5fxscjKTmYfNzu4GkQMrUhAePQikEc2TBEEUMSJdWDDih1Av"
    "iNgaERbM0Q+TR1WQBtH4kRjEIiZxiE084pKA+CTkJ34mEbYIEpOMpKQgOalISRpS0zxapCCtmJ50ZCQDv5CJzPxKVrKQnWzkJAe5yUVe8pCffBSk"
    "AIUpRDhFKEZRSlCcUpSkDKUpR1kqUJ5KVKQKlalGVWpQnZr8Rm1qUZc61KceDWlAYxrxO01oRlP+CM2AlrSgNa1oSxva046OdKAznehKF7rTjZ70"
    "oDe96Esf+tOPAaFLZhADGcJghjGUEQxnFCMZw2jGMZYJjOdPJjKJv5jCZKYxlRlMZxYz+ZvZzOEfbijOFeczj4UsYDGLWMoSlrOMFTw1iFXiStaw"
    "mnWsZQPr2cRGtrCZbWxlB9vZxU72sJu9/Mt/7OMA+znEQQ7zP0c5wnGOcZITnOYUZznDec5xkQtc5hJXucJ1rnEzNANuc4u73OE+93jIAx7zKHR2"
    "nvCcZ7zkBa95xVve8J53fOQDn/nEV758/3vh3l2P4Bu+cohe"
)


def cut(pieces, kind, text, **options):
    model = parse_sentencepiece(file_of(pieces, kind, **options))
    return build_tokenizer(model).encode(text, add_special_tokens=False).tokens


def marked(text):
    """A text as SentencePiece sees it: single spaces, one in front, all of them marked."""
    text = " ".join(part for part in text.split(" ") if part)
    return "▁" + text.replace(" ", "▁") if text else ""


def best_cut(text, scores):
    """The cut of the highest score, among all; what is not in the vocabulary costs 10 more than the worst piece."""
    unknown = min(scores.values()) - 10
    best = [(0.0, [])]
    for end in range(1, len(text) + 1):
        ways = []
        for start in range(end):
            piece = text[start:end]
            if piece in scores or len(piece) == 1:
                score, pieces = best[start]
                ways.append((score + scores.get(piece, unknown), [*pieces, piece]))
        best.append(max(ways, key=lambda way: way[0]))
    return best[-1][1]


def best_neighbours(text, scores):
    """Join the two neighbours that make the best-scored piece, the leftmost first, until none do."""
    symbols = list(text)
    while joins := [(-scores[a + b], at) for at, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]:
        at = min(joins)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    return symbols


def fused(pieces, scores):
    """Neighbours outside the vocabulary are one unknown piece."""
    out = []
    for piece in pieces:
        if piece in scores or not out or out[-1] in scores:
            out.append(piece)
        else:
            out[-1] += piece
    return out


TOKENIZERS = {
    kind: PretrainedTokenizer(
        json.loads(build_tokenizer(parse_sentencepiece(file_of(SPECIAL + NORMAL, kind))).to_str())
    )
    for kind in (UNIGRAM, MERGES)
}


@pytest.mark.parametrize(("kind", "rule"), [(UNIGRAM, best_cut), (MERGES, best_neighbours)])
@given(text=st.text(alphabet="abc xyé</s>0A", max_size=14))
@example(text="  a  b ")
@example(text="<s>ab</s> <unk> <0x0A>")
@example(text="")
def test_texts_are_segmented_by_the_models_rule(kind, rule, text):
    scores = {word: struct.unpack("<f", struct.pack("<f", score))[0] for word, score, _ in NORMAL}
    tokenizer = TOKENIZERS[kind]
    expected = [piece if piece in scores else "<unk>" for piece in fused(rule(marked(text), scores), scores)]
    assert [tokenizer.tokens([index])[0] for index in tokenizer.encode_plain(text)] == [
        piece.replace("▁", " ") for piece in expected
    ]


WITH_BYTES = {
    kind: build_tokenizer(parse_sentencepiece(file_of(SPECIAL + BYTES + NORMAL, kind, rules={4: 0}, trainer={35: 1})))
    for kind in (UNIGRAM, MERGES)
}


@pytest.mark.parametrize("kind", [UNIGRAM, MERGES])
@given(text=st.text(max_size=30).filter(lambda text: "▁" not in text and "\x00" not in text))
@example(text="<0x41> </s>")
def test_byte_fallback_round_trips_any_text(kind, text):
    tokenizer = WITH_BYTES[kind]
    tokenizer.encode_special_tokens = True
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_known_fields_are_read_and_unknown_fields_skipped(tmp_path):
    pieces = [*SPECIAL, ("<pad>", 0.0, Kind.CONTROL), ("<tag>", 0.0, Kind.USER_DEFINED), ("a", -1.5, Kind.NORMAL)]
    data = file_of(pieces, MERGES, rules={3: 0, 4: 0}, trainer={35: 1, 43: 3, 42: -1, 99: b"?"}) + field(4, b"more")
    data += varint(77 << 3 | 1) + bytes(8)
    (tmp_path / "x.model").write_bytes(data)
    model = read_sentencepiece(tmp_path / "x.model")
    assert [(piece.text, piece.score, piece.kind) for piece in model.pieces] == pieces
    assert (model.is_unigram, model.byte_fallback, model.unknown, model.normalizer) == (False, True, 0, "identity")
    assert (model.begin, model.end, model.pad) == (1, None, 3)
    assert (model.add_dummy_prefix, model.remove_extra_whitespaces, model.charsmap) == (False, False, b"")


def test_the_leading_space_and_the_extra_ones_are_the_models_choice():
    assert cut(SPECIAL + NORMAL, MERGES, " a  b", rules={4: 1}) == ["▁a", "▁b"]
    assert cut(SPECIAL + NORMAL, MERGES, " a  b", rules={4: 0}) == ["▁", "▁a", "▁", "▁b"]
    assert cut(SPECIAL + NORMAL, MERGES, "a b", rules={3: 0}) == ["a", "▁b"]


def test_a_users_own_symbols_stay_whole():
    pieces = [*SPECIAL, ("abab", 0.0, Kind.USER_DEFINED), ("▁▁", 0.0, Kind.USER_DEFINED), *NORMAL]
    assert cut(pieces, UNIGRAM, "ababc", rules={3: 0}) == ["abab", "c"]
    assert cut(pieces, MERGES, "a  c", rules={3: 0, 4: 0}) == ["a", "▁▁", "c"]


def test_character_rules_come_first():
    rules = {2: zlib.decompress(base64.b64decode(CHARSMAP))}
    assert cut(SPECIAL + NORMAL, MERGES, "aA\u2009c", rules=rules) == cut(SPECIAL + NORMAL, MERGES, "ab c")
    with pytest.raises(ValueError, match="its character rules 'identity' cannot be read"):
        cut(SPECIAL + NORMAL, MERGES, "a", rules={2: b"rubbish"})


def test_merges_are_those_of_hf():
    pieces = SPECIAL + BYTES + NORMAL
    vocab = {text: index for index, (text, _, _) in enumerate(pieces)}
    merges = transformers.tokenization_utils_base.generate_merges(vocab, {text: score for text, score, _ in NORMAL})
    peer = transformers.LlamaTokenizer(vocab=vocab, merges=merges)
    for text in ["abc", "cab bca", "aabbcc a b c", "xyz é", "c  a"]:
        expected = peer.encode(text, add_special_tokens=False)
        model = parse_sentencepiece(file_of(pieces, MERGES, rules={4: 0}, trainer={35: 1}))
        assert build_tokenizer(model).encode(text, add_special_tokens=False).ids == expected, text


BAD = {
    "it has no pieces": b"",
    "two of its pieces are the same": file_of([*SPECIAL, ("a", 0, 1), ("a", 0, 1)], UNIGRAM),
    "0 unknown pieces: expected one": file_of(SPECIAL[1:], UNIGRAM),
    "2 unknown pieces: expected one": file_of([*SPECIAL, ("<u>", 0.0, Kind.UNKNOWN)], UNIGRAM),
    r"model type 3: expected 1 \(unigram\) or 2 \(byte-pair merges\)": file_of(SPECIAL, 3),
    "piece 3, 'a', has the type 9: expected 1 to 6": file_of([*SPECIAL, ("a", 0, 9)], UNIGRAM),
    "piece 3, 'a', has the score nan": file_of([*SPECIAL, ("a", float("nan"), 1)], UNIGRAM),
    f"piece 3 has 513 characters: expected at most {LONGEST_PIECE}": file_of([*SPECIAL, ("a" * 513, 0, 1)], UNIGRAM),
    "treat_whitespace_as_suffix": file_of(SPECIAL, UNIGRAM, trainer={24: 1}),
    "escape_whitespaces=false": file_of(SPECIAL, UNIGRAM, rules={5: 0}),
    "wire type 3 at byte 0: expected 0, 1, 2 or 5": bytes([0x0B]),
    "the field at byte 0 wants 100 bytes: 1 are left": bytes([0x0A, 100, 0]),
    "it ends in the middle of a number": bytes([0x80]),
    "a number longer than 64 bits": bytes([0xFF] * 11),
    "a field holds the number 5: expected bytes": field(1, 5),
    "a field holds 2 bytes: expected a number": file_of(SPECIAL, UNIGRAM) + field(2, message({3: b"xx"})),
}


@pytest.mark.parametrize("why", BAD)
def test_bad_files_are_named_with_their_fault(tmp_path, why):
    (tmp_path / "tokenizer.model").write_bytes(BAD[why])
    with pytest.raises(ValueError, match=rf"tokenizer\.model is not a SentencePiece model: .*{why}"):
        read_sentencepiece(tmp_path / "tokenizer.model")


def test_corrupted_files_load_or_are_refused_quickly(tmp_path):
    rng = random.Random(0)
    wholes = [file_of(SPECIAL + NORMAL, kind, rules={4: 0}, trainer={35: 1}) for kind in (UNIGRAM, MERGES)]
    read = 0
    for _ in range(250):
        data = bytearray(rng.choice(wholes))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)) :]
        (tmp_path / "tokenizer.model").write_bytes(data)
        start = time.thread_time()
        try:
            tokenizer = PretrainedTokenizer.from_folder(tmp_path)
            tokenizer.decode(tokenizer.encode("ab <s> é"))
            read += 1
        except ValueError:
            pass
        assert time.thread_time() - start < 1
    assert 20 < read < 230
