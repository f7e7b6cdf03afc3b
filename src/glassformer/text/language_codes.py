"""Language codes of multilingual translation models: tokens beside a text that name its language.

mBART-50, NLLB and M2M100 have the code before a text and the end token behind it; mBART has the end token and then the
code behind a text.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from glassformer.text.pretrained_tokenizers import PretrainedTokenizer

CODE = re.compile(r"__[a-z]{2,3}__|[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")
"""The form of a code: `__de__` (M2M100), `de_DE` (mBART) or `deu_Latn` (NLLB)."""
SCRIPT = re.compile("[A-Z][a-z]{3}")
"""The form of a script's name, such as `Latn` or `Cyrl`."""
SHOWN = 20
"""How many codes an error message lists."""


class LanguageLayout(NamedTuple):
    """The language codes of a tokenizer, and where it puts them."""

    codes: Mapping[str, int]
    """The ids of the codes."""
    is_before: bool
    """Whether the code is before a text. Otherwise it is behind the end token."""
    end: tuple[str, int]
    """The end token and its id."""

    def find(self, language: str, option: str) -> str:
        """Return the code of a language: that code itself, or the only one of `language`, such as `de_DE` of "de".

        Raises ValueError for a language without code, or with a code of another script; `option` is the option that
        gave it.
        """
        if language in self.codes:
            return language
        if not language:
            raise ValueError(f"{option} '': the model has codes of languages: expected one of {self.listed()}")
        name, *parts = re.split("[-_]", language)
        found = [code for code in self.codes if name == code.strip("_").partition("_")[0]]
        scripts = {part for part in parts if SCRIPT.fullmatch(part)}
        if len(found) == 1 and scripts <= {*found[0].strip("_").split("_")[1:]}:  # a region may differ
            return found[0]
        raise ValueError(f"{option} {language!r}: the model has no such language; {self._near(name, found)}")

    def listed(self) -> str:
        """Return the codes as a list for error messages, shortened if there are many."""
        known = sorted(self.codes)
        more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
        return f"{', '.join(known[:SHOWN])}{more}"

    def _near(self, name: str, found: Sequence[str]) -> str:
        """Return the end of an error about a language: the codes that are most like it, or all of them."""
        starts = [code for code in self.codes if name and code.strip("_").startswith(name[:2].lower())]
        near = found or starts or difflib.get_close_matches(name, self.codes, n=5)
        if near:
            return f"the nearest of its {len(self.codes)} codes: {', '.join(sorted(near)[:SHOWN])}"
        return f"expected one of {self.listed()}"

    def mark(self, ids: Sequence[int], code: str) -> list[int]:
        """Return the token ids of a text of this language, given those of the text without special tokens."""
        index, end = self.codes[code], self.end[1]
        return [index, *ids, end] if self.is_before else [*ids, end, index]

    def post_processor(self, code: str) -> dict[str, Any]:
        """Return the entry `post_processor` of a `tokenizer.json` that marks texts as texts of this language."""
        end, index = self.end
        special = {
            name: {"id": name, "ids": [id_], "tokens": [name]} for name, id_ in ((end, index), (code, self.codes[code]))
        }

        def around(*texts: str) -> list[dict[str, Any]]:
            inner = [{"Sequence": {"id": text, "type_id": 0}} for text in texts]
            first, last = ({"SpecialToken": {"id": name, "type_id": 0}} for name in (code, end))
            return [first, *inner, last] if self.is_before else [*inner, last, first]

        return {
            "type": "TemplateProcessing",
            "single": around("A"),
            "pair": around("A", "B"),
            "special_tokens": special,
        }


def read_layout(tokenizer: PretrainedTokenizer) -> LanguageLayout | None:
    """Return the language codes of a tokenizer, or None if it puts no code beside a text."""
    codes = {token: tokenizer.special_id(token) for token in tokenizer.control_tokens if CODE.fullmatch(token)}
    encoded = tokenizer.offsets("a")
    special = [index for index, source in zip(encoded.ids, encoded.sources, strict=True) if source is None]
    end = tokenizer.end
    if len(special) != 2 or end not in special or not {*special} & {*codes.values()}:
        return None
    is_before = special[1] == end
    names = {index: token for token, index in ((name, tokenizer.id_of(name)) for name in tokenizer.control_tokens)}
    return LanguageLayout(codes, is_before, (names[end], end))
