"""Tokenizers trained with the `tokenizers` library and saved as `tokenizer.json`.

A tokenizer splits text into tokens and gives each an id. Byte-pair encoding (BPE), the usual kind, starts with the
bytes of the training text and merges the most frequent pair of neighbors into a new token until the vocabulary is full.
Frequent words become one token, rare ones several.

The special tokens `<pad>`, `<s>` (BEGIN), `</s>` (END) and `<unk>` have the ids 0 to 3. `</s>` typed by a user is
encoded as plain text, not as a special token. All kinds except characters work on bytes, so that no text is unknown.
Decoding then returns the encoded text, except that `lowercase` loses the case, and that `prefix_space` loses one space
of a text that starts with a space. A tokenizer of characters encodes a character outside its vocabulary as `<unk>`,
which decoding omits.

>>> tokenizer = Tokenizer.train(["low lower lowest"] * 10, vocab_size=270)
>>> tokenizer.tokens(tokenizer.encode("lower lowly"))
[' lower', ' low', 'l', 'y']
>>> tokenizer.decode(tokenizer.encode("</s> is text"))
'</s> is text'
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from glassformer.base.fields import Checked, Count, Range
from glassformer.progress import track
from glassformer.text import long_texts
from glassformer.text.encoded import Encoded
from glassformer.text.external_vocabulary import read_tokenizer_file, renumber

PAD, BEGIN, END, UNKNOWN = 0, 1, 2, 3
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")


@dataclass(frozen=True)
class TokenizerConfig(Checked):
    """How a tokenizer is trained."""

    tokenizer_file: str | None = None
    """Use the vocabulary of this tokenizer instead of training one: a tokenizer.json, a SentencePiece model, or a
    folder of Hugging Face; texts are split as before, with other ids."""
    kind: Literal["bpe", "unigram", "bytes", "characters"] = "bpe"
    """Kind of tokenizer: byte-pair merges (Sennrich et al. 2016), a unigram language model (Kudo 2018), single bytes,
    or the characters of the training text."""
    prefix_space: bool = True
    """Start every text with a space, so that a word has the same token at the start of a text and inside it."""
    lowercase: bool = False
    """Lower-case all texts; decoding cannot undo it."""
    bpe_dropout: Annotated[float, Range("a probability, from 0 to 1", 0, 1)] = 0.0
    """Probability that a merge is skipped in the training text (BPE-dropout, Provilkov et al. 2020); 0.1 is usual."""
    bpe_versions: Count = 8
    """Number of different versions of the training text with BPE-dropout or swapped entities, one per epoch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bpe_dropout and self.kind != "bpe":
            raise ValueError(
                f"bpe_dropout={self.bpe_dropout} with kind={self.kind!r}: expected 'bpe', whose merges it skips"
            )


