"""From text to numbers and back, in the simplest way that works: words, and a list of them."""

from collections.abc import Iterable


def simple_tokenizer(text: str) -> list[str]:
    """Lower-cased words: "Hello Transformer world" -> ["hello", "transformer", "world"]."""
    return text.lower().split()


class Vocabulary:
    """Every known token and its number. The first four are special and never come out of a text."""

    PAD, UNKNOWN, BEGIN, END = 0, 1, 2, 3
    SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")

    def __init__(self, tokens: Iterable[str]):
        words = sorted(set(tokens) - set(self.SPECIAL))  # sorted, so that the same text gives the same numbers
        self.tokens = [*self.SPECIAL, *words]
        self.ids = {token: index for index, token in enumerate(words, start=len(self.SPECIAL))}

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str, *, begin: bool = False, end: bool = False) -> list[int]:
        """The numbers of the words of a text; a word never seen becomes UNKNOWN."""
        ids = [self.ids.get(token, self.UNKNOWN) for token in simple_tokenizer(text)]
        return [self.BEGIN] * begin + ids + [self.END] * end

    def decode(self, ids: Iterable[int]) -> str:
        """The words of these numbers, up to the first END, without special tokens."""
        words = []
        for index in ids:
            if index == self.END:
                break
            if index >= len(self.SPECIAL):
                words.append(self.tokens[index])
        return " ".join(words)
