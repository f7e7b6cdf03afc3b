"""Code: source files to a decoder that completes them, and fills in what is missing."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from glassformer.data.batching.fill_in_middle import cut_document, encode_cuts
from glassformer.data.batching.packed_windows import TokenStream, write_stream
from glassformer.data.readers.text_documents import Document
from glassformer.tasks.code_model import MARKS, CodeModel
from glassformer.tasks.configs.language import CodeConfig, CodeData
from glassformer.tasks.configs.small_models import small_decoder
from glassformer.tasks.language import Language
from glassformer.text import Tokenizer
from glassformer.text.tokenizer import UNKNOWN

CHARACTERS = 2
"""Of a token, at least about so many: what is cut in three should fit into what the model sees at once."""


class Code(Language):
    """Source files to a model that completes them, and fills in what is missing."""

    name, title, unit, sample_line = "code", "A model of code", "files", "def add(a, b):"
    Config, Data, Tool = CodeConfig, CodeData, CodeModel
    marks = MARKS

    def has_documents(self, train: Iterable[Document]) -> bool:
        """Always: a text with its middle last is one by itself."""
        return True

    def write(
        self, folder: Path, documents: Iterable[Document], tokenizer: Tokenizer, has_documents: bool
    ) -> TokenStream:
        """As above, some of it with its middle last."""
        config = self.config
        before, after, middle = (tokenizer.special_id(mark) for mark in MARKS)
        cuts = (
            cut
            for document in documents
            for cut in cut_document(
                document, chance=config.fim, longest=CHARACTERS * config.context, seed=config.train.seed
            )
        )
        return write_stream(
            folder,
            cuts,
            lambda chunk: encode_cuts(chunk, tokenizer.encode_batch, (before, after, middle)),
            has_documents=True,
            unknown=UNKNOWN,
            size=lambda cut: sum(len(part.encode()) for part in cut if part),
        )

    def unused(self) -> set[str]:
        """As above; a hidden mark would be a lie about the file."""
        return {*super().unused(), "word_dropout"}

    @classmethod
    def demo(cls) -> CodeConfig:
        """Python's standard library."""
        data, model = CodeData(corpus="standard-library"), small_decoder(vocab_size=4096)
        config = CodeConfig(data=data, context=128, model=model, fim=0.25)
        return replace(config, train=replace(config.train, minutes=2.4, eval_every=1000, save_every=1000))