class Tokenizer:
    """Encodes text to token ids and decodes ids to text."""

    def __init__(self, inner: tokenizers.Tokenizer):
        for token, wanted in zip(SPECIAL, (PAD, BEGIN, END, UNKNOWN), strict=True):
            if inner.token_to_id(token) != wanted:
                raise ValueError(f"the tokenizer has {token} at {inner.token_to_id(token)}: expected id {wanted}")
        vocab = inner.get_vocab(with_added_tokens=True)
        last = max(vocab, key=vocab.__getitem__)
        if vocab[last] >= len(vocab):  # the library serializes id by id and would not finish
            raise ValueError(f"the tokenizer has {last[:40]!r} at {vocab[last]}: expected ids below {len(vocab)}")
        # not stored in the file, so set after loading too
        inner.encode_special_tokens = True
        self._inner = inner
        self._texts = long_texts.TextEncoder(inner)
        added = inner.get_added_tokens_decoder()
        self._special = {index: token.content for index, token in added.items() if token.special}
        first = inner.pre_tokenizer
        self._prefix = " " if getattr(first, "add_prefix_space", False) else ""
        # A dictionary look-up takes a tenth of the library's time.
        of_characters = isinstance(inner.model, models.WordLevel) and isinstance(first, pre_tokenizers.Split)
        self._characters = inner.get_vocab(with_added_tokens=False) if of_characters else None

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int,
        config: TokenizerConfig | None = None,
        *,
        more_special: Sequence[str] = (),
    ) -> "Tokenizer":
        """Train a tokenizer on `texts`, with at most `vocab_size` tokens.

        `more_special` are special tokens in addition to the four fixed ones. If the config names a `tokenizer_file`,
        the vocabulary of that file is used whatever its size, and the texts are not read.
        """
        config = config or TokenizerConfig()
        special = [*SPECIAL, *more_special]
        if config.tokenizer_file is not None:
            contents = read_tokenizer_file(Path(config.tokenizer_file))
            text = renumber(contents, special, unknown=SPECIAL[UNKNOWN], where=config.tokenizer_file)
            return cls.from_json(text, where=config.tokenizer_file)
        texts = track(texts, "training the tokenizer")
        if config.kind == "characters":
            return cls(_of_characters(texts, special, vocab_size, lowercase=config.lowercase))
        smallest = len(special) + 256
        if vocab_size < smallest:
            raise ValueError(
                f"vocab_size={vocab_size}: expected at least {smallest}, "
                f"for {len(special)} special tokens and 256 bytes"
            )
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: trainers.BpeTrainer | trainers.UnigramTrainer
        if config.kind == "unigram":
            inner = tokenizers.Tokenizer(models.Unigram())
            trainer = trainers.UnigramTrainer(
                vocab_size=vocab_size,
                special_tokens=special,
                initial_alphabet=alphabet,
                unk_token=SPECIAL[UNKNOWN],
                show_progress=False,
            )
        else:
            inner = tokenizers.Tokenizer(models.BPE())
            size = vocab_size if config.kind == "bpe" else smallest  # so no merges are learned
            trainer = trainers.BpeTrainer(
                vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
            )
        if config.lowercase:
            inner.normalizer = tokenizers.normalizers.Lowercase()
        # A leading space makes a word the same token wherever it stands in the text. Runs of spaces and line breaks are
        # separate pieces, so that indentation becomes few tokens.
        prefix_space = config.prefix_space and config.kind != "bytes"
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
        inner.decoder = decoders.ByteLevel()
        inner.train_from_iterator(texts if config.kind != "bytes" else (), trainer)
        return cls(inner)

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens, special ones included."""
        return self._inner.get_vocab_size()

    @property
    def kind(self) -> str:
        """Return the kind of tokenizer: "characters", "bytes", or the model's class, "BPE" or "Unigram"."""
        if self.is_of_characters:
            return "characters"
        n_pieces = self.vocab_size - len(self._special)
        return "bytes" if n_pieces <= 256 else type(self._inner.model).__name__

    @property
    def special_ids(self) -> frozenset[int]:
        """Return the ids of special tokens. Text encodes to none of them, except an unknown character to UNKNOWN."""
        return frozenset(self._special)

    def has_special(self, name: str) -> bool:
        """Return whether there is a special token with this text, such as `</s>`."""
        return name in self._special.values()

    @property
    def is_of_characters(self) -> bool:
        """Return whether each token except the special ones is a single character."""
        return self._characters is not None

    @property
    def begin(self) -> int | None:
        """Return the id from which generation starts: END, which separates the documents of training data."""
        return END

    @property
    def end(self) -> int | None:
        """Return the id that ends a text, END."""
        return END

    @property
    def ends(self) -> tuple[int, ...]:
        """Return all ids that end a text: END only."""
        return (END,)

    @property
    def pad(self) -> int | None:
        """Return the id of padding, PAD."""
        return PAD

    @property
    def unknown(self) -> int | None:
        """Return the id of unknown characters, UNKNOWN."""
        return UNKNOWN

    @property
    def chat_template(self) -> str | None:
        """Return None: our tokenizers have no chat template."""
        return None

    def special_id(self, name: str) -> int:
        """Return the id of the special token with this text, such as `</s>`. Raises ValueError if there is none."""
        for index, content in self._special.items():
            if content == name:
                return index
        raise ValueError(f"the tokenizer has no special token {name!r}: expected one of {[*self._special.values()]}")

    def normalize(self, text: str) -> str:
        """Return the text that is split into tokens: lower-cased if trained with `lowercase`, else unchanged."""
        return text if self._inner.normalizer is None else self._inner.normalizer.normalize_str(text)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without BEGIN and END."""
        if self._characters is not None:
            return [self._characters.get(character, UNKNOWN) for character in self.normalize(text)]
        if len(text) >= long_texts.LONG_TEXT:
            return self.encode_batch([text])[0]
        return self._inner.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, like `encode`. All kinds except characters do so in parallel."""
        if self._characters is not None:
            return [self.encode(text) for text in texts]
        return self._texts.encode(texts, special=False)

    def encode_plain(self, text: str) -> list[int]:
        """Return what `encode` does; the tokenizer of a pretrained model may put special tokens around a text there."""
        return self.encode(text)

    def encode_plain_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return what `encode_batch` does."""
        return self.encode_batch(texts)

    def offsets_batch(self, texts: Sequence[tuple[str, str | None]]) -> list[Encoded]:
        """Encode single texts (the second is None) or pairs of texts, with END after each text.

        The result also holds, for each token, the number of its text (0 or 1) and its character span in that text.
        """
        flat = [part for pair in texts for part in pair if part is not None]
        encodings = iter(self._inner.encode_batch(flat, add_special_tokens=False))
        found = []
        for pair in texts:
            whole = Encoded([], [], [], [])
            for number, part in enumerate(pair):
                if part is not None:
                    encoding = next(encodings)
                    whole.ids.extend([*encoding.ids, END])
                    whole.spans.extend([*encoding.offsets, (0, 0)])
                    whole.token_types.extend([number] * (len(encoding.ids) + 1))
                    whole.sources.extend([*[number] * len(encoding.ids), None])
            found.append(whole)
        return found

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids without special tokens, and without the space that `prefix_space` adds."""
        kept = [index for index in ids if index not in self._special]
        # Remove the space that encoding put before the text.
        return self._inner.decode(kept, skip_special_tokens=False).removeprefix(self._prefix)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the text of each token, for display. A space before a word belongs to the word's first token.

        Bytes that are not a whole character are shown as U+FFFD, the replacement character.
        """
        return [self._special.get(i) or self._inner.decode([i], skip_special_tokens=False) for i in ids]

    def to_json(self) -> str:
        """Return the tokenizer as the contents of a `tokenizer.json`."""
        return self._inner.to_str(pretty=True)

    @classmethod
    def from_json(cls, text: str, *, where: str = "tokenizer.json") -> "Tokenizer":
        """Load a tokenizer from the contents of a `tokenizer.json`. `where` names their source in errors.

        Raises ValueError if they are not a tokenizer with Glassformer's four special tokens.
        """
        try:
            return cls(tokenizers.Tokenizer.from_str(text))
        except BaseException as error:  # the library raises bare Exceptions, and panics that are none
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise ValueError(f"{where} is not a tokenizer: {str(error)[:300]}") from error

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """Load a tokenizer from the file `path`, a `tokenizer.json` with Glassformer's four special tokens."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text: {error}") from error
        return cls.from_json(text, where=str(path))


def _of_characters(
    texts: Iterable[str], special: list[str], vocab_size: int, *, lowercase: bool
) -> tokenizers.Tokenizer:
    """Build a tokenizer of the characters in `texts`: the most frequent ones if not all fit into `vocab_size`."""
    found = Counter[str]()
    # The normalizer lower-cases single characters; str.lower() handles a final sigma differently.
    normalizer = tokenizers.normalizers.Lowercase() if lowercase else None
    for text in texts:
        found.update(text if normalizer is None else normalizer.normalize_str(text))
    room = vocab_size - len(special)
    if room < 1:
        raise ValueError(f"vocab_size={vocab_size}: expected more than the {len(special)} special tokens")
    # The most frequent characters if not all fit, sorted so that their order in the text has no effect.
    kept = sorted(sorted(found, key=lambda character: (-found[character], character))[:room])
    vocab = {token: index for index, token in enumerate([*special, *kept])}
    inner = tokenizers.Tokenizer(models.WordLevel(vocab=vocab, unk_token=SPECIAL[UNKNOWN]))
    inner.add_special_tokens(special)
    if normalizer is not None:
        inner.normalizer = normalizer
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    return inner
