"""A minimal word tokenizer and vocabulary."""

from collections.abc import Iterable


def simple_tokenizer(text: str) -> list[str]:
    """Split a text at whitespace into lowercase words: "Hello World" -> ["hello", "world"]."""
    return text.lower().split()


class Vocabulary:
    """A mapping between words and ids. The first four ids are special; text never encodes to PAD, BEGIN or END."""

    PAD, UNKNOWN, BEGIN, END = 0, 1, 2, 3
    SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")

    def __init__(self, tokens: Iterable[str]):
        words = sorted(set(tokens) - set(self.SPECIAL))  # sorted, so that the ids depend on the text only
        self.tokens = [*self.SPECIAL, *words]
        self.ids = {token: index for index, token in enumerate(words, start=len(self.SPECIAL))}

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str, *, begin: bool = False, end: bool = False) -> list[int]:
        """Return the ids of a text's words, between BEGIN and END if asked for. An unknown word becomes UNKNOWN."""
        ids = [self.ids.get(token, self.UNKNOWN) for token in simple_tokenizer(text)]
        return [self.BEGIN] * begin + ids + [self.END] * end

    def decode(self, ids: Iterable[int]) -> str:
        """Return the words of these ids up to the first END, without special tokens."""
        words = []
        for index in ids:
            if index == self.END:
                break
            if index >= len(self.SPECIAL):
                words.append(self.tokens[index])
        return " ".join(words)
